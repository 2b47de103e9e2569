#!/usr/bin/env python3
"""Runs pipetrain and its peers in turn, A B A B …, on the same weights and batches, and writes tables.

    bench/side_by_side.py --torch-python PYTHON [--models mlp vgg …] [--threads 1 2] [--rounds 2] [--parts single …] [-o NAME]

PYTHON has torch, numpy, onnx and onnxruntime. `pipetrain new` writes each network; the peers load its weights and the
same batch. NAME.md and NAME.json hold, by part:

    single    steps of one stage against PyTorch (eager; the better of its default and channels-last), first losses
              compared; share of the GEMM rate, peak memory, time from the command to the first finished step
    forward   ONNX Runtime's forward pass, below which no step can be
    pipeline  2 stages × 1 thread against PyTorch's pipelining over gloo and against one stage with 2 threads
    turns     2 stages × 1 thread and one stage with 2 threads, two steps of each in turn, --turns times
    tax       step time of one stage at 2, 4, 8, 16 micro-batches over that at 1, and PyTorch's
    time      where the time of pipetrain's step goes

A step's time is the median of all rounds. The first, second and last part are run unless --parts says otherwise: about ten minutes
for all models on two cores, and as much for the other two. Needs the standard library only.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import report
import turns
import where_time_goes
from models import ALL_MODELS, MODELS, new_flags
from pipetrain_run import RunFailed, peer, pipetrain, run

PARTS = ["single", "forward", "pipeline", "turns", "tax", "time"]
SHORT_PARTS = ["single", "forward", "time"]
MICRO_BATCHES = 8
TAXED = [1, 2, 4, 8, 16]
OUR_SCHEDULES = ["auto", "1f1b", "zb-h1", "zb-v"]
TURNED_SCHEDULES = ["auto", "zb-v"]
STEPS_A_TURN = 2
THEIR_SCHEDULES = ["1f1b", "gpipe"]
CLOSE = 1.1  # times the best of the first round: a form that may still be the best of all rounds


class Bench:
    def __init__(self, arguments, folder):
        self.arguments = arguments
        self.folder = folder
        self.bf16 = arguments.precision == "bf16"

    def prepare(self, name):
        """Creates the network's file, its weights as arrays, and one batch."""
        folder = self.folder / name
        folder.mkdir()
        model = ALL_MODELS[name]
        run([self.arguments.pipetrain, "new", model.network, *new_flags(model), "-q", "-o", folder / "model.onnx"])
        run([self.arguments.torch_python, Path(__file__).with_name("prepare.py"), name, folder])
        return folder

    def steps(self, model, threads):
        # The first run on a machine measures its product rate after the first step: the median of three does not see it.
        return max(3, round(model.steps * (1.6 if threads > 1 else 1) * self.arguments.length))

    def ours(self, name, threads, steps=None, **options):
        model = ALL_MODELS[name]
        return pipetrain(self.arguments.pipetrain, model, self.folder / name, threads, steps or self.steps(model, threads),
                         bf16=self.bf16, **options)

    def pytorch(self, name, threads, *flags, steps=None):
        flags = [*flags, *(["--bf16"] if self.bf16 else [])]
        return peer(self.arguments.torch_python, "peer_pytorch.py", name, self.folder / name, "--threads", threads, "--steps",
                    steps or self.steps(ALL_MODELS[name], threads), *flags)

    def pipelining(self, name, schedule):
        return peer(self.arguments.torch_python, "peer_pipelining.py", name, self.folder / name, "--schedule", schedule,
                    "--micro-batches", MICRO_BATCHES, "--steps", self.steps(MODELS[name], 2))

    def in_turn(self, programs):
        """Runs each program once per round; after the first round only the fastest variants of a program continue.

        `programs`: name to {form: function}. Returns name to what merged() makes of the form that is best in all.
        """
        tried = {name: {form: [] for form in forms} for name, forms in programs.items()}
        for round_number in range(self.arguments.rounds):
            for name, forms in programs.items():
                if round_number == 1:
                    best = min(step_ms(runs) for runs in tried[name].values())
                    forms = programs[name] = {form: make for form, make in forms.items()
                                              if step_ms(tried[name][form]) <= CLOSE * best}
                for form, make in forms.items():
                    tried[name][form].append(make())
        return {name: merged({form: tried[name][form] for form in forms}, tried[name]) for name, forms in programs.items()}

    def single(self, name, threads):
        forms = {"default": lambda: self.pytorch(name, threads)}
        if MODELS[name].images:
            forms["channels-last"] = lambda: self.pytorch(name, threads, "--channels-last")
        found = self.in_turn({"pipetrain": {"": lambda: self.ours(name, threads)}, "pytorch": forms})
        return {"model": name, "threads": threads, **found}

    def forward(self, name, threads):
        answer = peer(self.arguments.torch_python, "peer_onnxruntime.py", self.folder / name, "--threads", threads, "--runs",
                      2 * self.steps(MODELS[name], threads))
        return {"model": name, "threads": threads, "version": answer["version"], "forward_ms": statistics.median(answer["step_ms"])}

    def pipeline(self, name):
        ours = {form: lambda form=form: self.ours(name, 1, stages=2, schedule=form, micro_batches=MICRO_BATCHES, cache="cache")
                for form in OUR_SCHEDULES}
        theirs = {form: lambda form=form: self.pipelining(name, form) for form in THEIR_SCHEDULES}
        whole = {"default": lambda: self.pytorch(name, 2)}
        if MODELS[name].images:
            whole["channels-last"] = lambda: self.pytorch(name, 2, "--channels-last")
        return {"model": name, **self.in_turn({"stages": ours, "pytorch_stages": theirs,
                                               "one_stage": {"": lambda: self.ours(name, 2)}, "pytorch_whole": whole})}

    def turns(self, name):
        """The pipeline against one stage, interleaved in turns, on a machine whose clock varies."""
        model, folder = MODELS[name], self.folder / name
        with contextlib.ExitStack() as stack:
            runs = {form: stack.enter_context(turns.StoppableRun(self.arguments.pipetrain, model, folder, form, **options))
                    for form, options in [("one stage", {"threads": 2})] + [
                        (form, {"threads": 1, "micro_batches": MICRO_BATCHES, "stages": 2, "schedule": form})
                        for form in TURNED_SCHEDULES]}
            found = turns.in_turn(runs, self.arguments.turns, STEPS_A_TURN)
        return {"model": name, "all_step_ms": found, "step_ms": {form: turns.median_ms(steps) for form, steps in found.items()},
                "speeds": {form: turns.speeds(found["one stage"], found[form]) for form in TURNED_SCHEDULES}}

    def tax(self, name):
        """Step times by number of micro-batches, with one stage and one thread on both sides."""
        steps = max(2, MODELS[name].steps // 2)
        counts = [count for count in TAXED if count <= MODELS[name].batch]
        ours, theirs = {count: [] for count in counts}, {count: [] for count in counts}
        for _ in range(self.arguments.rounds):
            for count in counts:
                ours[count] += self.ours(name, 1, steps, micro_batches=count, cache="cache")["step_ms"]
            answer = self.pytorch(name, 1, "--micro-batches", *map(str, counts), steps=steps)
            for count in counts:
                theirs[count].append(answer["ms_by_micro_batches"][str(count)])
        return {"model": name, "pipetrain_ms": {count: statistics.median(times) for count, times in ours.items()},
                "pytorch_ms": {count: statistics.median(times) for count, times in theirs.items()}}

    def time(self, name, threads):
        return {"model": name, "threads": threads,
                **where_time_goes.shares(self.arguments.pipetrain, MODELS[name], self.folder / name, threads,
                                         self.steps(MODELS[name], threads), self.bf16)}


def step_ms(runs):
    return statistics.median(t for one in runs for t in one["step_ms"])


def merged(forms, tried):
    """The best variant of a program, with its runs merged: medians, peak memory, and common values."""
    form = min(forms, key=lambda form: step_ms(forms[form]))
    runs = forms[form]
    last = runs[-1]
    out = {"form": form, "other_forms_ms": {other: step_ms(theirs) for other, theirs in tried.items() if other != form},
           "step_ms": step_ms(runs),
           "all_step_ms": [one["step_ms"] for one in runs], "losses": last["losses"],
           "peak_mib": max(one["peak_mib"] for one in runs),
           "first_step_s": statistics.median(one["first_step_s"] for one in runs),
           "foreign": max(one["foreign"] for one in runs)}
    for key in ("predicted_ms", "version", "flops", "cut", "batch_sha256"):
        if last.get(key) is not None:
            out[key] = last[key]
    rates = [one["gemm_flops_per_second"] for one in runs if "gemm_flops_per_second" in one]
    return {**out, "gemm_flops_per_second": max(rates)} if rates else out


def every_row(bench, arguments):
    """The benchmarks to run: (part, function without arguments that returns a row)."""
    for name in arguments.models:
        for threads in arguments.threads:
            for part in ("single", "forward", "time"):
                if part in arguments.parts:
                    yield part, name, lambda part=part, name=name, threads=threads: getattr(bench, part)(name, threads)
        for part in ("pipeline", "turns", "tax"):
            if part in arguments.parts and MODELS[name].pipelined:
                yield part, name, lambda part=part, name=name: getattr(bench, part)(name)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="\n".join(__doc__.splitlines()[2:]),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    root = Path(__file__).resolve().parents[1]
    parser.add_argument("--pipetrain", type=Path, default=root / "build" / "pipetrain")
    parser.add_argument("--torch-python", default=sys.executable)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="MODEL")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--length", type=float, default=1.0, help="factor of the number of steps per run")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=SHORT_PARTS, metavar="PART")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("-o", "--output", type=Path, default=Path("side_by_side"), help="name of the two files, without .md")
    return parser.parse_args()


def main():
    arguments = parse()
    arguments.pipetrain = arguments.pipetrain.resolve()
    found = {"precision": arguments.precision, "rounds": arguments.rounds, "machine": report.machine(), "failed": []}
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments, Path(folder))
        broken = set()
        for name in arguments.models:
            try:
                bench.prepare(name)
            except RunFailed as failure:
                broken.add(name)
                found["failed"].append({"part": "new", "model": name, "reason": str(failure)})
        for part, name, row in every_row(bench, arguments):
            if name in broken:
                continue
            try:
                found.setdefault(part, []).append(row())
                print(report.line(part, found[part][-1]), flush=True)
            except RunFailed as failure:
                found["failed"].append({"part": part, "model": name, "reason": str(failure)})
                print(f"{part} {name}: {failure}", file=sys.stderr, flush=True)
    found["seconds"] = time.monotonic() - start
    arguments.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    arguments.output.with_suffix(".md").write_text(report.markdown(found))
    print(f"wrote {arguments.output.with_suffix('.md')} and .json in {found['seconds']:.0f} s")
    return 1 if found["failed"] or report.disagreements(found) else 0


if __name__ == "__main__":
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    sys.exit(main())
