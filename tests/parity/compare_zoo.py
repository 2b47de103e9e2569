#!/usr/bin/env python3
"""Trains every network of `pipetrain new` for three steps and compares with what PyTorch did (goldens/zoo.json).

    python3 compare_zoo.py PIPETRAIN [--stages S ...] [--only NAME ...]

Compared are the losses and, by projections, how far each tensor moved, running statistics included. Needs numpy and
onnx. Exit code 1 if anything differs.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import zoo_cases
from pipetrain_run import RunFailed, initializers, loss_deviation, train

LOSS_TOLERANCE = 2e-5
# Of a tensor's movement; more is granted where PyTorch's own float32 is further from its float64.
MOVEMENT_TOLERANCE = 2e-3
NOISE_FACTOR = 10
SHOWN = 5  # problems of one case
# Of the largest projection that moved: what stands still in truth may tremble by that much.
FLOOR = 1e-7


def problems_of(golden, start, trained):
    """Sentences about tensors that moved otherwise than PyTorch's, and the worst deviation."""
    worst, problems = 0.0, []
    for name, expected in golden["tensors"].items():
        begin = start[name].astype(np.float64)
        if not np.isclose(zoo_cases.projections(begin)[0], expected["start"], rtol=1e-5, atol=1e-4):
            problems.append(f"{name} begins with other values than when the golden was made: run make_zoo_goldens.py")
            continue
        moved = zoo_cases.projections(trained[name].astype(np.float64) - begin)
        off = max(abs(a - b) for a, b in zip(moved, expected["moved"]))
        size = max(expected["norm"], FLOOR * np.linalg.norm(begin))
        # Two units in the last place of every number.
        rounding = 2.4e-7 * float(np.linalg.norm(begin))
        limit = MOVEMENT_TOLERANCE * size + NOISE_FACTOR * expected["float32"] + rounding
        worst = max(worst, off / max(limit, 1e-30))
        if not off <= limit:
            problems.append(f"{name} moved otherwise: by {off:.1e} of {size:.1e}")
    return worst, problems


def compare(binary, name, golden, stages, flags, folder):
    """Runs one network; returns the deviation of its losses, the worst of its tensors and what is wrong."""
    model, data = folder / f"{name}.onnx", folder / "data.npz"
    zoo_cases.write_model(binary, name, model)
    x, y = zoo_cases.batch_of(name, zoo_cases.CASES[name], zoo_cases.BATCH * zoo_cases.STEPS)
    np.savez(data, x=x, y=y)
    command = ["--optimizer", "sgd", "--lr", zoo_cases.rate_of(name), "--momentum", zoo_cases.MOMENTUM, "--loss", "cross-entropy"]
    command += ["--batch-size", zoo_cases.BATCH, "--max-steps", zoo_cases.STEPS, "--normalize", "none", *flags]
    if stages > 1:
        command += ["--gpus", stages]
    losses, path = train(binary, model, data, folder, flags=command)
    loss = loss_deviation(losses, golden["losses"])
    worst, problems = problems_of(golden, initializers(model), initializers(path))
    if not loss <= LOSS_TOLERANCE + NOISE_FACTOR * golden["float32"]:
        problems.insert(0, f"losses differ by {loss:.1e}")
    return loss, worst, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=Path)
    parser.add_argument("--stages", type=int, nargs="+", default=[1])
    parser.add_argument("--only", nargs="+", default=None, metavar="NAME")
    parser.add_argument("--flags", default="--threads 1", type=str.split, help="further flags for pipetrain")
    arguments = parser.parse_args()
    goldens = json.loads((Path(__file__).resolve().parent / "goldens" / "zoo.json").read_text())
    failures = 0
    for name, golden in goldens.items():
        if arguments.only and name not in arguments.only:
            continue
        for stages in arguments.stages:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    loss, worst, problems = compare(arguments.binary, name, golden, stages, arguments.flags, Path(folder))
                except RunFailed as failure:
                    loss, worst, problems = float("nan"), float("nan"), [str(failure)]
            failures += bool(problems)
            more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
            verdict = "; ".join(problems[:SHOWN]) + more if problems else "ok"
            print(f"{name:<10} {stages} stages: losses {loss:.1e}, movement {worst:.2f} of what is granted: {verdict}", flush=True)
    print(f"{failures} cases differ" if failures else "all agree")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
