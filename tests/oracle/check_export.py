#!/usr/bin/env python3
"""Checks the ONNX file that pipetrain writes, with ONNX's own checker and ONNX Runtime.

    check_export.py PIPETRAIN MODELS_FOLDER

The digits network is trained for two epochs on two stages. Then: the checker accepts the file; ONNX Runtime computes the
loss and the accuracy that `pipetrain eval` reports; nothing but the bytes of trained tensors and running statistics,
and metadata on the training, differs from the file that was given; and zero steps give that file byte for byte. Exit code 1 if anything fails.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

LOSS_TOLERANCE = 1e-4

failures = 0


def check(what, holds, detail=""):
    global failures
    failures += not holds
    print(f"{'ok    ' if holds else 'FAILED'}  {what}{'  ' + detail if detail else ''}", flush=True)


def run(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode} from: {program} {' '.join(map(str, arguments))}\n{done.stderr[-2000:]}")
    return done.stdout


def load_digits(path):
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    return table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1].astype(np.int64)


def runtime_scores(model, pixels, labels):
    """Mean cross-entropy and accuracy by ONNX Runtime."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {session.get_inputs()[0].name: pixels})
    logits = logits.astype(np.float64)
    largest = logits.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(logits - largest).sum(axis=1)) + largest[:, 0]
    loss = (log_sum - logits[np.arange(len(labels)), labels]).mean()
    return loss, (logits.argmax(axis=1) == labels).mean()


def without_contents(path):
    """The file's message without the bytes of its initializers and without how it was trained; those bytes by name; the size of the rest."""
    model = onnx.load(path, load_external_data=False)
    contents = {}
    kept = [entry for entry in model.metadata_props if not entry.key.startswith("pipetrain.")]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    size = model.ByteSize()
    for tensor in model.graph.initializer:
        contents[tensor.name] = tensor.raw_data
        tensor.raw_data = b""
    return model.SerializeToString(deterministic=True), contents, size


def main():
    program, models = os.path.abspath(sys.argv[1]), Path(sys.argv[2]).resolve()
    original, data = models / "digits-cnn.onnx", models / "digits.csv.gz"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        trained = Path("trained.onnx")
        run(program, "train", "--model", original, "--data", data, "--device", "cpu", "--gpus", 2, "--epochs", 2,
            "--lr", "2e-3", "--run-dir", "run", "-o", trained)

        try:
            onnx.checker.check_model(str(trained), full_check=True)
            check("onnx.checker accepts the trained file", True)
        except onnx.checker.ValidationError as error:
            check("onnx.checker accepts the trained file", False, str(error))

        ours = json.loads(run(program, "eval", trained, "--data", data, "--device", "cpu", "--json"))
        loss, accuracy = runtime_scores(trained, *load_digits(data))
        check("accuracy is ONNX Runtime's", ours["accuracy"] == accuracy, f"{ours['accuracy']:.6f} and {accuracy:.6f}")
        check("loss is ONNX Runtime's", abs(ours["loss"] - loss) <= LOSS_TOLERANCE, f"{ours['loss']:.6f} and {loss:.6f}")
        check("two epochs taught something", accuracy > 0.6)

        before, old, old_size = without_contents(original)
        after, new, new_size = without_contents(trained)
        check("nothing but initializers and how they were trained differs", before == after)
        check("the rest has its old size", old_size == new_size)
        changed = {name for name in old if old[name] != new[name]}
        rules = json.loads(run(program, "inspect", original, "--json"))["parameters"]
        taught = {rule["name"] for rule in rules if rule["use"] in ("trained", "running")}
        check("exactly the parameters and running statistics changed", changed == taught,
              f"{len(changed)} of {len(old)}; {' '.join(sorted(changed ^ taught))}")
        check("all new numbers are finite",
              all(np.isfinite(np.frombuffer(new[name], np.float32)).all() for name in changed))

        untouched = Path("untouched.onnx")
        run(program, "train", "--model", original, "--data", data, "--device", "cpu", "--max-steps", 0, "--run-dir", "zero",
            "-o", untouched)
        check("zero steps give the identical file", untouched.read_bytes() == original.read_bytes())
        os.chdir("/")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
