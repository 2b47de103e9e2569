#!/usr/bin/env python3
"""Replicas that wait and replicas that do not, all equally fast and with a slow one: samples per second and loss curves.

    bench/slow_replica.py [--pipetrain build/pipetrain] [--replicas 2] [--slowness 3] [--seconds 30] [--rounds 2] [--modes sync async:staleness=4 backup:1]

Every replica is a process of one thread, started by mpirun. They train a GPT of 2×64 on the text of docs/, byte by byte, with
AdamW. The last one is slowed down by signals: of every 30 ms it runs 30 / SLOWNESS ms. The loss at a time is the mean over the
training steps of the last fifth before it. Modes run in turn. Prints a table. Needs mpirun and a core for each replica.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PERIOD = 0.03  # seconds


def ranks_below(process):
    """Training processes by rank, as mpirun numbers them."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = dict(word.split(b"=", 1) for word in (folder / "environ").read_bytes().split(b"\0") if b"=" in word)
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if parent == process.pid and b"OMPI_COMM_WORLD_RANK" in words:
            found[int(words[b"OMPI_COMM_WORLD_RANK"])] = int(folder.name)
    return found


def slow_down(process, rank, slowness):
    """Stops a process for a part of each period until all have ended."""
    while process.poll() is None:
        victim = ranks_below(process).get(rank)
        if victim:
            break
        time.sleep(0.05)
    try:
        while process.poll() is None:
            os.kill(victim, signal.SIGSTOP)
            time.sleep(PERIOD * (1 - 1 / slowness))
            os.kill(victim, signal.SIGCONT)
            time.sleep(PERIOD / slowness)
    except ProcessLookupError:
        pass


def train(arguments, folder, mode, slow):
    """[(seconds since the first step, loss)] of one run."""
    with tempfile.TemporaryDirectory() as place:
        events = pathlib.Path(place, "events.jsonl")
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", arguments.replicas, arguments.pipetrain, "train", "-m", folder / "gpt.onnx",
                   "--data", folder / "text.txt", "--device", "cpu", "--threads", 1, "--replicas", arguments.replicas,
                   "--batch-size", arguments.batch, "--optimizer", "adamw", "--lr", arguments.rate, "--lr-schedule", "constant", "--epochs", 1_000_000,
                   "--max-time", arguments.seconds, "--save-every", "never", "--log-every", 1, "--run-dir", pathlib.Path(place, "run"), "--metrics", events, "-q",
                   *([] if mode == "sync" else ["--replica-mode", mode])]
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, env=environment)
        if slow:
            threading.Thread(target=slow_down, args=(process, arguments.replicas - 1, arguments.slowness), daemon=True).start()
        if process.wait() != 0:
            sys.exit(f"{mode}: exit code {process.returncode}")
        lines = [json.loads(line) for line in events.read_text().splitlines()]
    steps = [(line["t"], line["loss"]) for line in lines if line["event"] == "step"]
    return [(t - steps[0][0], loss) for t, loss in steps]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pipetrain", type=pathlib.Path, default="build/pipetrain")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--slowness", type=float, default=3)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.003)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--modes", nargs="+", default=["sync", "async:staleness=4", "backup:1"])
    arguments = parser.parse_args()
    arguments.pipetrain = arguments.pipetrain.resolve()
    times = [arguments.seconds * part for part in (0.05, 0.1, 0.2, 0.4, 0.7, 0.95)]
    rates, losses = {}, {}
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        subprocess.run([arguments.pipetrain, "new", "gpt", "--depth", "2", "--width", "64", "--heads", "4", "--vocab", "256", "--context", "64", "-q",
                        "-o", folder / "gpt.onnx"], check=True)
        (folder / "text.txt").write_text("".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))))
        for _ in range(arguments.rounds):
            for mode in arguments.modes:
                for slow in (False, True):
                    steps = train(arguments, folder, mode, slow)
                    rates.setdefault((mode, slow), []).append(len(steps) / steps[-1][0])
                    for when in times:
                        window = [loss for t, loss in steps if 0.8 * when <= t <= when]
                        losses.setdefault((mode, slow, when), []).append(statistics.mean(window) if window else float("nan"))
    print("| mode | | updates/s | " + " | ".join(f"loss after {when:g} s" for when in times) + " |")
    print("|---|---|---:|" + "---:|" * len(times))
    for mode in arguments.modes:
        for slow in (False, True):
            found = " | ".join(f"{statistics.median(losses[mode, slow, when]):.2f}" for when in times)
            print(f"| `{mode}` | {'one slow' if slow else 'all equal'} | {statistics.median(rates[mode, slow]):.0f} | {found} |")


if __name__ == "__main__":
    main()
