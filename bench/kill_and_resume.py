#!/usr/bin/env python3
"""Kills training runs with SIGKILL at random moments and resumes them with --resume=auto, until they finish.

The trained model must have the same SHA-256 as that of an uninterrupted run, and no partial files may remain.

  python3 bench/kill_and_resume.py --program build/pipetrain --kills 100
"""

import argparse
import hashlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCHEDULES = {"gpipe": ["--micro-batches", "4"], "1f1b": ["--micro-batches", "4"], "pipedream": [],
             "pipedream-2bw": ["--micro-batches", "4"]}


def command(arguments, schedule, run):
    return [arguments.program, "--resume=auto", "--run-dir", str(run), "--model", str(ROOT / "models/digits-cnn.onnx"),
            "--data", str(ROOT / "models/digits.csv.gz"), "--limit", "500", "--val-rows", "40", "--batch-size", "32",
            "--epochs", str(arguments.epochs), "--device", "cpu", "--gpus", "3", "--threads", "1", "--no-pin",
            "--schedule", schedule, *SCHEDULES[schedule], "--save-every", "1", "--quiet"]


def start(arguments, schedule, run, environment):
    return subprocess.Popen(command(arguments, schedule, run), env=environment, stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process):
    """The exit code; anything but success or a kill is a failure."""
    error = process.stderr.read().decode()
    code = process.wait()
    if code not in (0, -signal.SIGKILL):
        sys.exit(f"exit code {code}: {error}")
    return code


def digest(run):
    return hashlib.sha256((run / "trained.onnx").read_bytes()).hexdigest()


def leftovers(run):
    return [path.name for path in run.rglob("*") if path.name.startswith(".") or path.name.endswith(".tmp")]


def test(arguments, schedule, kills, folder, environment):
    """Returns the numbers of kills, of kills during a checkpoint, of runs and of runs with equal weights, and the problems."""
    for attempt in range(2):  # the first one also measures the kernels
        begin = time.monotonic()
        reference = folder / f"{schedule}-whole-{attempt}"
        if finish(start(arguments, schedule, reference, environment)) != 0:
            sys.exit("the reference was killed")
        seconds = time.monotonic() - begin
    expected = digest(reference)
    done = saving = runs = same = 0
    problems = []
    while done < kills:
        runs += 1
        run = folder / f"{schedule}-{runs}"
        before = done
        while True:
            process = start(arguments, schedule, run, environment)
            if done < kills:
                try:
                    process.wait(random.uniform(0.02, seconds))
                except subprocess.TimeoutExpired:
                    process.kill()
            if finish(process) == 0:
                break
            done += 1
            saving += any(name.endswith(".tmp") for name in leftovers(run))
        if done == before:
            seconds *= 0.9  # the machine has become faster since the reference
        same += digest(run) == expected
        if digest(run) != expected:
            problems.append(f"{run.name}: weights differ from the run that was not killed")
        if leftovers(run):
            problems.append(f"{run.name}: left behind {leftovers(run)}")
        shutil.rmtree(run)
    return done, saving, runs, same, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.environ.get("PIPETRAIN", str(ROOT / "build/pipetrain")))
    parser.add_argument("--kills", type=int, default=100, help="for each schedule")
    parser.add_argument("--schedules", default=",".join(SCHEDULES))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PIPETRAIN_")}
        environment["PIPETRAIN_CACHE_DIR"] = str(folder / "cache")
        for schedule in arguments.schedules.split(","):
            kills, saving, runs, same, problems = test(arguments, schedule, arguments.kills, folder, environment)
            print(f"{schedule:<14} {kills} kills ({saving} while a checkpoint was being written) in {runs} runs: "
                  f"{same} ended with the same SHA-256", flush=True)
            for problem in problems:
                print("  " + problem)
            failed = failed or bool(problems)
    sys.exit(failed)


if __name__ == "__main__":
    main()
