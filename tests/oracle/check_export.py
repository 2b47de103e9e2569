#!/usr/bin/env python3
"""Trains the digits network and lets onnx and onnxruntime judge the exported file.

    python3 check_export.py PIPETRAIN MODEL DIGITS

Checks that onnx.checker accepts it, that onnxruntime gets the loss and accuracy that pipetrain reports (so the same
logits), that nothing but the content of trained tensors and running statistics differs from the input file, and that
zero steps give the identical file. Needs numpy, onnx and onnxruntime.
"""

import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"exit code {done.returncode} from: {' '.join(map(str, words))}\n{done.stderr}")
    return done.stdout


def main():
    binary, model, digits = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        train = [binary, "--model", model, "--data", digits, "--device", "cpu", "--gpus", 4, "--schedule", "1f1b", "-q"]
        run(*train, "--epochs", 3, "--run-dir", folder / "run", "-o", folder / "trained.onnx")
        run(*train, "--max-steps", 0, "--run-dir", folder / "zero", "-o", folder / "same.onnx")
        assert (folder / "same.onnx").read_bytes() == Path(model).read_bytes(), "zero steps changed the file"

        before, after = onnx.load(model), onnx.load(folder / "trained.onnx")
        onnx.checker.check_model(after, full_check=True)
        changed = []
        for old, new in zip(before.graph.initializer, after.graph.initializer, strict=True):
            if old.raw_data != new.raw_data:
                changed.append(old.name)
                new.raw_data = old.raw_data
        assert before.SerializeToString() == after.SerializeToString(), "more than tensors has changed"
        parameters = json.loads(run(binary, "inspect", model, "--json"))["parameters"]
        expected = {p["name"] for p in parameters if p["use"] != "frozen"}
        assert set(changed) == expected, f"changed: {set(changed) ^ expected}"

        rows = np.loadtxt(gzip.open(digits), delimiter=",")
        x, y = rows[:, :64].reshape(-1, 1, 8, 8).astype(np.float32), rows[:, 64].astype(int)
        session = onnxruntime.InferenceSession(folder / "trained.onnx", providers=["CPUExecutionProvider"])
        logits = session.run(None, {session.get_inputs()[0].name: x})[0].astype(np.float64)
        shifted = logits - logits.max(axis=1, keepdims=True)
        loss = float(np.mean(np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(y)), y]))
        accuracy = float(np.mean(logits.argmax(axis=1) == y))
        ours = json.loads(run(binary, "eval", folder / "trained.onnx", "--data", digits, "--device", "cpu", "--json"))
        assert abs(loss - ours["loss"]) <= 1e-4 * abs(loss), (loss, ours["loss"])
        assert accuracy == ours["accuracy"], (accuracy, ours["accuracy"])
    print(f"onnx.checker passes; onnxruntime: loss {loss:.6f} (pipetrain {ours['loss']:.6f}), accuracy {accuracy:.4f} "
          f"both; {len(changed)} tensors changed and nothing else; zero steps give the identical file")


if __name__ == "__main__":
    main()
