#!/usr/bin/env python3
"""Trains five networks in PyTorch for 50 steps and writes goldens/: what pipetrain must reproduce.

Needs torch, onnx, onnxscript and numpy; see README.md for a throw-away environment.

    python3 make_goldens.py [NAME ...]
"""

import copy
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch.nn import functional

import networks

GOLDENS = Path(__file__).resolve().parent / "goldens"
STEPS = 50
BATCH = 16
SEED = 11
CLASSES = 10
OPTIMIZERS = {
    "sgd": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.0},
    "adamw": {"lr": 1e-3, "weight_decay": 0.01},
}
# Its features start large (see keep_off_kinks), so that larger steps would make it diverge. AdamW
# divides by the size of a gradient and so turns the rounding of the smallest ones into whole steps;
# with this epsilon it does not.
RESNET_SETTINGS = {"sgd": {"lr": 1e-3}, "adamw": {"lr": 3e-4, "eps": 1e-2}}
# Beyond this a curve says more about rounding than about the arithmetic of training: a fifth of
# what compare.py allows, so that any program that computes in float32 stays within it.
LARGEST_CURVE_NOISE = 2e-5
# Runs in float64 with the noise of float32.
ROUNDINGS = 3
# A gradient this small beside the largest of its network, in float64, is rounding: it is zero.
ZERO_GRADIENT = 1e-12


