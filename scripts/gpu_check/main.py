"""Proves the GPU backend on a machine with a GPU, in four stages of one command each, from a build folder or from an unpacked bundle.

    gpu-check 1      at most 2 minutes: libraries and their versions, 20 steps of the digits, exit codes
    gpu-check 2      at most 4 minutes: the operators' tests by family, and which kernels ran in them
    gpu-check 3      at most 5 minutes: profile, speed and memory of GPT-2 124M and ResNet-50, alone and beside PyTorch
    gpu-check 4      at most 3 minutes: schedules, CUDA graphs, replicas, two processes, what virtual stages cost
    gpu-check all    all four
    gpu-check status writes what a folder of results says into the measured part of docs/gpu-status.md

Each stage prints its verdict first, then its first failure, then all steps. Python 3.11 or newer is all that stages 1, 2 and most of 4
need; 3 and the cost of virtual stages need numpy and onnx, comparisons PyTorch (GPU_CHECK_PYTHON names that Python). Exit code: 0, 1
where a step failed, 2 for a usage error, 5 without a GPU.
"""

import argparse
import os
import re
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu_check import gpu, installation, operators, places, schedules, speed
from gpu_check.results import Results, has_failed, line_of, verdict_of
from gpu_check.steps import Session, outcome

STATUS = places.ROOT / "docs" / "gpu-status.md"
BEGIN, END = "<!-- scripts/gpu-check writes from here -->\n", "<!-- end of what gpu-check writes -->\n"
SHOWN = 25  # lines of the first failure


class Stopped(Exception):
    """A signal asks to end."""


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["1", "2", "3", "4", "all", "status"])
    parser.add_argument("-o", "--output", type=Path, default=Path("gpu-check-results"), metavar="FOLDER", help="takes five files as they come")
    parser.add_argument("--only", type=re.compile, metavar="REGEX", help="steps, or families of operators, whose names match")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="a build folder other than build/")
    parser.add_argument("--plugin", type=Path, metavar="FOLDER", help="where libpipetrain_cuda.so is, for example of a rehearsal")
    parser.add_argument("--limit", type=float, default=1, metavar="FACTOR", help="factor of all time limits, for slower machines")
    parser.add_argument("--record", action="store_true", help="stage 2: writes kernels.json instead of comparing with it")
    parser.add_argument("--list", action="store_true", help="prints the steps and exits")
    return parser.parse_args()


def stages_of(arguments, recorded):
    stages = {"1": installation.stage(), "2": operators.stage(recorded), "3": speed.stage(), "4": schedules.stage()}
    chosen = list(stages.values()) if arguments.stage == "all" else [stages[arguments.stage]]
    for stage in chosen:
        stage.limit *= arguments.limit
        for group in stage.groups:
            group.steps = [step for step in group.steps if not arguments.only or arguments.only.search(step.name)]
            for step in group.steps:
                step.limit *= arguments.limit
    return [stage for stage in chosen if any(group.steps for group in stage.groups)]


def run_stage(session, stage, environment):
    """All results, in the order of the steps."""
    deadline = time.monotonic() + stage.limit
    outcomes = {}

    def one(step):
        outcomes[step.name] = outcome(session, stage, step, deadline, environment)
        session.results.add(outcomes[step.name])
        if sys.stderr.isatty():
            print(line_of(outcomes[step.name]), file=sys.stderr)

    try:
        for group in stage.groups:
            with ThreadPoolExecutor(group.jobs) as pool:
                try:
                    for done in [pool.submit(one, step) for step in group.steps]:
                        done.result()
                except Stopped:
                    session.stop()
                    raise
    finally:
        steps = [step for group in stage.groups for step in group.steps]
        found = [outcomes[step.name] for step in steps if step.name in outcomes]
        print_verdict(stage, found, session.gpu.word, stage.limit - (deadline - time.monotonic()))
    return found


def print_verdict(stage, outcomes, word, seconds):
    print(f"stage {stage.number} ({stage.title}): {verdict_of(outcomes, word)}, {seconds:.0f} s")
    first = next((step for step in outcomes if step.verdict == "failed"), None)
    if first:
        print(f"first failure: {line_of(first)}")
        lines = first.output.splitlines()
        shown = lines[:SHOWN] if ": Failure" in first.output else lines[-SHOWN:]  # of tests the first, of programs the last
        print("".join(f"    {line[:300]}\n" for line in shown), end="")
    for step in outcomes:
        print(line_of(step))
        print("".join(f"  {figure}\n" for figure in step.figures), end="")
    sys.stdout.flush()


def write_status(folder, status):
    """Replaces the measured part only."""
    for path in (folder / "gpu-check.md", status):
        if not path.is_file():
            print(f"gpu-check: there is no {path}", file=sys.stderr)
            return 2
    report = (folder / "gpu-check.md").read_text()
    before, _, rest = status.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    status.write_text(before + BEGIN + report + END + after)
    return 0


def environment_of(arguments, work):
    environment = {**os.environ, "PIPETRAIN_CACHE_DIR": str(work / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    if arguments.plugin:
        environment["PIPETRAIN_BACKEND_PATH"] = str(arguments.plugin.resolve())
    return environment


def check(arguments, work):
    found = places.find(arguments.build)
    environment = environment_of(arguments, work)
    machine = gpu.find(found, environment)
    recorded = {} if arguments.record else None
    session = Session(found, Results(arguments.output, machine), work, os.environ.get("GPU_CHECK_PYTHON", sys.executable), machine)
    failed = False
    for stage in stages_of(arguments, recorded):
        if machine.absent and stage.number > 1:
            print(f"stage {stage.number}: not run: no GPU: {machine.absent}")
            continue
        failed |= has_failed(run_stage(session, stage, environment))
    if recorded:
        print(f"wrote {operators.write_list(recorded)}")
    if machine.absent:
        return 5
    return 1 if failed else 0


def stopped(*_):
    raise Stopped


def main():
    arguments = parse()
    if arguments.stage == "status":
        return write_status(arguments.output, STATUS)
    chosen = stages_of(arguments, None)
    if not chosen:
        print(f"gpu-check: no step matches {arguments.only.pattern}", file=sys.stderr)
        return 2
    if arguments.list:
        for stage in chosen:
            print(*(f"{stage.number} {step.name}" for group in stage.groups for step in group.steps), sep="\n")
        return 0
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stopped)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as work:
        try:
            return check(arguments, Path(work))
        except Stopped:
            print("gpu-check: stopped by a signal")
            return 1
