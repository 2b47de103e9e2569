"""Small sizes of the networks of `pipetrain new`, and what both sides compute about them without a file of data: inputs
and labels made by counting, and projections of tensors on random directions, a few numbers that no error is orthogonal
to. Needs numpy and onnx."""

import subprocess

import numpy as np
import onnx
from onnx import numpy_helper

BATCH = 8
STEPS = 3
RATE = 0.02
OFF_KINKS = ("resnet18", "mobilenet", "unet")  # see keep_off_kinks; their features start large
OFF_KINKS_RATE = 2e-4
MOMENTUM = 0.9
DIRECTIONS = 3

# name: sizes, as `pipetrain new` and zoo_networks.build() take them
CASES = {
    "mlp": {"image": 6, "channels": 1, "classes": 5, "width": 24, "depth": 3},
    "lenet": {"image": 20, "channels": 1, "classes": 7},
    "resnet18": {"image": 16, "channels": 3, "classes": 6, "width": 8},
    "vgg": {"image": 32, "channels": 3, "classes": 6, "width": 8},
    "mobilenet": {"image": 32, "channels": 3, "classes": 6, "width": 8},
    "unet": {"image": 16, "channels": 2, "classes": 3, "width": 4, "depth": 2},
    "gpt": {"width": 32, "depth": 2, "heads": 2, "vocab": 40, "context": 12},
    "lstm": {"width": 16, "depth": 2, "vocab": 40, "context": 12},
    "bert": {"classes": 3, "width": 32, "depth": 2, "heads": 2, "vocab": 40, "context": 12},
}


def scrambled(count, stream):
    """`count` unsigned 64-bit numbers that look random (the finaliser of SplitMix64)."""
    x = np.arange(count, dtype=np.uint64) + np.uint64(1 + (stream << 32))
    x *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


def integers(shape, below, stream):
    return (scrambled(int(np.prod(shape)), stream) % np.uint64(below)).astype(np.int64).reshape(shape)


def batch_of(name, sizes, samples):
    """Inputs and labels of a network of the zoo; images are multiples of 1/256 from -2 to 2."""
    if "vocab" in sizes:
        x = integers((samples, sizes["context"]), sizes["vocab"], 1)
        return x, np.roll(x, -1, axis=1) if "classes" not in sizes else integers((samples,), sizes["classes"], 2)
    image = (samples, sizes["channels"], sizes["image"], sizes["image"])
    x = ((integers(image, 1025, 1) - 512) / 256).astype(np.float32)
    pixels = (samples, sizes["image"], sizes["image"]) if name == "unet" else (samples,)
    return x, integers(pixels, sizes["classes"], 2)


def projections(tensor):
    """Sums of a tensor's numbers under random signs."""
    flat = np.asarray(tensor, np.float64).ravel()
    signs = [1.0 - 2.0 * (scrambled(flat.size, 10 + k) >> np.uint64(63)).astype(np.float64) for k in range(DIRECTIONS)]
    return [float(sign @ flat) for sign in signs]


def rate_of(name):
    return OFF_KINKS_RATE if name in OFF_KINKS else RATE


def write_model(binary, name, path):
    """Has pipetrain write the network of a case."""
    flags = [word for size, value in CASES[name].items() for word in (f"--{size}", str(value))]
    subprocess.run([binary, "new", name, *flags, "-q", "-o", path], check=True)
    if name in OFF_KINKS:
        keep_off_kinks(path)


def keep_off_kinks(path):
    """Has each BatchNormalization give numbers around 3, seldom below 0 or above 6.

    A number within rounding of where a rectifier begins or ends passes in one program and not in another; of a million
    some do, and two correct programs then differ by a hundredth (measured on MobileNetV2 between PyTorch's float32 and
    float64; 4e-6 with SiLU instead). Winograd convolutions round more than direct ones.
    """
    model = onnx.load(path)
    norms = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    values = {name: value for node in norms for name, value in ((node.input[1], 0.75), (node.input[2], 3.0))}
    for tensor in model.graph.initializer:
        if tensor.name in values:
            array = np.full(tensor.dims, values[tensor.name], np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, path)
