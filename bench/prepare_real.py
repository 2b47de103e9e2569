"""Exports a network of real_networks.py by PyTorch's default exporter, and makes one batch.

    python3 prepare_real.py MODEL FOLDER [BATCH]     writes FOLDER/model.onnx and FOLDER/batch.npz

Networks with BatchNorm are exported with optimize=False, without which the exporter folds it away.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import torch

import real_networks


def main():
    warnings.filterwarnings("ignore")
    name, folder = sys.argv[1], Path(sys.argv[2])
    network = real_networks.build(name)
    inputs, labels = real_networks.batch_of(name, int(sys.argv[3]) if len(sys.argv) > 3 else None)
    np.savez(folder / "batch.npz", **inputs, labels=labels)
    normalizes = any(isinstance(part, torch.nn.modules.batchnorm._BatchNorm) for part in network.modules())
    tensors = tuple(torch.from_numpy(inputs[key]) for key in real_networks.inputs_of(name))
    torch.onnx.export(network, tensors, folder / "model.onnx", input_names=list(inputs), dynamo=True, optimize=not normalizes, verbose=False)


main()
