#!/usr/bin/env python3
"""Trains the networks of goldens/ with pipetrain and compares with what PyTorch did.

    python3 compare.py PIPETRAIN [GOLDENS_FOLDER] [--stages S ...] [--only NAME ...]

Compared are the loss of every step and the weights after the last. Needs numpy and onnx. Exit code
1 if anything differs.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from pipetrain_run import RunFailed, initializers, loss_deviation, train

LOSS_TOLERANCE = 1e-4
# Of the norm of a tensor, and of the distance that it moved in training.
WEIGHT_TOLERANCE = 1e-3
MOVEMENT_TOLERANCE = 2e-2
# PyTorch differs from itself too, between 1 and 2 threads and between float32 and float64: this
# many times that is granted to a tensor, and to the movement of one that moves by a few units in
# the last place only.
SPREAD_FACTOR = 3
MOVEMENT_SPREAD_FACTOR = 10


def norm(values):
    return float(np.linalg.norm(np.asarray(values, np.float64)))


def compare_weights(start, trained, expected, golden):
    """Compares tensor by tensor.

    Returns the worst deviation of a tensor's norm, the worst of its movement, and a list of
    sentences about what is beyond the tolerances.
    """
    worst, worst_moved, problems = 0.0, 0.0, []
    for name, value in expected.items():
        if name in golden["zero_gradient"]:
            continue
        if name not in trained:
            problems.append(f"{name} is missing")
            continue
        difference = norm(trained[name].astype(np.float64) - value)
        moved = norm(value.astype(np.float64) - start[name])
        spread = max(golden["spread"][name], golden["weights_fp32_vs_fp64"][name])
        deviation = difference / norm(value)
        relative = difference / moved
        worst, worst_moved = max(worst, deviation), max(worst_moved, relative)
        limit = max(WEIGHT_TOLERANCE, SPREAD_FACTOR * spread)
        movement_spread = MOVEMENT_SPREAD_FACTOR * spread * norm(value) / moved
        if not (deviation <= limit and relative <= max(MOVEMENT_TOLERANCE, movement_spread)):
            problems.append(f"{name} differs by {deviation:.1e}, {relative:.1e} of its movement")
    return worst, worst_moved, problems


def compare_case(binary, golden_path, stages, flags, folder):
    """Runs one golden on a number of stages; returns its deviations and the problems found."""
    golden = json.loads(golden_path.read_text())
    goldens = golden_path.parent
    model = goldens / golden["model"]
    command = ["--optimizer", golden["optimizer"], "--lr", golden["lr"]]
    # PyTorch decays every tensor of a group; the default here leaves norms and biases alone.
    command += ["--weight-decay", f"*={golden['weight_decay']}", "--loss", golden["loss"]]
    command += ["--batch-size", golden["batch"], "--max-steps", golden["steps"]]
    for setting in ("momentum", "eps"):
        if setting in golden:
            command += [f"--{setting}", golden[setting]]
    if stages > 1:
        command += ["--gpus", stages]
    losses, path = train(binary, model, goldens / golden["data"], folder, flags=command + flags)
    loss = loss_deviation(losses, golden["losses"])
    with np.load(str(golden_path.with_suffix("")) + ".weights.npz") as expected:
        weight, moved, problems = compare_weights(
            initializers(model), initializers(path), dict(expected), golden
        )
    if not loss <= LOSS_TOLERANCE:
        problems.insert(0, f"loss differs by {loss:.1e}")
    return loss, weight, moved, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=Path)
    default = Path(__file__).resolve().parent / "goldens"
    parser.add_argument("goldens", type=Path, nargs="?", default=default)
    parser.add_argument("--stages", type=int, nargs="+", default=[1])
    parser.add_argument("--only", nargs="+", default=None, metavar="NAME")
    parser.add_argument(
        "--flags", default="--threads 1", type=str.split, help="further flags for pipetrain"
    )
    arguments = parser.parse_args()

    paths = sorted(arguments.goldens.glob("*.*.json"))
    if arguments.only:
        paths = [p for p in paths if p.name.split(".")[0] in arguments.only]
    if not paths:
        sys.exit("no goldens to compare with")
    failures = 0
    print(f"{'network':<24} stages {'loss':>8} {'weights':>8} {'movement':>8}  result")
    for path in paths:
        for stages in arguments.stages:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    *deviations, problems = compare_case(
                        arguments.binary, path, stages, arguments.flags, Path(folder)
                    )
                except RunFailed as failure:
                    deviations, problems = [float("nan")] * 3, [str(failure)]
            failures += bool(problems)
            numbers = " ".join(f"{d:>8.1e}" for d in deviations)
            verdict = "; ".join(problems) if problems else "ok"
            print(f"{path.stem:<24} {stages:>6} {numbers}  {verdict}", flush=True)
    print(f"{failures} of the cases differ" if failures else "all agree")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