def export_default(network, sample, path):
    torch.onnx.export(
        network,
        (sample,),
        path,
        dynamo=True,
        external_data=False,
        input_names=["x"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        opset_version=18,
        verbose=False,
    )


def export_torchscript(network, sample, path, training=torch.onnx.TrainingMode.EVAL):
    torch.onnx.export(
        network,
        (sample,),
        path,
        dynamo=False,
        input_names=["x"],
        output_names=["logits"],
        dynamic_axes={"x": {0: "batch"}, "logits": {0: "batch"}},
        opset_version=17,
        training=training,
        do_constant_folding=training == torch.onnx.TrainingMode.EVAL,
    )


def export_torchscript_training(network, sample, path):
    """Keeps BatchNormalization as a node, with training_mode = 1."""
    export_torchscript(network, sample, path, torch.onnx.TrainingMode.TRAINING)


def drop_stack_traces(path):
    """Takes the exporter's notes on source lines out of a file: they hold paths of this machine."""
    model = onnx.load(path)
    for node in model.graph.node:
        kept = [p for p in node.metadata_props if "stack_trace" not in p.key]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    onnx.save(model, path)


def noisy_prototypes(shape, samples, noise, random, scale=1.0):
    """Inputs made of one pattern per class and noise, on a coarse grid so that they pack well."""
    prototypes = random.normal(size=(CLASSES, *shape))
    y = random.integers(0, CLASSES, samples)
    x = prototypes[y] + noise * random.normal(size=(samples, *shape))
    return (np.round(x * 8) / 8 * scale).astype(np.float32), y


def token_counts(tokens, vocabulary, samples, random):
    """Sequences in which each class prefers some tokens."""
    preference = np.exp(1.5 * random.normal(size=(CLASSES, vocabulary)))
    preference /= preference.sum(1, keepdims=True)
    y = random.integers(0, CLASSES, samples)
    x = [random.choice(vocabulary, tokens, p=preference[label]) for label in y]
    return np.array(x, np.int64), y


def make_mlp(random):
    return networks.mlp(), noisy_prototypes((32,), 400, 2.0, random), export_default


def make_lenet(random):
    data = noisy_prototypes((1, 28, 28), 80, 2.0, random, scale=0.5)
    return networks.lenet(), data, export_torchscript


def make_resnet(random):
    network = networks.keep_off_kinks(networks.ResNet18(width=8))
    return network, noisy_prototypes((3, 32, 32), 80, 2.0, random), export_torchscript_training


def make_nfnet(random):
    # Kept in training mode, so that the exporter does not fold what depends on weights alone.
    return networks.NFNet(), noisy_prototypes((3, 16, 16), 80, 2.0, random), export_torchscript_training


def make_transformer(random):
    return networks.TransformerClassifier(), token_counts(16, 64, 400, random), export_default


MAKERS = {
    "mlp": make_mlp,
    "lenet": make_lenet,
    "nfnet": make_nfnet,
    "resnet18": make_resnet,
    "transformer": make_transformer,
}


def file_names(network, path):
    """Maps each parameter and running statistic to (initializer, transposed?) by its value."""
    model = onnx.load(path)
    arrays = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    mapping = {}
    for name, tensor in network.state_dict().items():
        if not tensor.is_floating_point():
            continue
        value = tensor.numpy()
        found = [(n, False) for n, a in arrays.items() if np.array_equal(a, value)]
        if value.ndim == 2:
            # Twice in the file means a shared weight of which the exporter has made two.
            found += [(n, True) for n, a in arrays.items() if np.array_equal(a, value.T)]
        if len(found) != 1:
            raise RuntimeError(f"{name} is in {path.name} {len(found)} times")
        mapping[name] = found[0]
    parameters = dict(network.named_parameters())
    if len({mapping[name] for name in parameters}) != len(parameters):
        raise RuntimeError(f"the exporter has merged tensors in {path.name}")
    return mapping


def load_statistics(network, path):
    """Takes running statistics from the file: exporting in training mode has moved them."""
    arrays = {i.name: numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer}
    state = network.state_dict()
    for name in state:
        if name.endswith(("running_mean", "running_var")):
            state[name].copy_(torch.tensor(arrays[name]))


def settings_of(name, kind):
    settings = dict(OPTIMIZERS[kind])
    if name == "resnet18":
        settings |= RESNET_SETTINGS[kind]
    return settings


class Rounding:
    """Adds noise of the size of float32's rounding to what a float64 run computes.

    The outputs of all layers, the gradients of these and of the parameters, and the parameters
    after each step. However another program or CPU orders its float32 sums, its error is of this
    size; how far the run moves says how far such a program may be off.
    """

    # Of the root mean square of a tensor: four units in the last place.
    NOISE = 2.0**-22
    # Of a parameter, which float32 rounds after its update.
    UPDATE_NOISE = 2.0**-24

    def __init__(self, network, seed):
        self.parameters = list(network.parameters())
        self.random = torch.Generator().manual_seed(seed)
        for module in network.modules():
            if not list(module.children()):
                module.register_forward_hook(lambda module, inputs, output: self.of_layer(output))

    def moved(self, tensor):
        noise = torch.randn(tensor.shape, generator=self.random, dtype=tensor.dtype)
        return tensor + self.NOISE * tensor.detach().square().mean().sqrt() * noise

    def of_layer(self, output):
        output = self.moved(output)
        if output.requires_grad:
            output.register_hook(self.moved)
        return output

    def before_step(self):
        for parameter in self.parameters:
            parameter.grad = self.moved(parameter.grad)

    def after_step(self):
        with torch.no_grad():
            for parameter in self.parameters:
                noise = 2 * torch.rand(parameter.shape, generator=self.random) - 1
                parameter.mul_(1 + self.UPDATE_NOISE * noise)


def train(initial, x, y, kind, settings, dtype=torch.float32, threads=1, rounding_seed=None):
    """Trains a copy; returns losses, final state and the largest gradient seen per parameter."""
    torch.set_num_threads(threads)
    network = copy.deepcopy(initial).to(dtype).train()
    rounding = None if rounding_seed is None else Rounding(network, rounding_seed)
    make = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[kind]
    optimizer = make(network.parameters(), **settings)
    x = torch.tensor(x)
    x = x.to(dtype) if x.is_floating_point() else x
    y = torch.tensor(y)
    losses, largest = [], {}
    for step in range(STEPS):
        start = step * BATCH % len(x)
        rows = slice(start, start + BATCH)
        optimizer.zero_grad()
        # Logits (samples, classes), or (samples, tokens, classes) with a label for each token.
        loss = functional.cross_entropy(network(x[rows]).flatten(0, -2), y[rows].flatten())
        loss.backward()
        for name, parameter in network.named_parameters():
            value = parameter.grad.abs().max().item()
            largest[name] = max(largest.get(name, 0.0), value)
        if rounding:
            rounding.before_step()
        optimizer.step()
        if rounding:
            rounding.after_step()
        losses.append(loss.item())
    state = {n: t.double().numpy() for n, t in network.state_dict().items()}
    return np.array(losses), state, largest


def distance(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(a))


def write_run(folder, name, kind, settings, initial, x, y, mapping):
    """Trains with one optimizer and writes its curve and weights; returns the curve's noise."""
    losses, weights, _ = train(initial, x, y, kind, settings)
    _, weights2, _ = train(initial, x, y, kind, settings, threads=2)
    exact, weights64, gradients = train(initial, x, y, kind, settings, dtype=torch.float64)
    noise = float(np.max(np.abs(losses - exact) / exact))
    rounded = [
        train(initial, x, y, kind, settings, dtype=torch.float64, rounding_seed=seed)
        for seed in range(1, ROUNDINGS + 1)
    ]
    sensitivity = max(float(np.max(np.abs(run[0] - exact) / exact)) for run in rounded)
    scale = max(gradients.values())
    zero = [n for n, g in gradients.items() if g < ZERO_GRADIENT * scale]

    arrays, spread, rounding = {}, {}, {}
    for parameter, (initializer, transposed) in mapping.items():
        value = weights[parameter].astype(np.float32)
        arrays[initializer] = np.ascontiguousarray(value.T if transposed else value)
        spread[initializer] = max(
            distance(weights[parameter], weights2[parameter]),
            *(distance(weights64[parameter], run[1][parameter]) for run in rounded),
        )
        rounding[initializer] = distance(weights[parameter], weights64[parameter])
    np.savez_compressed(folder / f"{name}.{kind}.weights.npz", **arrays)
    record = {
        "torch": torch.__version__,
        "model": f"{name}.onnx",
        "data": f"{name}.data.npz",
        "optimizer": kind,
        **settings,
        "loss": "cross-entropy",
        "batch": BATCH,
        "steps": STEPS,
        "losses": losses.tolist(),
        "losses_fp64": exact.tolist(),
        "fp32_vs_fp64": noise,
        "sensitivity": sensitivity,
        "zero_gradient": [mapping[n][0] for n in zero],
        "parameters": {mapping[n][0]: n for n, _ in initial.named_parameters()},
        "spread": spread,
        "weights_fp32_vs_fp64": rounding,
    }
    (folder / f"{name}.{kind}.json").write_text(json.dumps(record, indent=1) + "\n")
    worst = {n: v for n, v in rounding.items() if n not in record["zero_gradient"]}
    print(
        f"{name:<12} {kind:<6} loss {losses[0]:.4f} -> {losses[-5:].mean():.4f}, fp32 against "
        f"fp64: loss {noise:.1e} (with float32's noise {sensitivity:.1e}), weights {max(worst.values()):.1e}, "
        f"spread {max(v for n, v in spread.items() if n in worst):.1e}, "
        f"zero gradients {len(zero)}",
        flush=True,
    )
    return max(noise, sensitivity)


def make(folder, name, maker, settings_of):
    """Exports one network, trains it with each optimizer and returns the noise of the curves."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    network, (x, y), export = maker(np.random.default_rng(SEED))
    networks.make_distinct(network, SEED)
    path = folder / f"{name}.onnx"
    exported = copy.deepcopy(network)
    exported.train(export is export_torchscript_training)
    # A batch of 2 or more: the default exporter takes a 1 for a constant.
    export(exported, torch.tensor(x[:BATCH]), path)
    drop_stack_traces(path)
    load_statistics(network, path)
    np.savez_compressed(folder / f"{name}.data.npz", x=x, y=y)
    mapping = file_names(network, path)
    return [
        write_run(folder, name, kind, settings_of(name, kind), network, x, y, mapping)
        for kind in OPTIMIZERS
    ]


def make_all(folder, makers, settings_of):
    """Makes all goldens of a folder; ends the program if a curve is too noisy."""
    folder.mkdir(exist_ok=True, parents=True)
    noise = [n for name, maker in makers.items() for n in make(folder, name, maker, settings_of)]
    if max(noise) > LARGEST_CURVE_NOISE:
        sys.exit(f"a curve is chaotic: {max(noise):.1e} between float32 and float64")


def main():
    names = sys.argv[1:] or MAKERS
    make_all(GOLDENS, {name: MAKERS[name] for name in names}, settings_of)


if __name__ == "__main__":
    main()
