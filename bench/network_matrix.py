#!/usr/bin/env python3
"""Predicted and measured steps of two hosts, joined by a cable of a given rate and delay (tests/network).

    bench/network_matrix.py [--pipetrain build/pipetrain] [--cable build/network_cable] [--rates 1000 100] [--delays 1 10]

Rates are in Mbit/s, delays in ms one way. Rows: 1f1b and zb-h1 with a stage on each host, a replica on each host, and both:
two stages on two hosts of two processes each, whose replicas are on different hosts. Prints a table with the bytes that crossed
the cable per step. Needs root.
"""

import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "network"))

ROWS = {
    "1f1b": (1, ["--stages", "2", "--schedule", "1f1b", "--micro-batches", "8"]),
    "zb-h1": (1, ["--stages", "2", "--schedule", "zb-h1", "--micro-batches", "8"]),
    "replicas": (1, ["--replicas", "2"]),
    "both": (2, ["--gpus", "4", "--replicas", "2,2", "--micro-batches", "8"]),
}


def train(arguments, two_hosts, folder, rate, delay, row, steps, events):
    """Bytes that crossed the cable, of the host that sent more."""
    slots, flags = ROWS[row]
    hosts = two_hosts.TwoHosts(1000 * delay, rate, slots)
    try:
        command = hosts.mpirun("-n", str(2 * slots), "--bind-to", "none", "-x", "PIPETRAIN_CACHE_DIR", arguments.pipetrain, "train", "--device", "cpu", "--threads", "1",
                               "--no-pin", "-m", str(folder / "net.onnx"), "--data", "synthetic", "--batch-size", str(arguments.batch), *flags,
                               "--max-steps", str(steps), "--log-every", "1", "--save-every", "never", "--run-dir", str(folder / "run"), "--overwrite",
                               "--metrics", str(events), "-q", *arguments.more)
        environment = {**os.environ, "PIPETRAIN_CACHE_DIR": str(folder / "cache")}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=600)
    finally:
        sums = hosts.close()
    return max(sums) if sums else 0


def measure(arguments, two_hosts, folder, rate, delay, row):
    events = folder / "events.jsonl"
    # The first run measures the links, which the cache keeps.
    train(arguments, two_hosts, folder, rate, delay, row, 1, events)
    before = train(arguments, two_hosts, folder, rate, delay, row, 1, events)
    sent = train(arguments, two_hosts, folder, rate, delay, row, arguments.steps, events) - before
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    ends = [line["t"] for line in lines if line["event"] == "step"]
    predicted = next(line for line in lines if line["event"] == "plan")["predicted"]["step_ms"]
    steps = [1e3 * (b - a) for a, b in zip(ends[1:], ends[2:])]
    for old in (folder / "cache").glob("links-*"):
        old.unlink()
    return predicted, statistics.median(steps), sent / (arguments.steps - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pipetrain", type=pathlib.Path, default="build/pipetrain")
    parser.add_argument("--cable", type=pathlib.Path, default="build/network_cable")
    parser.add_argument("--rates", nargs="+", type=float, default=[1000, 100])
    parser.add_argument("--delays", nargs="+", type=float, default=[1, 10])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--network", type=shlex.split, default="mlp --depth 4 --width 512", help="arguments of pipetrain new")
    parser.add_argument("--widths", type=int, nargs="+", help="instead of --network: the widths of the layers of an MLP without biases")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--more", type=shlex.split, default="", help="further arguments of pipetrain train")
    arguments = parser.parse_args()
    arguments.pipetrain = str(arguments.pipetrain.resolve())
    os.environ["NETWORK_CABLE"] = str(arguments.cable.resolve())
    os.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    import dense_model
    import two_hosts

    if two_hosts.why_not():
        sys.exit(two_hosts.why_not())
    print("| Mbit/s | ms | | predicted ms | measured ms | predicted / measured | bytes per step, one way |")
    print("|---:|---:|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        if arguments.widths:
            (folder / "net.onnx").write_bytes(dense_model.dense(arguments.widths))
        else:
            subprocess.run([arguments.pipetrain, "new", *arguments.network, "-q", "-o", str(folder / "net.onnx")], check=True)
        for rate in arguments.rates:
            for delay in arguments.delays:
                for row in arguments.rows:
                    predicted, measured, sent = measure(arguments, two_hosts, folder, rate, delay, row)
                    print(f"| {rate:g} | {delay:g} | {row} | {predicted:.1f} | {measured:.1f} | {predicted / measured:.2f} | {sent:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
