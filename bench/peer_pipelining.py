"""Times training steps of torch.distributed.pipelining over gloo: two processes of one thread each, one stage each.

    python3 peer_pipelining.py MODEL FOLDER --schedule 1f1b|gpipe --micro-batches 8 --steps 5

FOLDER holds what prepare.py made. The network is cut where its measured segments balance best. Prints one JSON line.
"""

import argparse
import json
import os
import queue
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from models import MODELS
from peer_pytorch import load, loss_of, optimizer_of

STAGES = 2
SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


def grouped(network):
    """Groups of segments between which the network may be cut: not before a ReLU, which works in place."""
    groups = []
    for segment in network.segments():
        if isinstance(segment, nn.ReLU) and groups:
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups


class Part(nn.Module):
    """A module of consecutive segments of a network."""

    def __init__(self, network, groups):
        super().__init__()
        self.segments = [segment for group in groups for segment in group]
        owned = {id(parameter) for segment in self.segments for parameter in parameters_of(segment)}
        for name, parameter in network.named_parameters():
            if id(parameter) in owned:
                self.register_parameter(name.replace(".", "_"), parameter)

    def forward(self, x):
        for segment in self.segments:
            x = segment(x)
        return x.contiguous()


def parameters_of(segment):
    """Parameters of a module, or of a method that is a segment: those of its module that the method reads."""
    if isinstance(segment, nn.Module):
        return list(segment.parameters())
    owner = segment.__self__
    names = segment.__code__.co_names
    return [parameter for name, parameter in owner.named_parameters() if all(part in names for part in name.split(".")[:1])]


def seconds_of_segments(network, x, y):
    """Seconds of forward and backward of each group of segments, the last with the loss."""
    times = []
    groups = grouped(network)
    for number, group in enumerate(groups):
        best, detached = float("inf"), None
        for _ in range(3):
            given = x.detach()
            if given.is_floating_point() and number > 0:
                given.requires_grad_(True)
            start = time.perf_counter()
            out = given
            for segment in group:
                out = segment(out)
            value = loss_of(out, y) if number == len(groups) - 1 else out
            if value.requires_grad:
                value.backward(torch.ones_like(value))
            best = min(best, time.perf_counter() - start)
            detached = out.detach().clone()
        times.append(best)
        x = detached
    network.zero_grad(set_to_none=True)
    return times


def best_cut(times):
    """The first group of the second stage."""
    return min(range(1, len(times)), key=lambda cut: max(sum(times[:cut]), sum(times[cut:])))


def run_rank(rank, arguments, store, results):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=STAGES)
    network, x, y = load(arguments.model, arguments.folder)
    cut = torch.zeros(1, dtype=torch.int64)
    if rank == 0:
        rows = max(1, len(x) // arguments.micro_batches)
        state = {key: value.clone() for key, value in network.state_dict().items()}
        cut[0] = best_cut(seconds_of_segments(network, x[:rows], y[:rows]))
        network.load_state_dict(state)  # running statistics have moved
    dist.broadcast(cut, 0)
    groups = grouped(network)
    part = Part(network, groups[: int(cut)] if rank == 0 else groups[int(cut) :])
    stage = PipelineStage(part, rank, STAGES, torch.device("cpu"))
    schedule = SCHEDULES[arguments.schedule](stage, arguments.micro_batches, loss_fn=loss_of)
    optimizer = optimizer_of(part, MODELS[arguments.model])
    times, losses = [], []
    first_step_at = None
    for step in range(arguments.steps + 1):
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        parts = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=parts)
        optimizer.step()
        dist.barrier()
        if step > 0:
            times.append(1e3 * (time.perf_counter() - start))
        first_step_at = first_step_at or time.time()
        if parts:
            losses.append(statistics.fmean(part.item() for part in parts))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    results.put({"rank": rank, "step_ms": times, "losses": losses[:3], "peak_mib": peak, "first_step_at": first_step_at,
                 "cut": int(cut), "groups": len(groups)})
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=[name for name, model in MODELS.items() if model.pipelined])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    context = processes.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=run_rank, args=(rank, arguments, f"{folder}/store", results)) for rank in range(STAGES)]
        for process in ranks:
            process.start()
        found = []
        while len(found) < STAGES:
            try:
                found.append(results.get(timeout=1))
            except queue.Empty:
                if any(process.exitcode for process in ranks):
                    for process in ranks:
                        process.terminate()
                    sys.exit("a process of the pipeline has failed")
        found.sort(key=lambda result: result["rank"])
        for process in ranks:
            process.join()
    print(json.dumps({
        "version": torch.__version__,
        "step_ms": found[1]["step_ms"],
        "losses": found[1]["losses"],
        "first_step_at": found[1]["first_step_at"],
        "peak_mib": sum(result["peak_mib"] for result in found),
        "cut": f"{found[0]['cut']} of {found[0]['groups']}",
    }))


if __name__ == "__main__":
    main()
