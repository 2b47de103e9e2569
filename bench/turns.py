"""Runs of pipetrain in turn: each continues for a few steps while the others are stopped, so that changes in the
machine's speed affect all of them alike. Start-up and the first steps are not counted."""

import json
import os
import signal
import statistics
import subprocess
import time

from pipetrain_run import RunFailed, training_flags

POLL_SECONDS = 0.003


class StoppableRun:
    """A run that trains only during go_on(). A context manager: the run ends with its block."""

    def __init__(self, binary, model, folder, name, threads, micro_batches=1, stages=1, schedule=None):
        self.events_path = folder / f"{name}.jsonl"
        self.errors = open(folder / f"{name}.log", "w+")
        self.pending, self.events = "", None
        command = [binary, "train", *training_flags(model, folder, threads, micro_batches, bf16=False), "--save-every", "never",
                   "--epochs", 1_000_000, "--run-dir", folder / f"run-{name}", "--overwrite", "--metrics", self.events_path,
                   "-o", folder / f"{name}.onnx", "-q"]
        command += ["--gpus", stages, "--schedule", schedule] if stages > 1 else []
        self.process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=self.errors,
                                        env={**os.environ, "PIPETRAIN_CACHE_DIR": str(folder / "cache-turns")})
        self.wait_for(2)
        self.process.send_signal(signal.SIGSTOP)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.errors.close()
        if self.events:
            self.events.close()

    def finished_steps(self):
        """End times of the steps logged since the last call."""
        if self.events is None:
            if not self.events_path.exists():
                return []
            self.events = open(self.events_path)
        lines = (self.pending + self.events.read()).split("\n")
        self.pending = lines.pop()
        return [event["t"] for event in map(json.loads, lines) if event["event"] == "step"]

    def wait_for(self, steps):
        ends = []
        while len(ends) < steps:
            if self.process.poll() is not None:
                self.errors.seek(0)
                raise RunFailed(f"exit code {self.process.returncode}\n{self.errors.read().strip()[-1500:]}")
            ends += self.finished_steps()
            time.sleep(POLL_SECONDS)
        return ends

    def go_on(self, steps):
        """The ms of this many steps; the step in which the run was stopped does not count."""
        self.finished_steps()
        self.process.send_signal(signal.SIGCONT)
        ends = self.wait_for(steps + 1)[:steps + 1]
        self.process.send_signal(signal.SIGSTOP)
        return [1e3 * (b - a) for a, b in zip(ends, ends[1:])]


def in_turn(runs, turns, steps):
    """`runs`: name to StoppableRun. Returns name to step times (ms) of each turn; the order is reversed in every other turn."""
    found = {name: [] for name in runs}
    for turn in range(turns):
        names = list(runs) if turn % 2 == 0 else list(runs)[::-1]
        for name in names:
            found[name].append(runs[name].go_on(steps))
    return found


def speeds(base, other):
    """Speed-up of the other run over `base`: by the total time of all steps, and in the median turn."""
    totals = [[sum(turn) for turn in turns] for turns in (base, other)]
    return {"sums": sum(totals[0]) / sum(totals[1]), "median_turn": statistics.median(a / b for a, b in zip(*totals))}


def median_ms(turns):
    return statistics.median(t for turn in turns for t in turn)
