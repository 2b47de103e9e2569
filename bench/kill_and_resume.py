#!/usr/bin/env python3
"""Kills training runs with SIGKILL at random moments, until they finish: resumed with --resume=auto, or under --restarts.

The trained model must have the same SHA-256 as that of an uninterrupted run, and no partial files may remain. With --restarts a run must also go on
from what it has kept, and it is measured how long it takes from a kill to the next step, and how many steps are computed again.

  python3 bench/kill_and_resume.py --program build/pipetrain --kills 100
  python3 bench/kill_and_resume.py --program build/pipetrain --restarts --kills 250 --seconds 1200
"""

import argparse
import hashlib
import math
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCHEDULES = {"gpipe": ["--micro-batches", "4"], "1f1b": ["--micro-batches", "4"], "pipedream": [],
             "pipedream-2bw": ["--micro-batches", "4"], "zb-v": ["--micro-batches", "4"]}
RESUMED = "gpipe,1f1b,pipedream,pipedream-2bw"
RESTARTED = "gpipe,1f1b,zb-v,pipedream"
# What pipetrain, launchers and schedulers set; as in tests/cli/program.py.
NOT_OF_USER = re.compile("(PIPETRAIN|SLURM|SRUN|PMI|OMPI_COMM_WORLD|DMLC)_|PMIX_(?!MCA_)|(TF_CONFIG|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE)$")
LONGEST = 60  # seconds to wait for a step
SURELY_KEPT = 8  # steps after which every schedule has kept a state: the first one, while the pipeline fills


def command(arguments, schedule, run):
    how = ["--restarts", "1000"] if arguments.restarts else ["--resume=auto", "--save-every", "1"]
    return [arguments.program, *how, "--run-dir", str(run), "--model", str(ROOT / "models/digits-cnn.onnx"),
            "--data", str(ROOT / "models/digits.csv.gz"), "--limit", "500", "--val-rows", "40", "--batch-size", "32",
            "--epochs", str(arguments.epochs), "--device", "cpu", "--gpus", "3", "--threads", "1", "--no-pin",
            "--schedule", schedule, *SCHEDULES[schedule], "--quiet"]


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


def journal_of(run):
    try:
        return (run / "journal.txt").read_text()
    except FileNotFoundError:
        return ""


def steps_in(journal):
    """The steps in a journal, in the order in which they were computed."""
    return [int(line.split()[0]) for line in journal.split("\n")[:-1] if line and line[0] != "#" and len(line.split()) > 1]


def steps_of(run):
    return steps_in(journal_of(run))


def has_begun_anew(before, now):
    """Whether a run has not gone on from what it had kept, by its journal before a kill and after the next step.

    A process that goes on adds an empty line and then its steps; one that begins anew replaces the journal."""
    added = now[len(before):]
    return len(steps_in(before)) >= SURELY_KEPT and (not now.startswith(before) or "\n\n" not in added or 1 in steps_in(added))


def child_of(process):
    """The training process below the one that restarts it; None: there is none now."""
    try:
        words = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return int(words[0]) if words else None
    except (FileNotFoundError, ProcessLookupError):
        return None


def wait_for_step(process, run, known):
    """Seconds until the journal has more than `known` steps; None: the run has ended, or it takes too long."""
    begin = time.monotonic()
    while time.monotonic() - begin < LONGEST:
        if len(steps_of(run)) > known:
            return time.monotonic() - begin
        if process.poll() is not None:
            return None
        time.sleep(0.005)
    return None


