"""Times training steps of PyTorch's DistributedDataParallel over gloo: processes of one thread each, which divide a batch.

    python3 peer_ddp.py MODEL FOLDER --processes 2 --batch 256 --steps 5

FOLDER holds what prepare.py made. One process trains without DistributedDataParallel. Prints one JSON line.
"""

import argparse
import json
import os
import queue
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.nn.parallel import DistributedDataParallel

from models import ALL_MODELS
from peer_pytorch import load, loss_of, optimizer_of


def run_rank(rank, arguments, store, results):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=arguments.processes)
    network, x, y = load(arguments.model, arguments.folder)
    x, y = x[:arguments.batch].chunk(arguments.processes)[rank], y[:arguments.batch].chunk(arguments.processes)[rank]
    if arguments.processes > 1:
        network = DistributedDataParallel(network)
    optimizer = optimizer_of(network, ALL_MODELS[arguments.model])
    times, losses = [], []
    used = 0.0
    for step in range(arguments.steps + 1):
        dist.barrier()
        start, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        value = loss_of(network(x), y)
        value.backward()
        optimizer.step()
        losses.append(value.item())
        dist.barrier()
        if step > 0:
            times.append(1e3 * (time.perf_counter() - start))
            used += time.process_time() - cpu
    results.put({"rank": rank, "step_ms": times, "losses": losses[:3], "cpu_ms": 1e3 * used / arguments.steps,
                 "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024})
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=ALL_MODELS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    context = processes.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=run_rank, args=(rank, arguments, f"{folder}/store", results)) for rank in range(arguments.processes)]
        for process in ranks:
            process.start()
        found = []
        while len(found) < arguments.processes:
            try:
                found.append(results.get(timeout=1))
            except queue.Empty:
                if any(process.exitcode for process in ranks):
                    for process in ranks:
                        process.terminate()
                    sys.exit("a process has failed")
        for process in ranks:
            process.join()
    found.sort(key=lambda result: result["rank"])
    print(json.dumps({
        "version": torch.__version__,
        "step_ms": found[0]["step_ms"],
        "losses": [sum(values) / len(values) for values in zip(*(result["losses"] for result in found))],
        "cpu_ms": sum(result["cpu_ms"] for result in found),
        "peak_mib": sum(result["peak_mib"] for result in found),
    }))


if __name__ == "__main__":
    main()
