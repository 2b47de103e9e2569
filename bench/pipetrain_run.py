"""Runs a program and measures it: steps, losses, memory and time to the first step of pipetrain."""

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from models import MOMENTUM


class RunFailed(Exception):
    """A program failed; the text is its command line and the end of its messages."""


def busy_seconds():
    """CPU time used by all processes of the machine."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def run(command, environment=None):
    """Runs a command and returns its standard output and what it used: when it started, its peak memory in MiB, its warnings, and
    `foreign`, the share of the machine's processor time that other programs took meanwhile."""
    command = [str(word) for word in command]
    busy_before, start = busy_seconds(), time.time()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env={**os.environ, **(environment or {})})
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.time() - start
        out.seek(0)
        err.seek(0)
        if process.returncode:
            raise RunFailed(f"exit code {process.returncode} from: {' '.join(command)}\n{err.read().strip()[-1500:]}")
        warnings = "".join(line for line in err if line.startswith("warning: "))
        foreign = max(0.0, busy_seconds() - busy_before - usage.ru_utime - usage.ru_stime) / (seconds * os.cpu_count())
        return out.read(), {"start": start, "foreign": foreign, "peak_mib": usage.ru_maxrss / 1024, "warnings": warnings}


def peer(python, script, *flags):
    """Runs a script of this folder with another Python; it answers with one JSON line."""
    out, used = run([python, Path(__file__).with_name(script), *flags], {"PYTHONWARNINGS": "ignore"})
    answer = json.loads(out.strip().splitlines()[-1])
    if answer.get("first_step_at"):
        answer["first_step_s"] = answer["first_step_at"] - used["start"]
    return {**answer, "foreign": used["foreign"]}


def training_flags(model, folder, threads, micro_batches, bf16, gpu_ids=None, optimizer="sgd"):
    place = ["--device", "cpu", "--threads", threads] if gpu_ids is None else ["--device", "cuda", "--gpu-ids", gpu_ids]
    flags = ["--model", folder / "model.onnx", "--data", folder / "batch.npz", "--normalize", "none", "--no-shuffle",
             *place, "--batch-size", model.batch, "--micro-batches", micro_batches,
             "--loss", "cross-entropy", "--optimizer", optimizer, "--lr", model.rate, "--lr-schedule", "constant",
             *(["--momentum", MOMENTUM] if optimizer == "sgd" else [])]
    return flags + (["--precision", "bf16"] if bf16 else [])


def pipetrain(binary, model, folder, threads, steps, *, stages=1, schedule=None, micro_batches=1, bf16=False, cache=None,
              quiet=True, gpu_ids=None, optimizer="sgd"):
    """Trains for one step and `steps` timed ones; a step lasts from the end of the one before to its own.

    `gpu_ids` puts the stages on GPUs, as --gpu-ids does; `stages` is then for nothing.
    `cache` names a folder for measured kernels that several runs share; otherwise each run begins without.
    """
    events = folder / "events.jsonl"
    # With one batch per epoch pipetrain would save a checkpoint after each; the other programs save
    # none.
    command = [binary, "train", *training_flags(model, folder, threads, micro_batches, bf16, gpu_ids, optimizer), "--tie", "pytorch", "--save-every", "never",
               "--max-steps", steps + 1,
               "--run-dir", folder / "run", "--overwrite", "--metrics", events, "-o", folder / "trained.onnx"]
    command += ["--gpus", stages] if stages > 1 and gpu_ids is None else []
    command += ["--schedule", schedule] if schedule else []
    command += ["-q"] if quiet else ["-v"]
    environment = {"PIPETRAIN_CACHE_DIR": str(folder / (cache or f"cache-{time.time_ns()}"))}
    _, used = run(command, environment)
    log = folder / "run" / "stderr.log"
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    ends = [line["t"] for line in lines if line["event"] == "step"]
    plan = next((line for line in lines if line["event"] == "plan"), {})
    return {
        "step_ms": [1e3 * (b - a) for a, b in zip(ends, ends[1:])],
        "losses": [line["loss"] for line in lines if line["event"] == "step"][:3],
        "first_step_s": ends[0] - used["start"],
        "peak_mib": used["peak_mib"],
        "predicted_ms": plan.get("predicted", {}).get("step_ms"),
        "foreign": used["foreign"],
        "log": log.read_text(),
        "warnings": used["warnings"],
    }
