#!/usr/bin/env python3
"""Runs two programs in turn, A B A B …, and prints medians and their ratio.

    python3 side_by_side.py pytorch PIPETRAIN resnet18 --python PYTHON_WITH_TORCH   one stage against PyTorch, one thread
    python3 side_by_side.py stages PIPETRAIN MODEL DATA --stages 2                  one stage against several

`pytorch` exports the network first, so that both start from the same weights; memory is the peak of each process.
`stages` also prints predicted and measured step times. Needs the standard library; PyTorch only in the other program.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def pipetrain(binary, model, data, folder, flags):
    """One run; returns step times in ms (the first left out), the prediction and the peak memory in MiB."""
    metrics = Path(folder) / "events.jsonl"
    command = [binary, "--model", model, "--data", data, "--device", "cpu", "--threads", "1", "--no-shuffle", "-q"]
    command += ["--overwrite", "--run-dir", Path(folder) / "run", "--metrics", metrics, *flags]
    with subprocess.Popen([str(word) for word in command]) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"exit code {process.returncode} from: {' '.join(map(str, command))}")
    steps, predicted = [], None
    for line in metrics.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "step":
            steps.append(event["step_ms"])
        elif event["event"] == "plan":
            predicted = event["predicted"]["step_ms"]
    return steps[min(2, len(steps) - 1):], predicted, usage.ru_maxrss / 1024


def against_pytorch(arguments):
    peer = Path(__file__).with_name("peer_pytorch.py")
    optimizer = arguments.optimizer
    with tempfile.TemporaryDirectory() as folder:
        model, data = Path(folder) / "m.onnx", Path(folder) / "d.npz"
        base = [arguments.python, peer, arguments.model, "--optimizer", optimizer]
        subprocess.run([*base, "--steps", "0", "--export", model, "--data", data], check=True, stdout=subprocess.DEVNULL)
        import_batch = {"resnet18": 64, "gpt": 8, "gpt-small": 16}[arguments.model]
        flags = ["--batch-size", import_batch, "--micro-batches", 1, "--optimizer", optimizer, "--loss", "cross-entropy"]
        flags += ["--lr-schedule", "constant", "--max-steps", arguments.steps + 2]
        ours, theirs, memory = [], [], {"pipetrain": 0, "pytorch": 0}
        for _ in range(arguments.repeats):
            steps, _, peak = pipetrain(arguments.binary, model, data, folder, flags)
            ours += steps
            memory["pipetrain"] = max(memory["pipetrain"], peak)
            out = subprocess.run([*base, "--steps", str(arguments.steps)], check=True, capture_output=True, text=True).stdout
            result = json.loads(out.strip().splitlines()[-1])
            theirs.append(result["step_ms"])
            memory["pytorch"] = max(memory["pytorch"], result["peak_rss_mib"])
        a, b = statistics.median(ours), statistics.median(theirs)
        print(f"{arguments.model} {optimizer}: pipetrain {a:.0f} ms, PyTorch {b:.0f} ms a step, speed {b / a:.2f} of PyTorch's; "
              f"peak memory {memory['pipetrain']:.0f} and {memory['pytorch']:.0f} MiB")


def against_one_stage(arguments):
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--batch-size", arguments.batch_size, "--micro-batches", arguments.micro_batches, "--max-steps", arguments.steps]
        flags += ["--lr", "1e-4", *arguments.flags]
        one, many, predicted = [], [], []
        for _ in range(arguments.repeats):
            one += pipetrain(arguments.binary, arguments.model, arguments.data, folder, [*flags, "--gpus", 1])[0]
            steps, prediction, _ = pipetrain(arguments.binary, arguments.model, arguments.data, folder, [*flags, "--gpus", arguments.stages])
            many += steps
            predicted.append(prediction)
        a, b, p = statistics.median(one), statistics.median(many), statistics.median(predicted)
        print(f"{Path(arguments.model).stem}: 1 stage {a:.1f} ms, {arguments.stages} stages {b:.1f} ms a step, {a / b:.2f} times as fast; "
              f"predicted {p:.1f} ms, off by {100 * (p - b) / b:+.1f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    peer = commands.add_parser("pytorch")
    peer.add_argument("binary")
    peer.add_argument("model", choices=["resnet18", "gpt", "gpt-small"])
    peer.add_argument("--python", default=sys.executable)
    peer.add_argument("--optimizer", default="sgd")
    peer.add_argument("--steps", type=int, default=5)
    peer.add_argument("--repeats", type=int, default=3)
    stages = commands.add_parser("stages")
    stages.add_argument("binary")
    stages.add_argument("model")
    stages.add_argument("data")
    stages.add_argument("--stages", type=int, default=2)
    stages.add_argument("--batch-size", type=int, default=64)
    stages.add_argument("--micro-batches", type=int, default=8)
    stages.add_argument("--steps", type=int, default=24)
    stages.add_argument("--repeats", type=int, default=2)
    stages.add_argument("--flags", type=str.split, default=[], help="further flags for pipetrain")
    arguments = parser.parse_args()
    against_pytorch(arguments) if arguments.command == "pytorch" else against_one_stage(arguments)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
