"""Times training steps of PyTorch on a GPU, on a network whose weights and batch are in a folder (prepare.py).

    python3 peer_pytorch_gpu.py MODEL FOLDER --steps 20 [--compile] [--channels-last] [--bf16 | --exact] [--device cpu]

Prints one JSON line. A step ends when its loss is on the host, as in pipetrain. Compilation is not timed.
`peak_mib` is the peak reserved memory of PyTorch's allocator (`allocated_mib`: peak of allocated tensors).
"""

import argparse
import json
import time
from pathlib import Path

import torch

from models import ALL_MODELS
from peer_pytorch import every, load, loss_of, optimizer_of

WARM_UPS = 5


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=ALL_MODELS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--exact", action="store_true", help="no TF32, which convolutions use by default")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    arguments = parser.parse_args()
    device = arguments.device
    if arguments.exact:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    network, x, y = load(arguments.model, arguments.folder)
    # Moves the model before the optimizer is created.
    network = network.to(device)
    if arguments.channels_last:
        network = network.to(memory_format=torch.channels_last)
        x = [one.contiguous(memory_format=torch.channels_last) for one in every(x)]
    # Both sides copy the batch from the host in every step.
    if device == "cuda":
        x, y = [one.pin_memory() for one in every(x)], y.pin_memory()
    optimizer = optimizer_of(network, ALL_MODELS[arguments.model])
    forward = torch.compile(network) if arguments.compile else network

    def step():
        inputs, labels = [one.to(device, non_blocking=True) for one in every(x)], y.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=arguments.bf16):
            loss = loss_of(forward(*inputs), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    losses, times, first_step_at = [], [], None
    for number in range(WARM_UPS + arguments.steps):
        start = time.perf_counter()
        losses.append(step())
        if device == "cuda":
            torch.cuda.synchronize()
        first_step_at = first_step_at or time.time()
        if number >= WARM_UPS:
            times.append(1e3 * (time.perf_counter() - start))
    on_gpu = device == "cuda"
    print(json.dumps({
        "version": torch.__version__,
        "step_ms": times,
        "first_step_at": first_step_at,
        "losses": losses[:3],
        "peak_mib": torch.cuda.max_memory_reserved() / 2**20 if on_gpu else 0,
        "allocated_mib": torch.cuda.max_memory_allocated() / 2**20 if on_gpu else 0,
    }))


if __name__ == "__main__":
    main()
