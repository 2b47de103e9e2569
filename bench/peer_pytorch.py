#!/usr/bin/env python3
"""Times training steps of PyTorch (eager mode, CPU) and exports the same network for pipetrain.

    python3 peer_pytorch.py resnet18 --export resnet18.onnx --data resnet18.npz
    python3 peer_pytorch.py gpt --optimizer adamw --steps 5

Prints one JSON line: median milliseconds of a step (wall clock, and processor time of the process,
which other programs on the machine disturb less), samples per second and peak memory. With
--micro-batches M the gradients of M parts of the batch are added up before the update.

Needs torch; exporting needs onnx and onnxscript (tests/parity/README.md says how to get them).
"""

import argparse
import json
import resource
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "parity"))
import networks  # noqa: E402

VOCABULARY = 256
# name: (network, batch, shape of a sample)
MODELS = {
    # ResNet-18 for 32x32, 11.2 million parameters.
    "resnet18": (lambda: networks.ResNet18(width=64), 64, (3, 32, 32)),
    # A decoder of nanoGPT's "baby" size: 6 blocks of 384, context 256; embedding and head untied.
    "gpt": (
        lambda: networks.LanguageModel(VOCABULARY, tokens=256, width=384, heads=6, depth=6),
        8,
        (256,),
    ),
    "gpt-small": (
        lambda: networks.LanguageModel(VOCABULARY, tokens=64, width=128, heads=4, depth=4),
        16,
        (64,),
    ),
}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.01),
}


def make_data(name, samples, shape):
    random = np.random.default_rng(1)
    if name == "resnet18":
        x = random.normal(size=(samples, *shape)).astype(np.float32)
        return x, random.integers(0, 10, samples)
    x = random.integers(0, VOCABULARY, (samples, *shape))
    return x, np.roll(x, -1, axis=1)


def export(name, network, x, path):
    if name == "resnet18":
        # The TorchScript exporter for training is the one that keeps BatchNormalization.
        torch.onnx.export(
            network.train(),
            (x[:2],),
            path,
            dynamo=False,
            input_names=["x"],
            output_names=["logits"],
            dynamic_axes={"x": {0: "batch"}, "logits": {0: "batch"}},
            opset_version=17,
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
        )
        return
    torch.onnx.export(
        network,
        (x[:2],),
        path,
        dynamo=True,
        external_data=False,
        input_names=["x"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        opset_version=18,
        verbose=False,
    )


def loss_of(logits, labels):
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def time_steps(network, optimizer, x, y, arguments):
    """Returns wall and processor seconds of each step after the warm-up, and the last loss."""
    wall, processor, value = [], [], 0.0
    parts = list(zip(x.chunk(arguments.micro_batches), y.chunk(arguments.micro_batches)))
    for step in range(arguments.warmup + arguments.steps):
        wall_start, processor_start = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        value = 0.0
        for inputs, labels in parts:
            loss = loss_of(network(inputs), labels) / len(parts)
            loss.backward()
            value += loss.item()
        optimizer.step()
        if step >= arguments.warmup:
            wall.append(time.perf_counter() - wall_start)
            processor.append(time.process_time() - processor_start)
    return wall, processor, value


def peak_mebibytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    parser.add_argument("--batch", type=int, default=None, help="samples per step")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10, help="timed steps; 0: only export")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--export", type=Path, help="write the initial network to this ONNX file")
    parser.add_argument("--data", type=Path, help="write the batch to this .npz file")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.set_num_interop_threads(1)
    torch.manual_seed(1)
    make_network, batch, shape = MODELS[arguments.model]
    batch = arguments.batch or batch
    network = networks.make_distinct(make_network(), seed=1)
    x, y = make_data(arguments.model, batch, shape)
    if arguments.data:
        np.savez(arguments.data, x=x, y=y)
    x, y = torch.tensor(x), torch.tensor(y)
    if arguments.export:
        export(arguments.model, network, x, arguments.export)
    if arguments.steps == 0:
        return

    before = peak_mebibytes()
    optimizer = OPTIMIZERS[arguments.optimizer](network.parameters())
    wall, processor, loss = time_steps(network.train(), optimizer, x, y, arguments)
    step = statistics.median(wall)
    record = {
        "program": f"PyTorch {torch.__version__}",
        "model": arguments.model,
        "parameters": sum(p.numel() for p in network.parameters()),
        "optimizer": arguments.optimizer,
        "batch": batch,
        "micro_batches": arguments.micro_batches,
        "threads": arguments.threads,
        "steps": arguments.steps,
        "step_ms": round(1e3 * step, 3),
        "step_ms_min": round(1e3 * min(wall), 3),
        "step_cpu_ms": round(1e3 * statistics.median(processor), 3),
        "samples_per_s": round(batch / step, 3),
        "peak_rss_mib": round(peak_mebibytes(), 1),
        "rss_before_mib": round(before, 1),
        "loss": loss,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
