#!/usr/bin/env python3
"""Prints the numbers that the tests of this folder hold, in double.

PyTorch gives those of rmsprop, adagrad and the learning rates. LAMB, LARS and Lion, which it has not, are written here in
numpy after the papers. Needs torch and numpy; run by hand when a case is added.
"""

import math

import numpy as np
import torch

START = [0.5, -1.25, 2.0, 0.0]
STEPS = 5


def gradient(step):
    """The gradient of update `step`, which counts from 1."""
    return np.array([math.sin(1.3 * i + 0.7 * step) * (1 + 0.25 * i) for i in range(4)])


def of_pytorch(make):
    """The parameter after five updates of the optimizer that `make` returns."""
    parameter = torch.nn.Parameter(torch.tensor(START, dtype=torch.float64))
    optimizer = make([parameter])
    for step in range(1, STEPS + 1):
        parameter.grad = torch.from_numpy(gradient(step))
        optimizer.step()
    return parameter.detach().numpy()


def norm(x):
    """Euclidean norm."""
    return math.sqrt(float(np.sum(x * x)))


def lamb(rate, beta1, beta2, epsilon, decay, start=START):
    """You et al., Large Batch Optimization for Deep Learning, ICLR 2020, algorithm 2, phi(z) = z."""
    x, m, v = np.array(start), np.zeros(4), np.zeros(4)
    for t in range(1, STEPS + 1):
        g = gradient(t)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        u = m_hat / (np.sqrt(v_hat) + epsilon) + decay * x
        trust = norm(x) / norm(u) if norm(x) > 0 and norm(u) > 0 else 1.0
        x = x - rate * trust * u
    return x


def lars(rate, momentum, decay, start=START):
    """You et al., Large Batch Training of Convolutional Networks, 2017, algorithm 1."""
    w, v = np.array(start), np.zeros(4)
    for t in range(1, STEPS + 1):
        g = gradient(t)
        local = 1e-3 * norm(w) / (norm(g) + decay * norm(w)) if norm(w) > 0 and norm(g) > 0 else 1.0
        v = momentum * v + rate * local * (g + decay * w)
        w = w - v
    return w


def lion(rate, beta1, beta2, decay):
    """Chen et al., Symbolic Discovery of Optimization Algorithms, 2023, algorithm 2."""
    x, m = np.array(START), np.zeros(4)
    for t in range(1, STEPS + 1):
        g = gradient(t)
        c = beta1 * m + (1 - beta1) * g
        x = x - rate * (np.sign(c) + decay * x)
        m = beta2 * m + (1 - beta2) * g
    return x


def rates(make, steps, peak=0.2):
    """The learning rates of updates 1, 2, … under the scheduler that `make` returns."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    schedule = make(optimizer)
    out = [optimizer.param_groups[0]["lr"]]
    while len(out) < steps:
        optimizer.step()
        schedule.step()
        out.append(optimizer.param_groups[0]["lr"])
    return out


def loss_scales(steps, **settings):
    """GradScaler's scale after steps with finite ("1") and other ("0") gradients."""
    scaler = torch.amp.GradScaler("cpu", **settings)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    out = []
    for finite in steps:
        optimizer.zero_grad()
        scaler.scale(parameter.sum() * (1.0 if finite == "1" else math.inf)).backward()
        scaler.step(optimizer)
        scaler.update()
        out.append(scaler.get_scale())
    return out


def show(name, values):
    """One line of C++ initialisers."""
    print(f"{name}: {{{', '.join(repr(float(x)) for x in values)}}}")


def main():
    """Prints every case."""
    zeros = [0.0] * 4
    optim, schedules = torch.optim, torch.optim.lr_scheduler
    show("rmsprop centered", of_pytorch(lambda p: optim.RMSprop(p, lr=0.01, centered=True)))
    show("rmsprop centered decay",
         of_pytorch(lambda p: optim.RMSprop(p, lr=0.01, alpha=0.9, eps=1e-4, centered=True, weight_decay=0.05)))
    show("adagrad", of_pytorch(lambda p: optim.Adagrad(p, lr=0.1)))
    show("adagrad decay", of_pytorch(lambda p: optim.Adagrad(p, lr=0.1, eps=1e-3, weight_decay=0.05)))
    show("lamb", lamb(0.01, 0.9, 0.999, 1e-6, 0.01))
    show("lamb without decay", lamb(0.02, 0.8, 0.95, 1e-3, 0))
    show("lamb from zero", lamb(0.01, 0.9, 0.999, 1e-6, 0.01, zeros))
    show("lars", lars(1, 0.9, 5e-4))
    show("lars plain", lars(100, 0, 0.05))
    show("lars from zero", lars(0.1, 0.9, 5e-4, zeros))
    show("lion", lion(0.01, 0.9, 0.99, 0))
    show("lion decay", lion(0.01, 0.8, 0.95, 0.1))
    show("multistep", rates(lambda o: schedules.MultiStepLR(o, [2, 3, 6], gamma=0.5), 8))
    show("exponential", rates(lambda o: schedules.ExponentialLR(o, 0.7), 6))
    show("polynomial", rates(lambda o: schedules.PolynomialLR(o, 6, power=2), 8))
    show("onecycle", rates(lambda o: schedules.OneCycleLR(o, 0.2, total_steps=10), 10))
    show("loss scale", loss_scales("00111101110111111101110000111", growth_interval=3))
    show("loss scale, other factors",
         loss_scales("1101011", init_scale=1000.0, growth_interval=2, growth_factor=1.5, backoff_factor=0.25))
    show("largest loss scale", loss_scales("1111", init_scale=2.0**126, growth_interval=1))
    show("onecycle 40 %", rates(lambda o: schedules.OneCycleLR(o, 0.2, total_steps=10, pct_start=0.4), 10))


if __name__ == "__main__":
    main()
