"""The benchmark networks: arguments of `pipetrain new`, batch size, and steps per run."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Model:
    title: str
    network: str  # of `pipetrain new` and of zoo_networks.py
    sizes: dict  # that differ from the network's defaults
    batch: int
    steps: int  # timed ones of a run on one thread: about one to two seconds
    rate: float = 0.01
    images: bool = False  # PyTorch can run it channels-last
    pipelined: bool = False  # PyTorch can pipeline it: no skip over a cut


MODELS = {
    "mlp": Model("MLP 16×1024", "mlp", {"depth": 16, "width": 1024}, 256, 6, pipelined=True),
    "lenet": Model("LeNet", "lenet", {}, 64, 150, images=True),
    "resnet18": Model("ResNet-18, 32×32", "resnet18", {}, 64, 3, images=True, pipelined=True),
    "vgg": Model("VGG-11, 32×32", "vgg", {}, 64, 4, images=True, pipelined=True),
    "mobilenet": Model("MobileNetV2, 32×32", "mobilenet", {}, 32, 5, rate=1e-3, images=True),
    "unet": Model("U-Net, 64×64", "unet", {}, 8, 5, images=True),
    "gpt": Model("nanoGPT 6×384, T=256", "gpt", {"width": 384, "depth": 6, "heads": 6, "vocab": 256, "context": 256}, 8, 3,
                 pipelined=True),
    "bert": Model("BERT 4×256, T=128", "bert", {}, 16, 4),
    "lstm": Model("LSTM LM 2×512, T=64", "lstm", {"width": 512, "depth": 2, "vocab": 256, "context": 64}, 32, 4),
}

# For GPUs: too large to be timed on a CPU.
GPU_MODELS = {
    "gpt2": Model("GPT-2 of 12×768, T=1024", "gpt", {"width": 768, "depth": 12, "heads": 12, "vocab": 50257, "context": 1024}, 8, 20,
                  pipelined=True),
    "resnet50": Model("ResNet-50, 224×224", "resnet50", {}, 64, 20, images=True, pipelined=True),
    # Smoke tests for any machine.
    "gpt-tiny": Model("GPT 4×32, T=16", "gpt", {"width": 32, "depth": 4, "heads": 2, "vocab": 64, "context": 16}, 8, 3, pipelined=True),
    "resnet-tiny": Model("ResNet-50 of 8 channels, 128×128", "resnet50", {"image": 128, "width": 8, "classes": 10}, 16, 3, images=True,
                         pipelined=True),
}
# Networks of torchvision and transformers (real_networks.py) at real sizes.
REAL_MODELS = {
    "resnet50-224": Model("ResNet-50, 224²", "torchvision", {"image": 224}, 16, 4, images=True),
    "gpt2-124m": Model("GPT-2 124M, 256 tokens", "transformers", {"vocab": 50257, "context": 256}, 4, 3, rate=1e-3),
    "vit-b16": Model("ViT-B/16, 224²", "transformers", {"image": 224}, 8, 3, rate=1e-3, images=True),
    "bert-base": Model("BERT-base, 128 tokens", "transformers", {"vocab": 30522, "context": 128, "classes": 2}, 8, 4, rate=1e-3),
    "llama": Model("Llama shape (768 × 8, 32,000 words), 256 tokens", "transformers", {"vocab": 32000, "context": 256}, 4, 3, rate=1e-3),
    "efficientnet-b0": Model("EfficientNet-B0, 224²", "torchvision", {"image": 224}, 8, 10, images=True),
    "mobilenet-v3-l": Model("MobileNetV3-L, 224²", "torchvision", {"image": 224}, 16, 10, images=True),
    "convnext-t": Model("ConvNeXt-T, 224²", "torchvision", {"image": 224}, 8, 4, rate=1e-3, images=True),
    "dlrm": Model("DLRM, 8 tables of 200,000 × 64", "own", {"classes": 2}, 512, 10, rate=1e-4),
    "fcn-resnet50": Model("FCN-ResNet-50, 224²", "torchvision", {"image": 224, "classes": 21}, 4, 3, images=True),
    "deeplab-v3": Model("DeepLabV3-MobileNetV3, 224²", "torchvision", {"image": 224, "classes": 21}, 8, 4, images=True),
    "lstm-wikitext": Model("LSTM 2×1024, 33,278 words, 35 tokens", "own", {"vocab": 33278, "context": 35}, 20, 5),
    "gru-speech": Model("bidirectional GRU 3×512, 200 frames", "own", {"classes": 61}, 16, 5),
}
# Further networks for real_sizes.py --more, of shapes that those above do not have.
MORE_MODELS = {
    "gpt2-1024-tokens": Model("GPT-2 of 4 layers, 1,024 tokens", "transformers", {"vocab": 50257, "context": 1024}, 1, 2, rate=1e-3),
    "gpt2-1024-wide": Model("GPT-2 4×1024, 512 tokens", "transformers", {"vocab": 50257, "context": 512}, 2, 2, rate=1e-3),
    "bert-1024-wide": Model("BERT 4×1024, 512 tokens", "transformers", {"vocab": 30522, "context": 512, "classes": 2}, 4, 2, rate=1e-3),
    "distilbert": Model("DistilBERT, 256 tokens", "transformers", {"vocab": 30522, "context": 256, "classes": 2}, 8, 2, rate=1e-3),
    "albert": Model("ALBERT-base, 256 tokens", "transformers", {"vocab": 30000, "context": 256, "classes": 2}, 4, 2, rate=1e-3),
    "qwen2": Model("Qwen2 shape 4×1024, 4 key heads, 512 tokens", "transformers", {"vocab": 32000, "context": 512}, 2, 2, rate=1e-3),
    "lstm-1024": Model("LSTM 2×1024, 5,000 words, 128 tokens", "own", {"vocab": 5000, "context": 128}, 64, 2),
    "unet-3d": Model("3-D U-Net, 32×64×64", "own", {"sample": (1, 32, 64, 64), "classes": 4, "labels": (32, 64, 64)}, 2, 4, rate=0.1),
    "r3d-18": Model("r3d_18, 8 frames of 112²", "torchvision", {"sample": (3, 8, 112, 112), "classes": 100}, 2, 2, rate=1e-3),
    "wav2vec2-convolutions": Model("wav2vec 2.0's convolutions, 2 s", "own", {"sample": (32000,), "classes": 100}, 4, 3, rate=0.1),
    "diffusion-unet": Model("diffusion U-Net, 64²", "diffusers", {"sample": (3, 64, 64), "classes": 8, "labels": (64, 64)}, 4, 3, images=True),
    "cyclegan": Model("CycleGAN's generator, 128²", "own", {"sample": (3, 128, 128), "classes": 3, "labels": (128, 128)}, 4, 3, images=True),
    "groupnorm-resnet50": Model("ResNet-50 with GroupNorm, 128²", "own", {"sample": (3, 128, 128), "classes": 1000}, 8, 4, rate=1e-3, images=True),
    "tcn": Model("temporal convolutions 6×128, 1,024 steps", "own", {"sample": (16, 1024), "classes": 100}, 32, 3),
    **{f"{library}/{name}": Model(f"{name}, 224²", library, {"image": 224}, 8, 2, rate=1e-3, images=True)
       for library, names in {
           "torchvision": ["densenet121", "efficientnet_v2_s", "maxvit_t", "mnasnet1_0", "mobilenet_v2", "regnet_y_1_6gf", "resnet18",
                           "resnext50_32x4d", "shufflenet_v2_x1_0", "squeezenet1_1", "swin_t", "vgg16_bn", "wide_resnet50_2"],
           "timm": ["coat_lite_mini", "convmixer_768_32", "cspdarknet53", "davit_tiny", "gernet_m", "ghostnet_100", "hrnet_w18_small",
                    "levit_256", "mixer_b16_224", "mobilevit_s", "poolformer_s12", "regnetz_b16", "res2net50_26w_4s", "rexnet_150",
                    "seresnext50_32x4d", "xcit_tiny_12_p16_224"],
       }.items() for name in names},
}
# The batches of REAL_MODELS on a GPU.
GPU_BATCHES = {"resnet50-224": 64, "gpt2-124m": 32, "vit-b16": 64, "bert-base": 64, "llama": 16, "efficientnet-b0": 64, "mobilenet-v3-l": 128,
               "convnext-t": 64, "dlrm": 4096, "fcn-resnet50": 16, "deeplab-v3": 32, "lstm-wikitext": 80, "gru-speech": 64}
# For data parallelism beside others.
SHARED_MODELS = {"mlp8": Model("MLP 8×1024", "mlp", {"depth": 8, "width": 1024}, 256, 8)}
ALL_MODELS = {**MODELS, **GPU_MODELS, **REAL_MODELS, **MORE_MODELS, **SHARED_MODELS}

# The defaults of `pipetrain new` (src/zoo/zoo.cpp): PyTorch's side needs all sizes.
DEFAULTS = {
    "mlp": {"image": 28, "channels": 1, "classes": 10},
    "lenet": {"image": 28, "channels": 1, "classes": 10},
    "resnet18": {"image": 32, "channels": 3, "classes": 10, "width": 64},
    "resnet50": {"image": 224, "channels": 3, "classes": 1000, "width": 64},
    "vgg": {"image": 32, "channels": 3, "classes": 10, "width": 64},
    "mobilenet": {"image": 32, "channels": 3, "classes": 10, "width": 32},
    "unet": {"image": 64, "channels": 3, "classes": 2, "width": 32, "depth": 4},
    "gpt": {},
    "bert": {"classes": 2, "width": 256, "depth": 4, "heads": 4, "vocab": 30522, "context": 128},
    "lstm": {},
}

MOMENTUM = 0.9


def sizes_of(model):
    return {**DEFAULTS[model.network], **model.sizes}


def new_flags(model):
    return [word for size, value in model.sizes.items() for word in (f"--{size}", str(value))]
