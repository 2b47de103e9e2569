#!/usr/bin/env python3
"""Compares which tensors of exported files pipetrain trains with what depends on PyTorch's parameters.

    python3 compare_parameters.py PIPETRAIN FOLDER [--only NAME ...] [--list N]

FOLDER is of export_parameters.py. A tensor is expected to be trained if it differs between the two
files of a network, or stands in one of them only, since the exporter has merged equal ones.
Needs numpy and onnx. Exit code 1 if a constant is trained or a parameter is not.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper


def tensors(path):
    """Initializers and Constants of the graph by name."""
    graph = onnx.load(path).graph
    out = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            out[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return {name: value for name, value in out.items() if value.dtype.kind == "f"}


def rules(binary, path):
    """What pipetrain says of each tensor, also where it cannot train the network."""
    command = [binary, "inspect", path, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(done.stderr.strip().splitlines()[-1][:200])
    return {rule["name"]: rule for rule in json.loads(done.stdout).get("parameters", [])}


def is_equal(left, right):
    return left.shape == right.shape and np.array_equal(left, right, equal_nan=True)


def compare(binary, first, second):
    """Counts, and (kind, file, name, shape, reason) of each tensor that is used wrongly."""
    values = [tensors(first), tensors(second)]
    counts, problems = Counter(), []
    for turn, path in enumerate((first, second)):
        found = rules(binary, path)
        for name, value in values[turn].items():
            rule = found.get(name)
            if rule is None:
                continue
            other = values[1 - turn].get(name)
            is_parameter = other is None or not is_equal(value, other)
            if other is None and turn == 0:
                continue  # merged: judged in the second file
            counts["parameters" if is_parameter else "constants"] += 1
            if is_parameter == rule["trainable"] or (rule["use"] == "running" and not is_parameter):
                continue
            kind = "missed" if is_parameter else "wrong"
            counts[kind] += 1
            counts[kind + " numbers"] += value.size
            problems.append((kind, turn + 1, name, value.shape, rule["reason"]))
    return counts, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=None, metavar="NAME")
    parser.add_argument("--list", type=int, default=0, metavar="N", help="tensors to list of each")
    arguments = parser.parse_args()
    total = Counter()
    for second in sorted(arguments.folder.glob("*.second.onnx")):
        name, exporter = second.name.split(".")[:2]
        if arguments.only and name not in arguments.only:
            continue
        first = second.with_name(second.name.replace("second", "first"))
        try:
            counts, problems = compare(arguments.binary, first, second)
        except Exception as error:
            print(f"{name:28} {exporter:12} {error}", flush=True)
            total["failed"] += 1
            continue
        total += counts
        total["files"] += 2
        print(
            f"{name:28} {exporter:12} {counts['parameters']:5} parameters, {counts['missed']:4} missed;"
            f" {counts['constants']:5} constants, {counts['wrong']:4} trained",
            flush=True,
        )
        for kind, turn, tensor, shape, reason in problems[: arguments.list]:
            print(f"    {kind:7}{turn} {tensor} {list(shape)}: {reason}")
    print(dict(total))
    return 1 if total["missed"] or total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
