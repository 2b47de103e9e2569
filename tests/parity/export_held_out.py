#!/usr/bin/env python3
"""Exports three networks that pipetrain was not written against, with what PyTorch makes of them.

    python3 export_held_out.py FOLDER [NAME ...]
    python3 compare.py PIPETRAIN FOLDER

They share no architecture with goldens/ and are not committed: a fresh test for a finished program.
Needs what make_goldens.py needs.
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import make_goldens as goldens


class SeparableCnn(nn.Module):
    """A plain network of depthwise, dilated and strided convolutions with biases."""

    def __init__(self, classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 12, 5, stride=2, padding=2),
            nn.SiLU(),
            nn.Conv2d(12, 12, 3, padding=1, groups=12),
            nn.Conv2d(12, 24, 1),
            nn.GELU(),
            nn.AvgPool2d(3, stride=2, padding=1),
            nn.Conv2d(24, 24, 3, padding=2, dilation=2, groups=4),
            nn.Tanh(),
            nn.Conv2d(24, 32, (3, 1)),
            nn.ELU(),
        )
        self.hidden = nn.Linear(32 * 4 * 6, 40)
        self.head = nn.Linear(40, classes)

    def forward(self, x):
        x = self.features(x).flatten(1)
        return self.head(functional.softplus(self.hidden(x)))


class PreActivation(nn.Module):
    """A bottleneck block with BatchNorm and SiLU before each convolution (He et al. 2016b)."""

    def __init__(self, channels_in, channels_out, stride):
        super().__init__()
        inner = channels_out // 2
        self.norm1 = nn.BatchNorm2d(channels_in)
        self.reduce = nn.Conv2d(channels_in, inner, 1)
        self.norm2 = nn.BatchNorm2d(inner, momentum=0.2)
        self.spatial = nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False)
        self.norm3 = nn.BatchNorm2d(inner, eps=1e-3)
        self.expand = nn.Conv2d(inner, channels_out, 1)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.AvgPool2d(stride), nn.Conv2d(channels_in, channels_out, 1, bias=False)
            )

    def forward(self, x):
        y = self.reduce(functional.silu(self.norm1(x)))
        y = self.spatial(functional.silu(self.norm2(y)))
        return self.expand(functional.silu(self.norm3(y))) + self.shortcut(x)


class PreActivationNet(nn.Module):
    """Three stages of pre-activation blocks and a gate on the channels (squeeze and excitation)."""

    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.Sequential(
            PreActivation(16, 16, 1),
            PreActivation(16, 32, 2),
            PreActivation(32, 32, 1),
            PreActivation(32, 64, 2),
        )
        self.norm = nn.BatchNorm2d(64)
        self.squeeze = nn.Linear(64, 16)
        self.excite = nn.Linear(16, 64)
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        x = functional.silu(self.norm(self.blocks(self.stem(x))))
        pooled = x.mean((2, 3))
        gate = torch.sigmoid(self.excite(torch.tanh(self.squeeze(pooled))))
        return self.head((x * gate[:, :, None, None]).amax((2, 3)) * 0.25 + pooled)


class RotaryBlock(nn.Module):
    """A decoder block like Llama's: RMS norm, rotary positions, gated MLP, no biases."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.RMSNorm(width, eps=1e-5)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.RMSNorm(width, eps=1e-5)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def attend(self, x, cosine, sine):
        batch, tokens, width = x.shape
        q, k, v = (
            y.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for y in self.qkv(x).chunk(3, dim=-1)
        )

        def rotate(y):
            left, right = y.chunk(2, dim=-1)
            return y * cosine + torch.cat((-right, left), dim=-1) * sine

        y = functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))

    def forward(self, x, cosine, sine):
        x = x + self.attend(self.norm1(x), cosine, sine)
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class RotaryLanguageModel(nn.Module):
    """Token ids to the logits of each next token; the head shares the embedding's weights."""

    # The exporter turns a smaller shared table into two separate ones.
    def __init__(self, vocabulary=512, tokens=20, width=24, heads=3, depth=2):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(RotaryBlock(width, heads) for _ in range(depth))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        half = width // heads // 2
        angles = torch.outer(torch.arange(tokens), 100.0 ** (-torch.arange(half) / half))
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)
        with torch.no_grad():
            self.token.weight.mul_(0.3)

    def forward(self, ids):
        x = self.token(ids)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        return functional.linear(self.norm(x), self.token.weight)


def make_cnn(random):
    data = goldens.noisy_prototypes((3, 24, 24), 160, 2.0, random)
    return SeparableCnn(), data, goldens.export_default


def make_residual(random):
    data = goldens.noisy_prototypes((3, 16, 16), 160, 2.0, random)
    return PreActivationNet(), data, goldens.export_torchscript_training


def make_language_model(random):
    x, _ = goldens.token_counts(21, 512, 160, random)
    return RotaryLanguageModel(), (x[:, :-1], x[:, 1:]), goldens.export_default


MAKERS = {
    "separable-cnn": make_cnn,
    "preactivation-net": make_residual,
    "rotary-lm": make_language_model,
}


def settings_of(name, kind):
    settings = dict(goldens.OPTIMIZERS[kind])
    if name == "preactivation-net":
        settings["lr"] /= 5
    return settings


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: export_held_out.py FOLDER [NAME ...]")
    names = sys.argv[2:] or MAKERS
    goldens.make_all(Path(sys.argv[1]), {name: MAKERS[name] for name in names}, settings_of)


if __name__ == "__main__":
    main()
