"""Times training steps of PyTorch (eager mode, CPU) on a network whose weights and batch are in a folder.

    python3 peer_pytorch.py MODEL FOLDER --threads 1 --steps 5 [--channels-last] [--compile] [--bf16] [--micro-batches 1 2 4]

FOLDER holds what prepare.py or prepare_real.py made. Prints one JSON line. With several numbers of micro-batches the steps of each are
timed in turn; gradients are accumulated over the parts of a batch before the update. The rate of a matrix product is
measured after everything else, with the same threads.
"""

import argparse
import hashlib
import json
import resource
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

import zoo_networks
from models import ALL_MODELS, MODELS, MOMENTUM, MORE_MODELS, REAL_MODELS, sizes_of


def load(name, folder):
    """The network, its input or inputs, and the labels."""
    model = ALL_MODELS[name]
    if name in REAL_MODELS or name in MORE_MODELS:
        import real_networks

        return real_networks.load(name, folder)
    network = zoo_networks.build(model.network, np.load(folder / "weights.npz"), **sizes_of(model)).train()
    batch = np.load(folder / "batch.npz")
    return network, torch.from_numpy(batch["x"]), torch.from_numpy(batch["y"])


def loss_of(logits, labels):
    """Mean cross-entropy; classes are axis 1 for images and the last axis for tokens."""
    if logits.dim() == 3:
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    return functional.cross_entropy(logits, labels)


def optimizer_of(network, model, name="sgd"):
    if name == "adamw":
        return torch.optim.AdamW(network.parameters(), lr=model.rate)
    return torch.optim.SGD(network.parameters(), lr=model.rate, momentum=MOMENTUM)


def every(x):
    """The inputs of a network that may have one or several."""
    return x if isinstance(x, (list, tuple)) else [x]


def make_step(network, optimizer, x, y, micro_batches, bf16):
    parts = list(zip(zip(*(one.chunk(micro_batches) for one in every(x))), y.chunk(micro_batches)))

    def step():
        optimizer.zero_grad()
        value = 0.0
        for inputs, labels in parts:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = loss_of(network(*inputs), labels) / len(parts)
            loss.backward()
            value += loss.item()
        optimizer.step()
        return value

    return step


def gemm_rate(size=1536, repeats=4):
    """Best FLOP/s of several matrix products."""
    a, b, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    best = float("inf")
    for _ in range(repeats + 1):
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=[*MODELS, *REAL_MODELS, *MORE_MODELS])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5, help="timed, after a warm-up step")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[1])
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--bf16", action="store_true")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.set_num_interop_threads(1)
    network, x, y = load(arguments.model, arguments.folder)
    digest = hashlib.sha256(b"".join(one.numpy().tobytes() for one in [*every(x), y])).hexdigest()
    if arguments.channels_last:
        network = network.to(memory_format=torch.channels_last)
        x = [one.contiguous(memory_format=torch.channels_last) for one in every(x)]
    optimizer = optimizer_of(network, ALL_MODELS[arguments.model], arguments.optimizer)
    called = torch.compile(network) if arguments.compile else network
    steps = {count: make_step(called, optimizer, x, y, count, arguments.bf16) for count in arguments.micro_batches}
    losses, first_step_at = [], None
    times = {count: [] for count in arguments.micro_batches}
    for round_number in range(arguments.steps + 1):
        for count, step in steps.items():
            start = time.perf_counter()
            losses.append(step())
            seconds = time.perf_counter() - start
            first_step_at = first_step_at or time.time()
            if round_number > 0:
                times[count].append(seconds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    import flops  # here, so that it takes no part in the time to the first step

    print(json.dumps({
        "version": torch.__version__,
        "step_ms": [1e3 * t for t in times[arguments.micro_batches[0]]],
        "ms_by_micro_batches": {count: 1e3 * statistics.median(t) for count, t in times.items() if t},
        "first_step_at": first_step_at,
        "losses": losses[:3],
        "peak_mib": peak,
        "batch_sha256": digest,
        "flops": flops.count(network, *every(x)),
        "gemm_flops_per_second": gemm_rate(),
    }))


if __name__ == "__main__":
    main()
