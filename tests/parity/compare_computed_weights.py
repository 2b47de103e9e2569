#!/usr/bin/env python3
"""Trains networks whose weights are computed from parameters (weight normalization, weight standardization, W + B A) for
three steps of SGD in PyTorch and in pipetrain, and compares losses and final parameters.

    python3 compare_computed_weights.py PIPETRAIN

The TorchScript exporter keeps the parameters apart where it folds no constants. Needs what export_parameters.py needs.
Exit code 1 if anything differs.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

import parameter_networks
from export_parameters import move_parameters
from pipetrain_run import initializers, loss_deviation, train

NAMES = ["own_sum", "own_standardised", "own_scaled", "own_weight_norm", "own_old_weight_norm"]
RATE, STEPS = 0.1, 3
LOSS_TOLERANCE, WEIGHT_TOLERANCE = 1e-5, 1e-4


def train_in_torch(network, x, y):
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    losses = []
    for _ in range(STEPS):
        loss = functional.cross_entropy(network(x), y)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def compare(binary, name, folder):
    """Returns the deviation of the losses and of the worst parameter, and parameters that the file lacks."""
    torch.manual_seed(3)
    network, (x,) = parameter_networks.NETWORKS[name]()
    move_parameters(network, 9)
    model = folder / f"{name}.onnx"
    torch.onnx.export(
        network,
        (x,),
        model,
        dynamo=False,
        opset_version=17,
        input_names=["x"],
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
    )
    y = torch.arange(len(x)) % 3
    np.savez(folder / "data.npz", x=x.numpy(), y=y.numpy())
    flags = ["--optimizer", "sgd", "--momentum", "0", "--weight-decay", "0", "--lr", str(RATE)]
    flags += ["--batch-size", str(len(x)), "--max-steps", str(STEPS), "--threads", "1"]
    losses, trained = train(binary, model, folder / "data.npz", folder / name, flags=flags)
    deviation = loss_deviation(losses, train_in_torch(network, x, y))
    found, worst, missing = initializers(trained), 0.0, []
    for parameter, value in network.named_parameters():
        if parameter not in found:
            missing.append(parameter)
            continue
        expected = value.detach().numpy()
        distance = np.linalg.norm(found[parameter] - expected) / np.linalg.norm(expected)
        worst = max(worst, float(distance))
    return deviation, worst, missing


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} PIPETRAIN")
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            (Path(folder) / name).mkdir()
            try:
                deviation, worst, missing = compare(sys.argv[1], name, Path(folder))
            except Exception as error:
                print(f"{name:22} {type(error).__name__}: {str(error)[:300]}")
                failed = True
                continue
            fails = deviation > LOSS_TOLERANCE or worst > WEIGHT_TOLERANCE
            failed = failed or fails
            print(
                f"{name:22} losses {deviation:.1e}  weights {worst:.1e}"
                f"{'  DIFFERS' if fails else ''}{'  not in the file: ' + ', '.join(missing) if missing else ''}"
            )
    return failed


if __name__ == "__main__":
    sys.exit(main())
