"""A step of the check: a function that runs commands within a time limit, and its result."""

import dataclasses
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

# Warnings about fallbacks, which must not happen in the check.
WARNINGS = re.compile(r"^warning: .*(NVRTC|node by node|cuDNN|cuBLAS|NCCL|CPU).*", re.M)
BLOCKING = "CUDA_LAUNCH_BLOCKING"


class Failed(Exception):
    """The failure in one sentence; `output` is the end of a program's output."""

    def __init__(self, reason, output=""):
        super().__init__(reason)
        self.output = output


class Skipped(Exception):
    """Why a step is skipped."""


@dataclasses.dataclass
class Step:
    name: str
    limit: float  # seconds
    work: object  # function of a Context
    repeat: bool = True  # again with CUDA_LAUNCH_BLOCKING=1 when it fails


@dataclasses.dataclass
class Group:
    """Runs steps in parallel, `jobs` at a time."""

    steps: list
    jobs: int = 1


@dataclasses.dataclass
class Stage:
    number: int
    title: str
    limit: float  # seconds
    groups: list


@dataclasses.dataclass
class Outcome:
    stage: int
    name: str
    verdict: str  # "passed", "rehearsed", "failed", "skipped"
    seconds: float
    reason: str = ""
    figures: list = dataclasses.field(default_factory=list)
    output: str = ""
    again: str = ""  # how the repetition with CUDA_LAUNCH_BLOCKING=1 went


class Session:
    """State shared by all steps of one call."""

    def __init__(self, places, results, work, python, gpu):
        self.places, self.results, self.work, self.python, self.gpu = places, results, work, python, gpu
        self.processes, self.lock, self.stopped = set(), threading.Lock(), False
        self.made = {}  # by name: what several steps need

    def once(self, name, make):
        """The result of make(), called by the first step that needs it. After a failure it is called again."""
        with self.lock:
            lock = self.made.setdefault(name, [threading.Lock(), None])
        with lock[0]:
            if lock[1] is None:
                lock[1] = make()
            return lock[1]

    def stop(self):
        with self.lock:
            self.stopped = True
            for process in self.processes:
                kill(process)


def kill(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Context:
    """One run of a step."""

    def __init__(self, session, step, deadline, environment):
        self.session, self.step, self.deadline, self.environment = session, step, deadline, environment
        self.figures, self.late = [], False
        self.places, self.gpu, self.python = session.places, session.gpu, session.python

    def figure(self, text):
        self.figures.append(text)

    def folder(self):
        return Path(tempfile.mkdtemp(prefix=f"{self.step.name}-", dir=self.session.work))

    def run(self, command, *, code=0, environment=None, warnings=False):
        """Runs a command, which must exit with `code`, and returns its output. `warnings`: warnings are allowed."""
        command = [str(word) for word in command]
        left = self.deadline - time.monotonic()
        if left <= 0 or self.session.stopped:
            raise Failed("no time left")
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
                                       env={**self.environment, **(environment or {})})
            with self.session.lock:
                self.session.processes.add(process)
            try:
                process.wait(left)
            except subprocess.TimeoutExpired:
                self.late = True
                kill(process)
                process.wait()
            finally:
                with self.session.lock:
                    self.session.processes.discard(process)
            said.seek(0)
            output = said.read()
        program = Path(command[0]).name
        if self.late:
            raise Failed(f"{program} exceeded the {self.step.limit:.0f} s of this step", output)
        if process.returncode == 77 and code == 0:
            raise Skipped(next((line for line in output.splitlines() if line.startswith("skipped: ")), "skipped: no reason")[9:])
        if process.returncode != code:
            said = re.search(r"^error: (.*)", output, re.M)
            raise Failed(f"{program} ended {how(process.returncode)}, not with {code}" + (f": {said[1]}" if said else ""), output)
        warning = WARNINGS.search(output)
        if warning and not warnings:
            raise Failed(f"{program} warns: {warning[0]}", output)
        return output


def how(code):
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def do(context):
    """Verdict, reason and output of one run of a step."""
    try:
        context.step.work(context)
    except Skipped as skipped:
        return "skipped", str(skipped), ""
    except Failed as failed:
        return "failed", str(failed), failed.output
    except Exception as error:  # noqa: BLE001: a program wrote something else than it should; the other steps go on
        return "failed", f"{type(error).__name__}: {error}", ""
    return context.gpu.word, "", ""


def outcome(session, stage, step, deadline, environment):
    start = time.monotonic()
    if session.stopped or start >= deadline:
        return Outcome(stage.number, step.name, "failed", 0, f"not run: the {stage.limit:.0f} s of the stage had passed")

    def context(environment):
        return Context(session, step, min(deadline, time.monotonic() + step.limit), environment)

    first = context(environment)
    verdict, reason, output = do(first)
    out = Outcome(stage.number, step.name, verdict, time.monotonic() - start, reason, first.figures, output)
    # After a timeout, a second run would time out as well.
    if verdict == "failed" and step.repeat and not first.late and environment.get(BLOCKING) != "1" and time.monotonic() < deadline:
        verdict, reason, output = do(context({**environment, BLOCKING: "1"}))
        out.again = f"again with {BLOCKING}=1: " + (reason or verdict)
        out.output += f"\n--- {out.again}\n{output}" if output else ""
    return out
