"""Runs the pipetrain program for the comparisons of this folder and reads back what it did."""

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper


class RunFailed(Exception):
    """The program ended with an error; the text is its command line and the end of its messages."""


def run(command):
    """Runs a command line and returns its standard output."""
    command = [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = done.stderr.strip()[-2000:]
        raise RunFailed(f"exit code {done.returncode} from: {' '.join(command)}\n{tail}")
    return done.stdout


def train(binary, model, data, folder, *, flags):
    """Trains `model` on `data` without shuffling, pipeline noise or a learning rate schedule.

    Returns the losses of all steps and the path of the trained model. `folder` takes the files of
    the run.
    """
    folder = Path(folder)
    events = folder / "events.jsonl"
    trained = folder / "trained.onnx"
    command = [binary, "train", "--model", model]
    if data is not None:
        command += ["--data", data]
    command += ["--no-shuffle", "--micro-batches", "1", "--lr-schedule", "constant"]
    command += ["--device", "cpu", "--log-every", "1"]
    command += ["--run-dir", folder / "run", "--metrics", events, "-o", trained]
    run(command + list(flags))
    return step_losses(events), trained


def step_losses(events):
    losses = []
    for line in Path(events).read_text().splitlines():
        record = json.loads(line)
        if record.get("event") == "step":
            losses.append(float("nan") if record["loss"] is None else record["loss"])
    return np.array(losses)


def initializers(path):
    """The tensors of an ONNX file by name."""
    model = onnx.load(path)
    return {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}


def loss_deviation(losses, expected):
    """Largest relative difference of two loss curves; infinite if one of them is too short."""
    expected = np.asarray(expected)
    if len(losses) != len(expected):
        return float("inf")
    difference = np.max(np.abs(losses - expected) / np.abs(expected))
    return float("inf") if np.isnan(difference) else float(difference)
