"""Networks for real_sizes.py --more: of volumes, video, sound, generated images and sequences, and with group normalization.

Needs torch, and by network torchvision, transformers or diffusers.
"""

import torch
from torch import nn
from torch.nn import functional


class Called(nn.Module):
    """A network that takes more than its input, by a function that calls it."""

    def __init__(self, module, call):
        super().__init__()
        self.module, self.call = module, call

    def forward(self, x):
        return self.call(self.module, x)


def volume_block(inputs, outputs):
    def layer(channels):
        return [nn.Conv3d(channels, outputs, 3, padding=1), nn.InstanceNorm3d(outputs, affine=True), nn.LeakyReLU(0.01)]

    return nn.Sequential(*layer(inputs), *layer(outputs))


class VolumeUNet(nn.Module):
    """A U-Net for medical volumes, with three levels and instance normalization."""

    def __init__(self, width=16):
        super().__init__()
        self.down = nn.ModuleList([volume_block(1, width), volume_block(width, 2 * width), volume_block(2 * width, 4 * width)])
        self.widen = nn.ModuleList([nn.ConvTranspose3d(4 * width, 2 * width, 2, 2), nn.ConvTranspose3d(2 * width, width, 2, 2)])
        self.up = nn.ModuleList([volume_block(4 * width, 2 * width), volume_block(2 * width, width)])
        self.head = nn.Conv3d(width, 4, 1)

    def forward(self, x):
        levels = []
        for i, block in enumerate(self.down):
            x = block(functional.max_pool3d(x, 2) if i else x)
            levels.append(x)
        for widen, block, level in zip(self.widen, self.up, levels[-2::-1]):
            x = block(torch.cat([widen(x), level], 1))
        return self.head(x)


class Generator(nn.Module):
    """CycleGAN's, with six residual blocks: reflection padding and instance normalization."""

    def __init__(self, width=64):
        super().__init__()

        def normalized(convolution, channels):
            return [convolution, nn.InstanceNorm2d(channels), nn.ReLU()]

        self.head = nn.Sequential(
            nn.ReflectionPad2d(3), *normalized(nn.Conv2d(3, width, 7), width),
            *normalized(nn.Conv2d(width, 2 * width, 3, 2, 1), 2 * width),
            *normalized(nn.Conv2d(2 * width, 4 * width, 3, 2, 1), 4 * width))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.ReflectionPad2d(1), *normalized(nn.Conv2d(4 * width, 4 * width, 3), 4 * width),
                          nn.ReflectionPad2d(1), nn.Conv2d(4 * width, 4 * width, 3), nn.InstanceNorm2d(4 * width))
            for _ in range(6))
        self.tail = nn.Sequential(
            *normalized(nn.ConvTranspose2d(4 * width, 2 * width, 3, 2, 1, 1), 2 * width),
            *normalized(nn.ConvTranspose2d(2 * width, width, 3, 2, 1, 1), width), nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7))

    def forward(self, x):
        x = self.head(x)
        for block in self.blocks:
            x = x + block(x)
        return self.tail(x)


class TemporalConvolutions(nn.Module):
    """Causal convolutions with growing dilation (Bai et al. 2018)."""

    def __init__(self, width=128, levels=6):
        super().__init__()

        def causal(dilation):
            return [nn.ConstantPad1d((2 * dilation, 0), 0.0), nn.Conv1d(width, width, 3, dilation=dilation), nn.ReLU()]

        self.first = nn.Conv1d(16, width, 1)
        self.blocks = nn.ModuleList(nn.Sequential(*causal(2**i), *causal(2**i)) for i in range(levels))
        self.head = nn.Linear(width, 100)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return self.head(x[:, :, -1])


class Sound(nn.Module):
    """The convolutions of wav2vec 2.0."""

    def __init__(self):
        super().__init__()
        from transformers import Wav2Vec2Config
        from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2FeatureEncoder

        self.layers = Wav2Vec2FeatureEncoder(Wav2Vec2Config()).conv_layers
        self.head = nn.Linear(512, 100)

    def forward(self, x):
        x = x[:, None]
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(2))


def video():
    from torchvision.models.video import r3d_18

    return r3d_18(weights=None, num_classes=100)


def diffusion():
    from diffusers import UNet2DModel

    network = UNet2DModel(sample_size=64, in_channels=3, out_channels=8, block_out_channels=(64, 128, 256), layers_per_block=2,
                          down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
                          up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"), attention_head_dim=64)
    time = 17
    return Called(network, lambda module, x: module(x, torch.full((x.shape[0],), time, dtype=torch.int64), return_dict=False)[0])


def grouped():
    from torchvision.models import resnet50

    return resnet50(weights=None, norm_layer=lambda channels: nn.GroupNorm(32, channels))


FURTHER = {"unet-3d": VolumeUNet, "r3d-18": video, "wav2vec2-convolutions": Sound, "diffusion-unet": diffusion, "cyclegan": Generator,
           "groupnorm-resnet50": grouped, "tcn": TemporalConvolutions}
