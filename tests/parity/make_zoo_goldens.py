#!/usr/bin/env python3
"""Writes goldens/zoo.json: three steps of SGD of every network of `pipetrain new`, made by PyTorch in float64.

    python3 make_zoo_goldens.py PIPETRAIN [NAME ...]

`pipetrain new` writes the initial weights; nothing else of pipetrain is used. For each tensor the file has a few
projections of its first values and of its movement, and how far PyTorch's float32 is from its float64. Needs torch,
onnx and numpy.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

import zoo_cases
from pipetrain_run import initializers

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
import zoo_networks  # noqa: E402

GOLDEN = Path(__file__).resolve().parent / "goldens" / "zoo.json"


def train(name, sizes, weights, dtype):
    """Losses and the final state of a few steps of SGD with momentum."""
    network = zoo_networks.build(name, weights, **sizes).to(dtype).train()
    x, y = (torch.from_numpy(array) for array in zoo_cases.batch_of(name, sizes, zoo_cases.BATCH * zoo_cases.STEPS))
    x = x.to(dtype) if x.is_floating_point() else x
    optimizer = torch.optim.SGD(network.parameters(), lr=zoo_cases.rate_of(name), momentum=zoo_cases.MOMENTUM)
    losses = []
    for step in range(zoo_cases.STEPS):
        rows = slice(step * zoo_cases.BATCH, (step + 1) * zoo_cases.BATCH)
        optimizer.zero_grad()
        logits = network(x[rows])
        # Classes are the second axis of images and the last of tokens.
        logits = logits if logits.dim() != 3 else logits.transpose(1, 2)
        loss = functional.cross_entropy(logits, y[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    state = {key: value.double().numpy() for key, value in network.state_dict().items()}
    return losses, network.to_file(state)


def golden_of(binary, name, sizes, folder):
    path = folder / f"{name}.onnx"
    zoo_cases.write_model(binary, name, path)
    weights = initializers(path)
    exact, exact_state = train(name, sizes, weights, torch.float64)
    single, single_state = train(name, sizes, weights, torch.float32)
    tensors = {}
    for key, value in exact_state.items():
        if key.endswith("num_batches_tracked"):
            continue
        moved = value - weights[key]
        tensors[key] = {
            "start": float(f"{zoo_cases.projections(weights[key])[0]:.7g}"),
            "moved": [float(f"{p:.6g}") for p in zoo_cases.projections(moved)],
            "norm": float(f"{np.linalg.norm(moved):.4g}"),
            "float32": float(f"{np.linalg.norm(single_state[key] - value):.2g}"),
        }
    noise = max(abs(a - b) / abs(b) for a, b in zip(single, exact))
    print(f"{name:<10} losses {exact}, float32 differs by {noise:.1e}")
    return {"losses": exact, "float32": float(f"{noise:.3g}"), "tensors": tensors}


def main():
    torch.set_num_threads(1)
    names = sys.argv[2:] or list(zoo_cases.CASES)
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            golden[name] = golden_of(sys.argv[1], name, zoo_cases.CASES[name], Path(folder))
    GOLDEN.parent.mkdir(exist_ok=True)
    lines = []
    for name, case in golden.items():
        tensors = ",\n".join(f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in case["tensors"].items())
        head = json.dumps({key: value for key, value in case.items() if key != "tensors"})[:-1]
        lines.append(f' {json.dumps(name)}: {head}, "tensors": {{\n{tensors}}}}}')
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
