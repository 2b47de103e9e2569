#!/usr/bin/env python3
"""Trains low-rank adapters (--lora) for some steps of SGD in PEFT and in pipetrain, and compares losses, adapters and the
merged weights.

    python3 compare_adapters.py PIPETRAIN

Both begin with pipetrain's first values. Needs torch, peft, safetensors, onnx and onnxscript. Exit code 1 if anything differs.
"""

import itertools
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from safetensors.numpy import load_file
from torch import nn
from torch.nn import functional

from pipetrain_run import initializers, loss_deviation, train

RATE, STEPS, RANK, ALPHA = 0.5, 4, 4, 6
TOLERANCE = 1e-5  # of losses, and of adapters and weights relative to their norms


class Perceptron(nn.Module):
    """Linear layers on vectors: Gemm."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(12, 32), nn.Linear(32, 24), nn.Linear(24, 3)

    def forward(self, x):
        return self.fc3(functional.gelu(self.fc2(functional.gelu(self.fc1(x)))))


class Attention(nn.Module):
    """Linear layers on sequences: MatMul."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(16, 16, bias=bias) for bias in (True, False, True))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        mixed = torch.softmax(self.q_proj(x) @ self.k_proj(x).transpose(1, 2) / 4, -1) @ self.v_proj(x)
        return self.head(mixed.mean(1))


class Pointwise(nn.Module):
    """1×1 convolutions between others, one of them with a stride."""

    def __init__(self):
        super().__init__()
        self.stem, self.widen = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 1)
        self.narrow, self.head = nn.Conv2d(16, 8, 1, stride=2), nn.Linear(8, 3)

    def forward(self, x):
        x = torch.relu(self.widen(torch.relu(self.stem(x))))
        return self.head(torch.relu(self.narrow(x)).mean((2, 3)))


# Network, shape of a batch, PEFT's target modules, pipetrain's.
CASES = {
    "perceptron": (Perceptron, (16, 12), ["fc1", "fc2", "fc3"], None),
    "attention": (Attention, (16, 6, 16), ["q_proj", "v_proj"], "q_proj,v_proj"),
    "pointwise": (Pointwise, (16, 3, 9, 9), ["widen", "narrow"], "widen,narrow"),
}


def peft_of(network, targets, adapters):
    model = get_peft_model(network, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets))
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in adapters.items():
            parameters[name.replace(".weight", ".default.weight")].copy_(torch.from_numpy(value))
    return model


def train_in_peft(model, x, y):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)
    losses = []
    for _ in range(STEPS):
        loss = functional.cross_entropy(model(x), y)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def distance(found, expected):
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def compare(binary, case, dynamo, stages, folder):
    """Returns the deviation of the losses, of the worst adapter and of the worst merged weight."""
    make, shape, targets, globs = case
    torch.manual_seed(5)
    network, x = make(), torch.randn(shape)
    y = torch.arange(shape[0]) % 3
    model = folder / "model.onnx"
    torch.onnx.export(network, (x,), model, dynamo=dynamo, input_names=["x"])
    np.savez(folder / "data.npz", x=x.numpy(), y=y.numpy())
    lora = f"rank={RANK},alpha={ALPHA}" + (f",targets={globs}" if globs else "")
    flags = ["--optimizer", "sgd", "--momentum", "0", "--weight-decay", "0", "--lr", str(RATE), "--lora", lora]
    flags += ["--batch-size", str(shape[0]), "--threads", "1", "--gpus", str(stages), "--overwrite"]
    begin, end = folder / "begin.safetensors", folder / "end.safetensors"
    train(binary, model, folder / "data.npz", folder / "begin", flags=[*flags, "--max-steps", "0", "--adapter", begin])
    losses, trained = train(
        binary, model, folder / "data.npz", folder / "end", flags=[*flags, "--max-steps", str(STEPS), "--adapter", end]
    )
    before = load_file(begin)
    peft = peft_of(network, targets, before)
    deviation = loss_deviation(losses, train_in_peft(peft, x, y))
    parameters, after = dict(peft.named_parameters()), load_file(end)
    expected = {name: parameters[name.replace(".weight", ".default.weight")].detach().numpy() for name in before}
    if set(after) != set(before) or len(before) != 2 * len(targets):
        raise AssertionError(f"adapters of {sorted(after)}")
    adapters = max(distance(after[name], expected[name]) for name in after)
    merged, found = peft.merge_and_unload().state_dict(), initializers(trained)
    # An exporter may have transposed a weight.
    weights = 0.0
    for name, value in merged.items():
        candidates = [found[key] for key in found if key in (name, f"{name}_transposed")] or [
            tensor for tensor in found.values() if sorted(tensor.shape) == sorted(value.shape)
        ]
        forms = [form for tensor in candidates for form in (tensor, tensor.T) if form.shape == tuple(value.shape)]
        weights = max(weights, min(distance(form, value.numpy()) for form in forms))
    return deviation, adapters, weights


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} PIPETRAIN")
    failed = False
    for (name, case), dynamo, stages in itertools.product(CASES.items(), (True, False), (1, 2)):
        with tempfile.TemporaryDirectory() as folder:
            deviations = compare(sys.argv[1], case, dynamo, stages, Path(folder))
        fails = max(deviations) > TOLERANCE
        failed = failed or fails
        losses, adapters, weights = deviations
        exporter = "default" if dynamo else "TorchScript"
        print(
            f"{name:12} {exporter:12} {stages} stage(s)  losses {losses:.1e}  adapters {adapters:.1e}  merged weights {weights:.1e}"
            f"{'  DIFFERS' if fails else ''}"
        )
    return failed


if __name__ == "__main__":
    sys.exit(main())
