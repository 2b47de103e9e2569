#!/usr/bin/env python3
"""Data parallelism of two processes of one thread each beside PyTorch's DistributedDataParallel over gloo, in turn, A B A B …

    bench/data_parallel.py --torch-python PYTHON [--models mlp8 resnet18] [--rounds 4] [--pipetrain build/pipetrain]

Both are started by a launcher, on the same weights and batches. For each program: ms/step of two processes on the whole batch
and of one process on half of it, whose quotient is the efficiency; and what was predicted for two. Prints a table. The time of all
programs: about a minute for each model and round. Needs mpirun, and nothing else but the standard library.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from models import ALL_MODELS, new_flags
from pipetrain_run import peer, run, training_flags


def ours(arguments, model, folder, processes):
    """Milliseconds of each step but the first, the first losses, and the prediction."""
    events = folder / "events.jsonl"
    batch = model.batch * processes // 2
    flags = training_flags(model, folder, 1, processes, bf16=False)
    flags[flags.index("--batch-size") + 1] = batch
    steps = model.steps + 2
    command = [shutil.which("mpirun"), "--oversubscribe", "--bind-to", "none", "-n", processes, arguments.pipetrain, "train", *flags,
               "--limit", batch, "--save-every", "never", "--max-steps", steps, "--run-dir", folder / "run", "--overwrite", "--metrics", events,
               "-o", folder / "trained.onnx", "-q", *(["--replicas", processes] if processes > 1 else [])]
    environment = {**os.environ, "PIPETRAIN_CACHE_DIR": str(folder / "cache"), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    subprocess.run([str(word) for word in command], check=True, env=environment, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    ends = [line["t"] for line in lines if line["event"] == "step"]
    losses = [line["loss"] for line in lines if line["event"] == "step"]
    predicted = next(line for line in lines if line["event"] == "plan").get("predicted", {}).get("step_ms")
    return {"step_ms": [1e3 * (b - a) for a, b in zip(ends, ends[1:])], "losses": losses[:3], "predicted_ms": predicted}


def theirs(arguments, name, folder, processes):
    model = ALL_MODELS[name]
    return peer(arguments.torch_python, "peer_ddp.py", name, folder, "--processes", processes, "--batch", model.batch * processes // 2,
                "--steps", model.steps + 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-python", required=True)
    parser.add_argument("--pipetrain", type=Path, default=Path("build/pipetrain"))
    parser.add_argument("--models", nargs="+", choices=ALL_MODELS, default=["mlp8", "resnet18"])
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    arguments.pipetrain = arguments.pipetrain.resolve()
    print("| | ours, 1 process | ours, 2 | efficiency | predicted | DDP, 1 process | DDP, 2 | efficiency | times as fast |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name in arguments.models:
        model = ALL_MODELS[name]
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            run([arguments.pipetrain, "new", model.network, *new_flags(model), "-q", "-o", folder / "model.onnx"])
            run([arguments.torch_python, Path(__file__).with_name("prepare.py"), name, folder])
            times = {}
            losses = {}
            predicted = None
            for _ in range(arguments.rounds):
                for processes in (1, 2):
                    for who, measured in (("ours", ours(arguments, model, folder, processes)), ("DDP", theirs(arguments, name, folder, processes))):
                        times.setdefault((who, processes), []).extend(measured["step_ms"])
                        losses[who, processes] = measured["losses"]
                        predicted = measured.get("predicted_ms") or predicted
            for processes in (1, 2):
                apart = max(abs(a - b) / abs(b) for a, b in zip(losses["ours", processes], losses["DDP", processes]))
                if apart > 1e-4:
                    print(f"warning: {name}: losses differ by {apart:.1e}", file=sys.stderr)
            one = {key: statistics.median(values) for key, values in times.items()}
            print(f"| {model.title}, batch {model.batch} | {one['ours', 1]:.1f} | {one['ours', 2]:.1f} | {100 * one['ours', 1] / one['ours', 2]:.0f} % | {predicted:.1f} | "
                  f"{one['DDP', 1]:.1f} | {one['DDP', 2]:.1f} | {100 * one['DDP', 1] / one['DDP', 2]:.0f} % | {one['DDP', 2] / one['ours', 2]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
