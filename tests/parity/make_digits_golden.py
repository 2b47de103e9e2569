#!/usr/bin/env python3
"""Writes scripts/gpu_check/digits.json: the losses that 20 steps of models/digits-cnn.onnx must have, by PyTorch in float64.

Batches of 64 in the order of the file, in 8 micro-batches of 8 (BatchNormalization takes its moments from each), SGD with momentum. Beside
the losses stands how far rounding moves them: `float32` is the largest relative distance of runs whose weights and gradients carry
float32's rounding, `bfloat16` that of runs under autocast. `asynchronous` has the losses with four stages of the schedules that read old
weights; those of pipedream depend on the cuts, `split`. Needs torch and onnx.

    python3 make_digits_golden.py
"""

import gzip
import json

import numpy as np
import torch
from torch.nn import functional

from digits_accuracy import MODELS, load_network

OUTPUT = MODELS.parent / "scripts" / "gpu_check" / "digits.json"
STEPS, BATCH, MICRO_BATCHES, RATE, MOMENTUM = 20, 64, 8, 0.01, 0.9
RUNS = 20  # with rounding
SPLIT = ("wide.conv", "block.conv1", "last.conv")  # where stages 1 to 3 begin


def load_data():
    rows = np.loadtxt(gzip.open(MODELS / "digits.csv.gz", "rt"), delimiter=",")
    return torch.from_numpy(rows[:, :64]).reshape(-1, 1, 8, 8), torch.from_numpy(rows[:, 64]).long()


def losses_of(dtype, noise=0.0, autocast=False, seed=0):
    """Of each step; `noise` moves every weight and gradient by so much of itself, at random."""
    generator = torch.Generator().manual_seed(seed)
    network = load_network().to(dtype).train()
    x, y = load_data()
    x = x.to(dtype)
    losses = []
    velocities = [torch.zeros_like(weight) for weight in network.parameters()]

    def moved(tensor):
        signs = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor.dtype) * 2 - 1
        return tensor * (1 + noise * signs)

    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        network.zero_grad()
        value = 0.0
        for inputs, labels in zip(x[rows].chunk(MICRO_BATCHES), y[rows].chunk(MICRO_BATCHES)):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = functional.cross_entropy(network(inputs), labels) / MICRO_BATCHES
            loss.backward()
            value += loss.item()
        losses.append(value)
        with torch.no_grad():
            for weight, velocity in zip(network.parameters(), velocities):
                velocity.mul_(MOMENTUM).add_(moved(weight.grad))
                weight.copy_(moved(weight - RATE * velocity))
    return np.array(losses)


def stage_of(parameter, parameters):
    """The stage of a parameter, in the order of the network."""
    first = [next(i for i, name in enumerate(parameters) if name.startswith(node + ".")) for node in SPLIT]
    return sum(parameters.index(parameter) >= begin for begin in first)


def losses_of_old_weights(age, micro_batches):
    """Of each step, where a batch is computed with the weights of `age(stage)` updates ago, forwards and backwards (PipeDream's weight
    stashing; Harlap et al. 2018, Narayanan et al. 2021)."""
    network = load_network().to(torch.float64).train()
    x, y = load_data()
    x = x.to(torch.float64)
    names = [name for name, _ in network.named_parameters()]
    versions = {name: [weight.detach()] for name, weight in network.named_parameters()}
    velocities = {name: torch.zeros_like(weight[0]) for name, weight in versions.items()}
    losses = []
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        weights = {name: all_of[max(0, step - age(stage_of(name, names)))].clone().requires_grad_() for name, all_of in versions.items()}
        value = 0.0
        for inputs, labels in zip(x[rows].chunk(micro_batches), y[rows].chunk(micro_batches)):
            loss = functional.cross_entropy(torch.func.functional_call(network, weights, inputs), labels) / micro_batches
            loss.backward()
            value += loss.item()
        losses.append(value)
        for name, weight in weights.items():
            velocities[name] = MOMENTUM * velocities[name] + weight.grad
            versions[name].append(versions[name][-1] - RATE * velocities[name])
    return losses


def main():
    torch.set_num_threads(1)
    exact = losses_of(torch.float64)

    def distance(losses):
        return float(np.max(np.abs(losses - exact) / exact))

    float32 = max([distance(losses_of(torch.float32))] +
                  [distance(losses_of(torch.float64, noise=2.0**-22, seed=seed)) for seed in range(RUNS)])
    bfloat16 = max([distance(losses_of(torch.float32, autocast=True))] +
                   [distance(losses_of(torch.float32, noise=2.0**-12, autocast=True, seed=seed)) for seed in range(RUNS)])
    golden = {"batch": BATCH, "micro_batches": MICRO_BATCHES, "rate": RATE, "momentum": MOMENTUM, "losses": exact.tolist(),
              "float32": float32, "bfloat16": bfloat16, "split": ",".join(SPLIT),
              "asynchronous": {"pipedream": losses_of_old_weights(lambda stage: len(SPLIT) - stage, micro_batches=1),
                               "pipedream-vertical": losses_of_old_weights(lambda stage: len(SPLIT), micro_batches=1),
                               "pipedream-2bw": losses_of_old_weights(lambda stage: 1, MICRO_BATCHES)}}
    OUTPUT.write_text(json.dumps(golden, indent=1) + "\n")
    print(f"{exact[0]:.4f} … {exact[-1]:.4f}, float32 within {float32:.1e}, bfloat16 within {bfloat16:.1e}")


if __name__ == "__main__":
    main()
