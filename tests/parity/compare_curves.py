#!/usr/bin/env python3
"""Compares pipetrain with recorded curves of an independent PyTorch interpreter of ONNX graphs.

For each network: the loss of every step (SGD, the settings stand in curves.json), which tensors are
trained and which are not, and how far each trained tensor moved.

    python3 compare_curves.py PIPETRAIN MODELS_FOLDER CURVES_FOLDER [--only NAME ...]

MODELS_FOLDER holds NAME.onnx; CURVES_FOLDER curves.json and NAME.npz (inputs by name, labels).
Needs numpy and onnx. Exit code 1 if anything differs.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pipetrain_run import RunFailed, initializers, loss_deviation, run, train

LOSS_TOLERANCE = 1e-4
CHANGE_TOLERANCE = 2e-2
# Biases of attention keys have a true gradient of zero; they move by rounding alone.
NEGLIGIBLE_CHANGE = 1e-9

LOSS_OF_TASK = {
    "softmax_ce": "cross-entropy",  # logits (N, C), labels (N)
    "token_ce": "cross-entropy",  # logits (N, T, V), labels (N, T)
    "pixel_ce": "cross-entropy",  # logits (N, C, H, W), labels (N, H, W)
    "causal_lm": "causal-lm",  # logits (N, T, V), no labels: the input moved by one token
    "bce_logits": "bce",  # a trailing Sigmoid is stripped
    "mse": "mse",
}


@dataclass(frozen=True)
class Case:
    """One recorded run of a network. The main run has no name."""

    name: str
    losses: list
    labels: str | None
    loss: str
    bn: str = "as-file"
    tie: str = "auto"

    @property
    def flags(self):
        return ["--loss", self.loss, "--bn", self.bn, "--tie", self.tie]


def cases(network):
    """The recorded runs of a network; copies are trained apart but for the run called tied."""
    labels = None if network["task"] == "causal_lm" else "labels"
    main = Case("", network["loss"], labels, LOSS_OF_TASK[network["task"]])
    yield main
    for name, variant in network.get("variants", {}).items():
        case = replace(main, name=name, losses=variant["loss"])
        if name in LOSS_OF_TASK:
            yield replace(case, labels=variant["labels"], loss=LOSS_OF_TASK[name])
        elif name.startswith("bn_"):
            yield replace(case, bn=name.removeprefix("bn_"))
        elif name == "tied":
            yield replace(case, tie="graph")


def parameters_of(binary, model, loss):
    return json.loads(run([binary, "inspect", model, "--loss", loss, "--json"]))["parameters"]


def check_parameters(report, network):
    """Compares which tensors are trained; returns a list of sentences about differences."""
    trained = {p["name"] for p in report if p["trainable"]}
    copies = {copy for names in network["copies"].values() for copy in names}
    expected = set(network["trainable"])
    still = set(network["frozen"]) | set(network["running_stats"])
    missing = expected - trained
    wrong = still & trained
    # Copies reached through an Identity have names in the file. Those split at their consumers have
    # none, so only their number can be compared.
    named = {copy for copy in copies if "@" not in copy}
    missing |= named - trained
    others = trained - expected - named - wrong
    problems = []
    if missing:
        problems.append("not trained: " + ", ".join(sorted(missing)))
    if wrong:
        problems.append("trained, should not be: " + ", ".join(sorted(wrong)))
    if len(others) != len(copies - named):
        listed = ", ".join(sorted(others)) or "none"
        problems.append(f"expected {len(copies - named)} separated copies, got: {listed}")
    return problems


def check_changes(report, model, trained, network):
    """Compares how far each tensor moved; returns a list of sentences about differences."""
    before, after = initializers(model), initializers(trained)
    expected = dict(network["max_change"])
    expected.update({name: 0.0 for name in network["frozen"]})
    expected.update(network["running_stats"])

    def moved(name, original):
        return float(np.max(np.abs(after[name].astype(np.float64) - before.get(name, before[original]))))

    # Names, how far they moved, how far they should have, and where they started. Copies split at
    # their consumers: which of them keeps the name in the file differs between the two programs, so
    # they are compared in the order of their changes.
    found = []
    for original, names in network["copies"].items():
        if not all("@" in name for name in names):
            continue
        ours = [original] + [p["name"] for p in report if p["reason"].startswith(f"copy of {original},")]
        theirs = sorted(expected.pop(name) for name in [original, *names])
        changes = sorted((moved(name, original), name) for name in ours if name in after)
        found += [(name, change, right, original) for (change, name), right in zip(changes, theirs)]
        if len(changes) != len(theirs):
            found.append((f"{original} and its copies", len(changes), len(theirs), original))
    found += [(name, moved(name, name), change, name) for name, change in expected.items() if name in after and name in before]
    problems = []
    for name, change, right, original in found:
        rounding = 20 * float(np.finfo(np.float32).eps) * float(np.max(np.abs(before[original])))
        if abs(change - right) > CHANGE_TOLERANCE * right + rounding + NEGLIGIBLE_CHANGE:
            problems.append(f"{name} moved by {change:.3e}, expected {right:.3e}")
    return problems


def write_data(recorded, label_key, path):
    arrays = {name: recorded[name] for name in recorded.files if not name.startswith("labels")}
    if label_key is not None:
        arrays["labels"] = recorded[label_key]
    np.savez(path, **arrays)


def compare_case(arguments, name, network, case, setup, folder):
    """Runs one case; returns its deviation and the problems found."""
    model = arguments.models / f"{name}.onnx"
    data = folder / "data.npz"
    write_data(np.load(arguments.curves / f"{name}.npz"), case.labels, data)
    flags = ["--optimizer", setup["optimizer"], "--lr", setup["lr"]]
    flags += ["--momentum", setup["momentum"], "--weight-decay", setup["weight_decay"]]
    flags += ["--batch-size", network["batch"], "--max-steps", len(case.losses)]
    flags += ["--dropout", "off", *case.flags, *arguments.flags]
    losses, trained = train(arguments.binary, model, data, folder, flags=flags)
    deviation = loss_deviation(losses, case.losses)
    problems = []
    if not deviation <= LOSS_TOLERANCE:
        problems.append(f"loss differs by {deviation:.1e}")
    if not case.name:
        report = parameters_of(arguments.binary, model, case.loss)
        problems += check_parameters(report, network)
        problems += check_changes(report, model, trained, network)
    return deviation, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("curves", type=Path)
    parser.add_argument("--only", nargs="+", default=None, metavar="NAME")
    parser.add_argument("--no-variants", action="store_true", help="only the main run of each")
    parser.add_argument(
        "--flags", default="--threads 1", type=str.split, help="further flags for pipetrain"
    )
    arguments = parser.parse_args()

    recorded = json.loads((arguments.curves / "curves.json").read_text())
    failures = 0
    print(f"{'network':<20} {'case':<10} {'loss differs':>12}  result")
    for name, network in recorded["models"].items():
        if arguments.only and name not in arguments.only:
            continue
        for case in cases(network):
            if case.name and arguments.no_variants:
                continue
            with tempfile.TemporaryDirectory() as folder:
                try:
                    deviation, problems = compare_case(
                        arguments, name, network, case, recorded["setup"], Path(folder)
                    )
                except RunFailed as failure:
                    deviation, problems = float("nan"), [str(failure)]
            failures += bool(problems)
            verdict = "; ".join(problems) if problems else "ok"
            print(f"{name:<20} {case.name:<10} {deviation:>12.1e}  {verdict}", flush=True)
    print(f"{failures} of the cases differ" if failures else "all agree")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
