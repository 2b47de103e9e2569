#!/usr/bin/env python3
"""Reads with MLflow what `--log-to mlflow:DIR` writes.

    check_mlflow.py PIPETRAIN MODELS_FOLDER

Metrics must be those of RUN/events.jsonl, step by step; a resumed run goes on in the same place. Exit code 1 if anything
fails, 77 without MLflow.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # which newer versions ask for
try:
    from mlflow.tracking import MlflowClient
except ImportError:
    print("skipped: MLflow is not installed")
    sys.exit(77)

failures = 0


def check(what, holds, detail=""):
    global failures
    failures += not holds
    print(f"{'ok    ' if holds else 'FAILED'}  {what}{'  ' + detail if detail else ''}", flush=True)


def main(program, models):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def run(*arguments):
            done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=600, cwd=folder)
            if done.returncode != 0:
                sys.exit(f"exit code {done.returncode} from: {arguments}\n{done.stderr[-2000:]}")

        run("train", models / "digits-cnn.onnx", "--data", models / "digits.csv.gz", "--val-split", "0.2", "--device", "cpu",
            "--max-steps", "12", "--val-every", "4", "--run-dir", "run", "--log-to", "mlflow:store", "--quiet")
        run("--resume", "run", "--max-steps", "16", "--quiet")
        client = MlflowClient(tracking_uri=(folder / "store").as_uri())
        check("the experiment", [each.name for each in client.search_experiments()] == ["Default"])
        (found,) = client.search_runs(["0"])
        check("the run has ended", found.info.status == "FINISHED" and found.info.end_time >= found.info.start_time)
        check("its name", found.info.run_name == "run", str(found.info.run_name))
        check("its parameters", found.data.params["seed"] == "1" and float(found.data.params["lr"]) > 0)
        events = [json.loads(line) for line in (folder / "run/events.jsonl").read_text().splitlines()]
        for kind, tag, field in [("step", "train/loss", "loss"), ("val", "val/loss", "loss"), ("val", "val/accuracy", "accuracy")]:
            expected = [(event["step"], event[field]) for event in events if event["event"] == kind]
            got = [(metric.step, metric.value) for metric in client.get_metric_history(found.info.run_id, tag)]
            check(tag, len(got) > 0 and got == expected, f"{len(got)} values")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()), Path(sys.argv[2]).resolve())
