"""Prepares the common input of both sides: the initial weights of an ONNX file as arrays, and one batch. Needs numpy and onnx.

    python3 prepare.py MODEL FOLDER     reads FOLDER/model.onnx, writes FOLDER/weights.npz and FOLDER/batch.npz
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from models import ALL_MODELS, sizes_of


def batch_of(model):
    """Inputs and labels; of a language model, the labels are the tokens that follow."""
    random = np.random.default_rng(1)
    sizes = sizes_of(model)
    if "vocab" in sizes:
        x = random.integers(0, sizes["vocab"], (model.batch, sizes["context"]))
        return x, random.integers(0, sizes["classes"], model.batch) if "classes" in sizes else np.roll(x, -1, axis=1)
    x = random.normal(size=(model.batch, sizes["channels"], sizes["image"], sizes["image"])).astype(np.float32)
    pixels = (sizes["image"], sizes["image"]) if model.network == "unet" else ()
    return x, random.integers(0, sizes["classes"], (model.batch, *pixels))


def main():
    name, folder = sys.argv[1], Path(sys.argv[2])
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(folder / "model.onnx").graph.initializer}
    np.savez(folder / "weights.npz", **{key: value for key, value in weights.items() if value.dtype == np.float32})
    x, y = batch_of(ALL_MODELS[name])
    np.savez(folder / "batch.npz", x=x, y=y)


main()
