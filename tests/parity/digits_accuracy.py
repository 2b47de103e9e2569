#!/usr/bin/env python3
"""How well models/digits-cnn.onnx learns the digits in PyTorch: what pipetrain has to reach.

Trains from the weights in the file with AdamW, cosine schedule to zero, batch 64, on one thread;
prints the accuracy on a random fifth held out (one line per seed), then on the last 360 rows.

    python3 digits_accuracy.py [--epochs 20] [--lr 2e-3] [--seeds 1 2 3]
"""

import argparse
import time
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn import functional

MODELS = Path(__file__).resolve().parents[2] / "models"


class ResidualBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(x + self.norm2(self.conv2(y)))


class ConvolutionNorm(nn.Module):
    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels_out)

    def forward(self, x):
        return functional.relu(self.norm(self.conv(x)))


class DigitsNetwork(nn.Module):
    """The same network as digits-cnn.onnx, with the same parameter names."""

    def __init__(self):
        super().__init__()
        self.stem = ConvolutionNorm(1, 16)
        self.wide = ConvolutionNorm(16, 32)
        self.block = ResidualBlock(32)
        self.last = ConvolutionNorm(32, 40)
        self.head = nn.Linear(40, 10)

    def forward(self, x):
        x = functional.max_pool2d(self.wide(self.stem(x / 16)), 2)
        return self.head(self.last(self.block(x)).mean((2, 3)))


def load_network():
    initializers = onnx.load(MODELS / "digits-cnn.onnx").graph.initializer
    weights = {i.name: torch.tensor(numpy_helper.to_array(i)) for i in initializers}
    del weights["pixel_scale"]
    network = DigitsNetwork()
    state = network.state_dict()
    state.update(weights)
    network.load_state_dict(state)
    return network


def train(x, y, train_rows, test_rows, arguments, seed):
    network = load_network()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(network.parameters(), lr=arguments.lr, weight_decay=0.01)
    steps = arguments.epochs * (len(train_rows) // arguments.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    started = time.process_time()
    for _ in range(arguments.epochs):
        order = train_rows[torch.randperm(len(train_rows), generator=generator)]
        for rows in order.split(arguments.batch):
            if len(rows) < arguments.batch:
                continue
            optimizer.zero_grad()
            functional.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
            schedule.step()
    seconds = time.process_time() - started
    network.eval()
    with torch.no_grad():
        correct = (network(x[test_rows]).argmax(1) == y[test_rows]).float().mean().item()
    return 100 * correct, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    table = np.loadtxt(MODELS / "digits.csv.gz", delimiter=",", dtype=np.float32)
    x = torch.tensor(table[:, :-1]).reshape(-1, 1, 8, 8)
    y = torch.tensor(table[:, -1]).long()
    held_out = len(x) // 5
    for seed in arguments.seeds:
        rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 + seed))
        split = (rows[held_out:], rows[:held_out])
        accuracy, seconds = train(x, y, *split, arguments, seed)
        print(f"random fifth, seed {seed}: {accuracy:.2f} %  ({seconds:.1f} s CPU)", flush=True)
    for seed in arguments.seeds:
        rows = torch.arange(len(x))
        accuracy, seconds = train(x, y, rows[:-360], rows[-360:], arguments, seed)
        print(f"last 360 rows, seed {seed}: {accuracy:.2f} %  ({seconds:.1f} s CPU)", flush=True)


if __name__ == "__main__":
    main()
