#!/usr/bin/env python3
"""Times pipetrain on a GPU: beside PyTorch on the same weights and batches, or four stages of one GPU beside one stage.

    bench/gpu.py beside NETWORK [--at-least 1] [-o FILE.json]    against PyTorch, eager and compiled, in turn
    bench/gpu.py alone NETWORK                                   without PyTorch
    bench/gpu.py profile NETWORK [-o FILE.json]                  where the time of a step goes, by operator
    bench/gpu.py overhead [--network gpt2] [--at-most 0.03]      T/W - 1 of four virtual stages over one stage
    bench/gpu.py prepare NETWORK --folder FOLDER                 the network and its batch, for later calls with this --folder

NETWORK: gpt2, resnet50, or a network of real_sizes.py, which the Python that runs it must be able to export.
Training in bfloat16 with float32 weights (--precision fp32 for floats alone). The Python that runs it needs numpy and onnx, and torch for
`beside`, which also compares three losses with PyTorch's in float32 (compare_losses; --programs exact computes those alone). With
--folder, `beside --programs` adds to what earlier calls have found. Memory is what the GPU has less of while a program runs, as
nvidia-smi tells, so that a context and libraries count on both sides. With --at-least a run fails whose speed is less than so much of
PyTorch's eager speed, or whose memory is more than PyTorch's; with --at-most one whose overhead is more. Lines that begin with "figure:"
are for scripts/gpu-check. --gpu-ids '' and --torch-device cpu stay on the CPU.
"""

import argparse
import dataclasses
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from models import GPU_BATCHES, GPU_MODELS, REAL_MODELS
from pipetrain_run import RunFailed, peer, pipetrain, run, training_flags
from side_by_side import Bench

FIRST = 3  # steps that are not timed: caches, kernels that are compiled, memory
OURS, EAGER, COMPILED, EXACT = "pipetrain", "PyTorch eager", "PyTorch compiled", "PyTorch float32"
PROGRAMS = {"pipetrain": OURS, "eager": EAGER, "compiled": COMPILED, "exact": EXACT}
NETWORKS = {**GPU_MODELS, **{name: dataclasses.replace(model, batch=GPU_BATCHES[name]) for name, model in REAL_MODELS.items()}}
STEPS = 20  # timed ones of a run


