#!/usr/bin/env python3
"""Exports one network at several opsets, with both exporters of PyTorch, and records its loss curve: goldens/opsets/.

    python3 make_opset_goldens.py

The network uses what opsets changed: normalisation and GELU (chains of small operators before 17 and 20), Split,
Squeeze, Unsqueeze, ReduceMean and Pad (attributes that became inputs), Clip, Softmax. Needs torch, onnx and onnxscript.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import networks
import zoo_cases
from make_goldens import drop_stack_traces

FOLDER = Path(__file__).resolve().parent / "goldens" / "opsets"
# (opset, exporter)
EXPORTS = [(11, "torchscript"), (13, "torchscript"), (17, "torchscript"), (18, "torchscript"), (18, "dynamo"), (23, "dynamo")]
TOKENS, VOCABULARY, WIDTH, HEADS, CLASSES = 10, 24, 12, 2, 5
BATCH, STEPS, RATE, MOMENTUM = 8, 20, 0.1, 0.9
SAMPLES = 32


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.conv = nn.Conv2d(1, 3, (2, 3))
        self.head = nn.Linear(3 * WIDTH, CLASSES)

    def attention(self, x):
        q, k, v = (part.view(-1, TOKENS, HEADS, WIDTH // HEADS).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        shares = torch.softmax(q @ k.transpose(2, 3) / (WIDTH // HEADS) ** 0.5, -1)
        return self.proj((shares @ v).transpose(1, 2).reshape(-1, TOKENS, WIDTH))

    def forward(self, ids):
        x = self.token(ids)
        x = x + self.attention(self.norm1(x))
        x = x + self.down(functional.gelu(self.up(self.norm2(x))))
        images = functional.pad(x.unsqueeze(1), (1, 1, 0, 1))  # (batch, 1, T + 1, C + 2)
        y = functional.hardtanh(self.conv(images), -1.5, 1.5).mean(2, keepdim=True)  # (batch, 3, 1, C)
        return self.head(y.squeeze(2).flatten(1))


def export(network, sample, opset, exporter, path):
    shared = {"input_names": ["x"], "output_names": ["logits"], "opset_version": opset, "verbose": False}
    if exporter == "dynamo":
        torch.onnx.export(network, (sample,), path, dynamo=True, external_data=False, optimize=True,
                          dynamic_shapes=({0: torch.export.Dim("batch")},), **shared)
    else:
        torch.onnx.export(network, (sample,), path, dynamo=False, dynamic_axes={"x": {0: "batch"}, "logits": {0: "batch"}}, **shared)
    drop_stack_traces(path)


def curve(network, x, y):
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM)
    losses = []
    for step in range(STEPS):
        rows = slice(step * BATCH % SAMPLES, step * BATCH % SAMPLES + BATCH)
        optimizer.zero_grad()
        loss = functional.cross_entropy(network(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(5)
    network = networks.make_distinct(Mixed(), 5).eval()
    x = zoo_cases.integers((SAMPLES, TOKENS), VOCABULARY, 3)
    y = zoo_cases.integers((SAMPLES,), CLASSES, 4)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for opset, exporter in EXPORTS:
        export(network, torch.from_numpy(x[:4]), opset, exporter, FOLDER / f"mixed.{exporter}.{opset}.onnx")
    np.savez_compressed(FOLDER / "data.npz", x=x, y=y)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    single = curve(network, torch.from_numpy(x), torch.from_numpy(y))
    network.load_state_dict(state)
    exact = curve(network.double(), torch.from_numpy(x), torch.from_numpy(y))
    noise = max(abs(a - b) / abs(b) for a, b in zip(single, exact))
    settings = {"batch": BATCH, "steps": STEPS, "lr": RATE, "momentum": MOMENTUM, "torch": torch.__version__}
    (FOLDER / "curve.json").write_text(json.dumps({**settings, "losses": exact, "float32": noise}, indent=1) + "\n")
    print(f"loss {exact[0]:.4f} -> {exact[-1]:.4f}, float32 differs by {noise:.1e}")


if __name__ == "__main__":
    main()