def restart(arguments, schedule, run, environment, most):
    """A run under --restarts of which the training process is killed up to `most` times. Returns kills, recovery times, steps done again, problems."""
    process = start(arguments, schedule, run, environment)
    kills, recoveries, again, problems = 0, [], [], []
    try:
        known = 0
        while kills < most and wait_for_step(process, run, known) is not None:
            time.sleep(random.uniform(0, arguments.between))
            child = child_of(process)
            if child is None:
                if process.poll() is not None:
                    break
                continue
            before = journal_of(run)
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed = time.monotonic()
            while child_of(process) == child and process.poll() is None:
                time.sleep(0.001)
            kills += 1
            if random.random() < 0.1:  # while it starts, too
                time.sleep(random.uniform(0, 0.1))
                child = child_of(process)
                if child is not None:
                    os.kill(child, signal.SIGKILL)
                    killed = time.monotonic()
                    kills += 1
            done = steps_of(run)
            known = len(done)
            if wait_for_step(process, run, known) is None:
                break
            recoveries.append(time.monotonic() - killed)
            now = journal_of(run)
            again.append((done[-1] if done else 0) + 1 - steps_in(now)[known])
            if has_begun_anew(before, now):
                problems.append(f"{run.name}: after {len(steps_in(before))} steps the run has begun anew")
    finally:
        if process.poll() is None and kills < most:
            process.terminate()
    if finish(process) != 0:
        sys.exit("the run was killed")
    return kills, recoveries, again, problems


def test_restarts(arguments, schedule, folder, environment):
    """Returns whether all runs ended alike."""
    reference = folder / f"{schedule}-whole"
    for _ in range(2):  # the first one also measures the kernels
        shutil.rmtree(reference, ignore_errors=True)
        if finish(start(arguments, schedule, reference, environment)) != 0:
            sys.exit("the reference was killed")
    expected = digest(reference)
    begin = time.monotonic()
    kills = runs = same = 0
    recoveries, again, problems = [], [], []
    while kills < arguments.kills and time.monotonic() - begin < arguments.seconds / len(arguments.schedules.split(",")):
        runs += 1
        run = folder / f"{schedule}-{runs}"
        result = restart(arguments, schedule, run, environment, min(arguments.kills - kills, arguments.kills_of_run))
        kills += result[0]
        recoveries += result[1]
        again += result[2]
        problems += result[3]
        same += digest(run) == expected
        if digest(run) != expected:
            problems.append(f"{run.name}: weights differ from the run that was not killed")
        if leftovers(run):
            problems.append(f"{run.name}: left behind {leftovers(run)}")
        if not list(run.glob("crash-*.txt")) and result[0]:
            problems.append(f"{run.name}: no crash report")
        shutil.rmtree(run)
    if not kills and arguments.kills > 0:
        problems.append("no training process was killed: every run has ended before")
    recoveries, again = recoveries or [math.nan], again or [math.nan]
    print(f"{schedule:<14} {kills} kills in {runs} runs: {same} ended with the same SHA-256; to the next step {statistics.median(recoveries):.3f} s "
          f"(median), {max(recoveries):.3f} s (maximum); steps computed again {statistics.median(again)} (median), {max(again)} (maximum)", flush=True)
    for problem in problems:
        print("  " + problem)
    return not problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.environ.get("PIPETRAIN", str(ROOT / "build/pipetrain")))
    parser.add_argument("--kills", type=int, default=100, help="for each schedule")
    parser.add_argument("--schedules")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--restarts", action="store_true", help="kill the training process below train --restarts")
    parser.add_argument("--seconds", type=float, default=1e9, help="of all runs under --restarts together; then no new one is started")
    parser.add_argument("--kills-of-run", type=int, default=25, help="under --restarts")
    parser.add_argument("--between", type=float, default=0.2, help="most seconds from a step to a kill, under --restarts")
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    arguments.schedules = arguments.schedules or (RESTARTED if arguments.restarts else RESUMED)
    arguments.epochs = arguments.epochs or (20 if arguments.restarts else 3)
    random.seed(arguments.seed)
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = {key: value for key, value in os.environ.items() if not NOT_OF_USER.match(key)}
        environment["PIPETRAIN_CACHE_DIR"] = str(folder / "cache")
        for schedule in arguments.schedules.split(","):
            if arguments.restarts:
                failed = not test_restarts(arguments, schedule, folder, environment) or failed
                continue
            kills, saving, runs, same, problems = test(arguments, schedule, arguments.kills, folder, environment)
            print(f"{schedule:<14} {kills} kills ({saving} while a checkpoint was being written) in {runs} runs: "
                  f"{same} ended with the same SHA-256", flush=True)
            for problem in problems:
                print("  " + problem)
            failed = failed or bool(problems)
    sys.exit(failed)


if __name__ == "__main__":
    main()