class MemoryWatch:
    """Peak memory of GPU 0 during a block of code, in MiB above the level before it; 0 without nvidia-smi."""

    def __enter__(self):
        self.peak = 0
        self.done = threading.Event()
        self.before = self.used()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()

    @staticmethod
    def used():
        if not shutil.which("nvidia-smi"):
            return 0
        answer = subprocess.run(["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                                capture_output=True, text=True, check=False).stdout.strip()
        return int(answer) if answer.isdigit() else 0

    def watch(self):
        while not self.done.wait(0.05):
            self.peak = max(self.peak, self.used() - self.before)


class GpuBench(Bench):
    """As on the CPU, with the stages on GPUs."""

    def stages(self, name, ids, steps, **options):
        """pipetrain's run; `ids` as --gpu-ids takes them, empty for the CPU."""
        with MemoryWatch() as memory:
            found = pipetrain(self.arguments.pipetrain, NETWORKS[name], self.folder / name, 1, steps + FIRST, bf16=self.bf16,
                              cache="cache", quiet=False, **options, **self.place(ids))
        print(found["warnings"], end="", flush=True)
        return {**found, "step_ms": found["step_ms"][FIRST - 1:], "gpu_mib": memory.peak}

    @staticmethod
    def place(ids):
        on_gpu = not ids.startswith("cpu")
        return {"gpu_ids": ids} if on_gpu else {"stages": int(ids[3:] or 1)}

    def prepare(self, name):
        """Once for a folder."""
        if not (self.folder / name / "batch.npz").exists():
            shutil.rmtree(self.folder / name, ignore_errors=True)  # what an earlier call has begun
            if name in GPU_MODELS:
                super().prepare(name)
            else:
                (self.folder / name).mkdir()
                run([self.arguments.torch_python, Path(__file__).with_name("prepare_real.py"), name, self.folder / name,
                     NETWORKS[name].batch])

    def torch(self, name, steps, *flags, exact=False):
        if not self.arguments.gpu_ids or self.arguments.torch_device == "cpu":
            flags = (*flags, "--device", "cpu")
        if exact or self.bf16:
            flags = (*flags, "--exact" if exact else "--bf16")
        if NETWORKS[name].images:
            flags = (*flags, "--channels-last")
        with MemoryWatch() as memory:
            found = peer(self.arguments.torch_python, "peer_pytorch_gpu.py", name, self.folder / name, "--steps", steps, *flags)
        return {**found, "gpu_mib": memory.peak}


def steps_of(name):
    return NETWORKS[name].steps if name in GPU_MODELS else STEPS


def median_ms(runs):
    return statistics.median(time for one in runs for time in one["step_ms"])


def summary(runs):
    return {"step_ms": median_ms(runs), "gpu_mib": max(one["gpu_mib"] for one in runs), "first_step_s": runs[0]["first_step_s"],
            "losses": runs[0]["losses"], **({"version": runs[0]["version"]} if "version" in runs[0] else {})}


def figure(text):
    print(f"figure: {text}", flush=True)


def described(name, found, model):
    return (f"{name}: {found['step_ms']:.2f} ms per step ({1e3 * model.batch / found['step_ms']:.0f} samples/s), "
            f"{found['gpu_mib']} MiB, first step after {found['first_step_s']:.1f} s")


def compare_losses(found):
    """How the first three losses differ from PyTorch's in float32; empty if they agree.

    They may be three times as far from those as PyTorch's own in the same precision, or a twentieth of what three steps move the loss
    by: gradients that are wrong by more than that move it elsewhere.
    """
    ours, theirs, exact = (found[program]["losses"] for program in (OURS, EAGER, EXACT))
    moved = max(abs(loss - exact[0]) for loss in exact)
    rounding = max(abs(loss - other) for loss, other in zip(theirs, exact))
    apart = max(abs(loss - other) for loss, other in zip(ours, exact))
    figure(f"three losses change by {moved:.2e} and are within {apart:.1e} of PyTorch's in float32; PyTorch's in this precision are within {rounding:.1e}")
    if not 3 * rounding <= moved:
        return f"the losses change by {moved:.1e} only, and rounding by {rounding:.1e}: the comparison is inconclusive"
    if not all(map(math.isfinite, ours)) or apart > max(3 * rounding, 0.05 * moved):
        return f"the losses are {ours}, PyTorch's are {exact}"
    return ""


def run_programs(bench, name, programs, rounds):
    """Results by program, and (program, reason) of those that failed but may fail."""
    start = {OURS: lambda: bench.stages(name, bench.arguments.gpu_ids or "cpu", steps_of(name)),
             EAGER: lambda: bench.torch(name, steps_of(name)),
             COMPILED: lambda: bench.torch(name, steps_of(name), "--compile"),
             EXACT: lambda: bench.torch(name, 1, exact=True)}
    runs, missing = {}, {}
    for round_number in range(rounds):
        for program in programs:
            # Compilation takes a minute or two; compiled code has constant run time. Losses in float32 are not timed.
            if program in (COMPILED, EXACT) and round_number > 0:
                continue
            try:
                runs.setdefault(program, []).append(start[program]())
            except RunFailed as failure:
                if program != COMPILED:
                    raise
                missing[program] = str(failure)
                print(failure, file=sys.stderr)
    return {program: summary(list_of_runs) for program, list_of_runs in runs.items() if list_of_runs}, missing


def beside(bench, name, arguments):
    model = NETWORKS[name]
    programs = [PROGRAMS[program] for program in arguments.programs]
    kept = bench.folder / name / "found.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    if EAGER in programs and EXACT not in known and EXACT not in programs:
        programs.append(EXACT)
    if OURS not in known and OURS not in programs and programs != [EXACT]:
        programs = [OURS, *programs]
    fresh, missing = run_programs(bench, name, programs, arguments.rounds)
    found = {**known, **fresh}
    kept.write_text(json.dumps(found))
    timed = [program for program in programs if program in found and program != EXACT]
    for program in timed:
        figure(described(f"{model.title}, batch {model.batch}, {arguments.precision}, {program}", found[program], model))
    for program in missing:
        figure(f"{program} did not run")
    if arguments.output:
        arguments.output.write_text(json.dumps({"network": name, "precision": arguments.precision, **found}, indent=1) + "\n")
    if timed in ([], [OURS]):
        return 0
    ours, wrong = found[OURS], []
    for program in timed:
        if program != OURS:
            figure(f"{found[program]['step_ms'] / ours['step_ms']:.2f} times the speed of {program} ({found[program]['version']})")
    if EAGER in programs:
        wrong.append(compare_losses(found))
        if arguments.at_least is not None:
            if found[EAGER]["step_ms"] / ours["step_ms"] < arguments.at_least:
                wrong.append(f"a step takes {ours['step_ms']:.2f} ms, PyTorch's {found[EAGER]['step_ms']:.2f} ms")
            if ours["gpu_mib"] > found[EAGER]["gpu_mib"]:
                wrong.append(f"{ours['gpu_mib']} MiB are more than PyTorch's {found[EAGER]['gpu_mib']} MiB")
    for sentence in filter(None, wrong):
        print(f"not met: {sentence}")
    return 1 if any(wrong) or missing else 0


def profile(bench, name, arguments):
    """Seconds of every node, measured one by one, and the share of each operator."""
    model, folder = NETWORKS[name], bench.folder / name
    output = arguments.output or folder / "profile.json"
    flags = training_flags(model, folder, 1, 1, bench.bf16, arguments.gpu_ids or None)
    # Command line flags that affect the graph.
    wanted = ("--model", "--data", "--normalize", "--device", "--gpu-ids", "--threads", "--batch-size", "--micro-batches", "--loss",
              "--precision")
    kept = [word for flag, value in pairs(flags) if flag in wanted for word in (flag, value)]
    run([arguments.pipetrain, "profile", *kept, "--no-cache", "-o", output])
    seconds = {}
    for node in json.loads(output.read_text())["nodes"]:
        seconds[node["op"]] = seconds.get(node["op"], 0) + node["seconds"]
    whole = sum(seconds.values())
    shares = sorted(seconds.items(), key=lambda item: -item[1])[:12]
    figure(f"{model.title}, batch {model.batch}, {arguments.precision}: {1e3 * whole:.2f} ms in kernels: " +
           ", ".join(f"{op} {1e3 * time:.2f}" for op, time in shares))
    return 0


def pairs(flags):
    """(flag, value) of a command line; None for flags without one."""
    words = [str(flag) for flag in flags]
    for i, word in enumerate(words):
        if word.startswith("--"):
            following = words[i + 1] if i + 1 < len(words) else "--"
            yield word, None if following.startswith("--") else following


def overhead(bench, name, arguments):
    model = NETWORKS[name]
    ids = arguments.gpu_ids
    one, four = ("cpu", "cpu4") if not ids else (ids, ",".join([ids] * 4))
    runs = {one: [], four: []}
    for _ in range(arguments.rounds):
        for place in (one, four):
            runs[place].append(bench.stages(name, place, model.steps, micro_batches=4, schedule="1f1b"))
    whole, staged = median_ms(runs[one]), median_ms(runs[four])
    tax = staged / whole - 1
    figure(f"{model.title}, batch {model.batch} in 4 micro-batches, {arguments.precision}: W = {whole:.2f} ms on one stage, "
           f"T = {staged:.2f} ms on four of one GPU, T/W - 1 = {100 * tax:.1f} %")
    losses = [runs[place][0]["losses"] for place in (one, four)]
    if losses[0] != losses[1]:
        print(f"not met: the losses of one stage and of four differ: {losses[0]} and {losses[1]}")
        return 1
    if arguments.at_most is not None and tax > arguments.at_most:
        print(f"not met: the overhead is to be at most {100 * arguments.at_most:.1f} %")
        return 1
    return 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="\n".join(__doc__.splitlines()[2:]),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipetrain", type=Path, default=Path(__file__).resolve().parents[1] / "build" / "pipetrain")
    parser.add_argument("--torch-python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--gpu-ids", default="0")
    parser.add_argument("--torch-device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--folder", type=Path, help="where the network, its batch and the results are kept; default: a temporary folder")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("beside", "alone", "profile", "prepare"):
        each = commands.add_parser(command)
        each.add_argument("network", choices=NETWORKS)
        each.add_argument("-o", "--output", type=Path)
        each.add_argument("--at-least", type=float)
        each.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS) if command == "beside" else ["pipetrain"])
    tax = commands.add_parser("overhead")
    tax.add_argument("--network", choices=NETWORKS, default="gpt2")
    tax.add_argument("--at-most", type=float)
    return parser.parse_args()


def main():
    arguments = parse()
    arguments.pipetrain = arguments.pipetrain.resolve()
    commands = {"overhead": overhead, "beside": beside, "alone": beside, "profile": profile, "prepare": lambda *_: 0}
    with tempfile.TemporaryDirectory() as folder:
        bench = GpuBench(arguments, (arguments.folder or Path(folder)).resolve())
        bench.folder.mkdir(parents=True, exist_ok=True)
        try:
            bench.prepare(arguments.network)
            return commands[arguments.command](bench, arguments.network, arguments)
        except RunFailed as failure:
            print(failure)
            return 1


if __name__ == "__main__":
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    sys.exit(main())
