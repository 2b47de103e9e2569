"""The PyTorch networks that pipetrain is compared with."""

import torch
from torch import nn
from torch.nn import functional


def mlp(features=32, hidden=64, classes=10):
    return nn.Sequential(
        nn.Linear(features, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def lenet(classes=10):
    """LeNet-5 (LeCun et al. 1998) with rectifiers and maximum pooling, for (1, 28, 28)."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a skip connection (He et al. 2016)."""

    def __init__(self, channels_in, channels_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.shortcut = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )

    def forward(self, x):
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 in its form for (3, 32, 32): a 3x3 first convolution and no first pooling."""

    def __init__(self, width=64, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        channels = [width, width, 2 * width, 4 * width, 8 * width]
        blocks = []
        for level in range(4):
            stride = 1 if level == 0 else 2
            blocks.append(BasicBlock(channels[level], channels[level + 1], stride))
            blocks.append(BasicBlock(channels[level + 1], channels[level + 1], 1))
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x):
        x = self.blocks(functional.relu(self.bn1(self.conv1(x))))
        return self.fc(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Attention(nn.Module):
    """Multi-head self-attention with one projection each for queries, keys and values."""

    def __init__(self, width, heads, causal=False):
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, tokens, width = x.shape

        def split(y):
            return y.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    """A transformer block that normalises before attention and before its MLP."""

    def __init__(self, width, heads, causal=False, activation=functional.gelu):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.activation = activation

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.activation(self.up(self.norm2(x))))


class TransformerClassifier(nn.Module):
    """Token ids (batch, tokens) to the logits of one class for the whole sequence."""

    def __init__(self, vocabulary=64, tokens=16, width=32, heads=4, depth=2, classes=10):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, ids):
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.blocks(self.token(ids) + self.position(positions))
        return self.head(self.norm(x).mean(1))


class LanguageModel(nn.Module):
    """A decoder like nanoGPT's: token ids (batch, tokens) to logits (batch, tokens, vocabulary)."""

    def __init__(self, vocabulary=256, tokens=64, width=128, heads=4, depth=4):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.blocks(self.token(ids) + self.position(positions))
        return self.head(self.norm(x))


class StandardisedConv(nn.Conv2d):
    """A convolution whose weight has mean 0 and variance gain^2 / fan-in per channel: timm's
    ScaledStdConv2d, which standardises by a BatchNorm over the weight."""

    def __init__(self, channels_in, channels_out, kernel, stride=1, groups=1):
        super().__init__(
            channels_in, channels_out, kernel, stride, padding=kernel // 2, groups=groups
        )
        self.gain = nn.Parameter(torch.ones(channels_out, 1, 1, 1))
        self.scale = self.weight[0].numel() ** -0.5

    def forward(self, x):
        weight = functional.batch_norm(
            self.weight.reshape(1, self.out_channels, -1),
            None,
            None,
            weight=(self.gain * self.scale).view(-1),
            training=True,
            momentum=0.0,
            eps=1e-6,
        ).reshape_as(self.weight)
        return functional.conv2d(
            x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


class NormFreeBlock(nn.Module):
    """A bottleneck of NFNet (Brock et al. 2021): gelu(x) * 1.7 keeps the variance."""

    def __init__(self, channels, beta):
        super().__init__()
        half = channels // 2
        self.conv1 = StandardisedConv(channels, half, 1)
        self.conv2 = StandardisedConv(half, half, 3, groups=2)
        self.conv3 = StandardisedConv(half, channels, 1)
        self.skipinit_gain = nn.Parameter(torch.tensor(0.5))
        self.beta = beta

    def forward(self, x):
        y = self.conv1(functional.gelu(x) * 1.7 * self.beta)
        y = self.conv2(functional.gelu(y) * 1.7)
        y = self.conv3(functional.gelu(y) * 1.7)
        return x + 0.2 * self.skipinit_gain * y


class NFNet(nn.Module):
    """A network without norms over activations, for (3, 16, 16)."""

    def __init__(self, width=16, classes=10):
        super().__init__()
        self.stem = StandardisedConv(3, width, 3, stride=2)
        self.blocks = nn.Sequential(NormFreeBlock(width, 1.0), NormFreeBlock(width, 0.9))
        self.final = StandardisedConv(width, 2 * width, 1)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x):
        x = functional.gelu(self.final(self.blocks(self.stem(x))))
        return self.fc(x.mean((2, 3)))


def make_distinct(network, seed):
    """Moves normalisation parameters off 1 and 0.

    Exporters merge tensors of equal values; moved a little, each keeps an initializer of its own
    and can be found in the file by its value.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, (nn.LayerNorm, nn.RMSNorm, nn.BatchNorm2d, nn.GroupNorm)):
                for parameter in module.parameters():
                    parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
            for name, parameter in module.named_parameters(recurse=False):
                if name.endswith("gain"):
                    parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return network


def keep_off_kinks(network, distance=3.0):
    """Moves the biases before each rectifier of a ResNet18 away from zero.

    A rectifier whose input is within rounding of zero is on in one program and off in another. At
    half a million of them a step some are, and the curves of two correct programs part after ten
    steps (measured: 1e-2 between float32 and float64 after 50; 2e-7 with GELU instead). Moved by
    three standard deviations, half of the inner channels mostly on and half mostly off, they stay
    on their side.
    """
    with torch.no_grad():
        for name, module in network.named_modules():
            if isinstance(module, nn.BatchNorm2d):
                shift = torch.full(module.bias.shape, distance)
                if name.startswith("blocks") and name.endswith("bn1"):
                    shift[::2] = -distance
                module.bias.add_(shift)
    return network
