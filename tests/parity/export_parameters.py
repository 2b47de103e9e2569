#!/usr/bin/env python3
"""Exports many networks twice, with different parameters and the same buffers, for compare_parameters.py.

    python3 export_parameters.py FOLDER [--only NAME ...] [--exporters dynamo torchscript training]

What differs between NAME.EXPORTER.first.onnx (fresh weights) and NAME.EXPORTER.second.onnx depends on
parameters, whatever the exporter made of names and shapes; what is equal is a constant of the network.
Needs torch, torchvision, timm, transformers, onnx and onnxscript. What cannot be exported is listed.
"""

import argparse
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import torch

import parameter_networks

SECONDS = 150  # for both exports of a network by one exporter


def move_parameters(network, seed):
    """Adds noise to what PyTorch would train, so that no two tensors or elements are equal."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                size = 0.01 + 0.05 * parameter.abs().mean()
                parameter.add_(torch.randn(parameter.shape, generator=random) * size)


def export(network, arguments, path, exporter):
    if exporter == "dynamo":
        torch.onnx.export(
            network, arguments, path, dynamo=True, external_data=False, verbose=False
        )
        return
    training = torch.onnx.TrainingMode
    evaluates = exporter == "torchscript"
    torch.onnx.export(
        network,
        arguments,
        path,
        dynamo=False,
        opset_version=17,
        training=training.EVAL if evaluates else training.TRAINING,
        do_constant_folding=evaluates,
    )


def export_twice(name, exporter, folder):
    torch.manual_seed(5)
    network, arguments = parameter_networks.NETWORKS[name]()
    network.train(exporter == "training")
    for turn in ("first", "second"):
        if turn == "second":
            move_parameters(network, 7)
        path = folder / f"{name}.{exporter}.{turn}.onnx"
        export(network, arguments, path.with_suffix(".part"), exporter)
        path.with_suffix(".part").rename(path)


def in_child(name, exporter, folder):
    """Exports in a process of its own; returns what went wrong, or nothing."""
    note = folder / f"{name}.{exporter}.error"
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        code = 0
        try:
            export_twice(name, exporter, folder)
        except BaseException as error:  # whatever an exporter throws
            note.write_text(f"{type(error).__name__}: {str(error).strip()[:300]}")
            code = 1
        os._exit(code)
    _, status = os.waitpid(child, 0)
    if status == 0:
        return ""
    text = note.read_text() if note.exists() else f"stopped by signal {status & 127}"
    note.unlink(missing_ok=True)
    return text.splitlines()[0] if text else "?"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=None, metavar="NAME")
    parser.add_argument("--exporters", nargs="+", default=["dynamo", "torchscript"])
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.only or parameter_networks.NETWORKS:
        for exporter in arguments.exporters:
            if (arguments.folder / f"{name}.{exporter}.second.onnx").exists():
                continue
            begin = time.time()
            problem = in_child(name, exporter, arguments.folder)
            print(f"{name:28} {exporter:12} {time.time() - begin:6.1f} s  {problem}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
