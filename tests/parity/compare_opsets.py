#!/usr/bin/env python3
"""Trains one network from its exports at several opsets: all must follow the one loss curve that PyTorch has.

    python3 compare_opsets.py PIPETRAIN

Reads goldens/opsets/. Needs numpy and onnx. Exit code 1 if a curve differs.
"""

import json
import sys
import tempfile
from pathlib import Path

from pipetrain_run import RunFailed, loss_deviation, train

TOLERANCE = 1e-5
FOLDER = Path(__file__).resolve().parent / "goldens" / "opsets"


def main():
    golden = json.loads((FOLDER / "curve.json").read_text())
    flags = ["--optimizer", "sgd", "--lr", golden["lr"], "--momentum", golden["momentum"], "--loss", "cross-entropy"]
    flags += ["--batch-size", golden["batch"], "--max-steps", golden["steps"], "--threads", "1"]
    failures = 0
    for path in sorted(FOLDER.glob("*.onnx")):
        with tempfile.TemporaryDirectory() as folder:
            try:
                losses, _ = train(sys.argv[1], path, FOLDER / "data.npz", folder, flags=flags)
                deviation = loss_deviation(losses, golden["losses"])
                verdict = "ok" if deviation <= TOLERANCE else "differs"
            except RunFailed as failure:
                deviation, verdict = float("nan"), str(failure)
        failures += verdict != "ok"
        print(f"{path.name:<28} {deviation:.1e}  {verdict}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
