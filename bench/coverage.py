#!/usr/bin/env python3
"""Trains every network of coverage_networks.py (torchvision, timm, transformers, diffusers) and compares it with PyTorch.

    PYTHON bench/coverage.py [--pipetrain FILE] [--bf16] [--device cuda] [--stages N] [--only PREFIX …] [--from NAME] [--part K/N] [--more]
                             [--again FILE …] [--seconds N] [-o NAME]

PYTHON has torch, torchvision, transformers, timm, diffusers, onnx, onnxscript and numpy. In alphabetical order, each network
is exported by PyTorch's default exporter with random weights, with a free batch size if possible, and trained for three
steps of SGD on one batch of random numbers: by PyTorch in float32 and in float64, and by pipetrain from the file. Dropout,
stochastic depth and layerdrop are off. Parameters that PyTorch does not train (`frozen`) are named to pipetrain by
--freeze, as a file does not say so. Networks with BatchNorm are exported with optimize=False, without which the exporter
folds it away; all parameters are moved a little from their initial values. NAME.json is written as the run goes on, and a
name that it has already is not run again; NAME.md is the table. --again takes the rows of earlier NAME.json files over and
runs those again that did not match.

A network matches when its losses are no further from PyTorch's in float64 (`apart`) than the largest of three (`limit`):
10 times as far as PyTorch's in float32 (`float32_apart`); 10 times as far as those of a second run in float64 that starts
with every parameter one float32 unit in the last place higher or lower, by chance (`moved_apart`); and 1e-5. All are
relative, the largest of three steps. The second run shows how much the losses depend on rounding at all: they can change
much where a ReLU or a maximum is decided within rounding, and float32 arithmetic does as well as can be expected when its
losses are those of exact arithmetic on slightly other parameters. A limit above 1e-3 says little, so the table counts
those, with the distance of their first losses, which come before any update. Without float64 a network matches within 1e-4
of PyTorch's losses in float32.

With --bf16, both train in bfloat16, PyTorch under autocast, and a network matches when its losses are no further from
PyTorch's in float32 than 10 times as far as autocast's, or 1e-2.

With --device cuda, pipetrain trains on one GPU, PyTorch stays on the CPU, and the table names the operators that ran on the
host. --stages N trains each network a second time in N stages (virtual ones of one GPU); the losses must have the same bits.

Where a network does not match, it is exported again with optimize=False, since the exporter also folds arithmetic on
parameters. Steps are timed on one thread; the times mean something on a quiet machine only.
"""

import argparse
import inspect
import json
import math
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path

import coverage_report
from coverage_report import SAME_BITS, furthest

STEPS = 3
RATE = 0.01
NO_FURTHER, NO_LESS_THAN, WITHOUT_FLOAT64 = 10, 1e-5, 1e-4
NARROW_NO_LESS_THAN = 1e-2  # in bfloat16
SEED = 1
DEFAULTS = {"bf16": False, "device": "cpu", "stages": 1}


# ---- PyTorch, in a separate process ----


def is_float(tensor):
    return tensor.is_floating_point()


def wrapped(network):
    """A module that takes its inputs in order and returns the tensor that is trained."""
    import torch

    from network_makers import first_tensor

    names, pick = list(network.inputs), network.pick or first_tensor

    class OneResult(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = network.module

        def forward(self, *inputs):
            result = self.module(**dict(zip(names, inputs))) if network.keywords else self.module(*inputs)
            return pick(result)

    return OneResult()


def drops_layers(module):
    """Whether forward() leaves layers out by chance: also with a probability of 0 it draws numbers, which a file cannot have."""
    try:
        return "layerdrop" in inspect.getsource(type(module).forward)
    except (OSError, TypeError):  # not written in Python, or made as the program runs
        return False


def without_dropout(module):
    import torch

    module.train()
    for part in module.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for name in ("drop_prob", "attn_drop_prob", "proj_drop_prob", "dropout_prob", "layerdrop"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
        if type(part).__name__ == "StochasticDepth":
            part.p = 0.0
        if drops_layers(part):
            part.training = False  # of this module alone, not of its layers
    return module


def off_equal_values(module):
    """Makes initial gains and shifts differ: the exporter merges equal tensors, and then shared ones could not be told apart."""
    import torch

    with torch.no_grad():
        for parameter in module.parameters():
            if is_float(parameter):
                parameter.add_(torch.randn(parameter.shape) * 0.02)
    return module


def one_unit_off(module):
    """Moves every parameter to the next float32, up or down by chance."""
    import torch

    torch.manual_seed(SEED)
    with torch.no_grad():
        for parameter in module.parameters():
            if is_float(parameter):
                ends = torch.where(torch.rand(parameter.shape) < 0.5, torch.inf, -torch.inf)
                parameter.copy_(torch.nextafter(parameter, ends))
    return module


def loss_of(output, labels, kind):
    """Mean; classes are the last axis of one to three, and the second of more."""
    from torch.nn import functional

    if kind != "cross-entropy":
        return functional.mse_loss(output, labels)
    if output.dim() == 3:
        return functional.cross_entropy(output.flatten(0, 1), labels.flatten())
    return functional.cross_entropy(output, labels)


def labels_for(output, kind):
    import torch

    if kind != "cross-entropy":
        return torch.randn(output.shape)
    classes_last = output.dim() <= 3
    classes = output.shape[-1 if classes_last else 1]
    return torch.randint(0, classes, output.shape[:-1] if classes_last else output.shape[:1] + output.shape[2:])


def normalizes(module):
    import torch

    return any(isinstance(part, torch.nn.modules.batchnorm._BatchNorm) for part in module.modules())


def export(module, network, path, folds):
    """Exports with a free batch size, or a fixed one where PyTorch cannot; returns which."""
    import copy

    import torch

    inputs = tuple(network.inputs.values())
    for samples, shapes in (("any", (tuple({0: "batch"} for _ in inputs),)), ("fixed", None)):
        try:
            torch.onnx.export(copy.deepcopy(module), inputs, path, input_names=list(network.inputs), dynamic_shapes=shapes, dynamo=True,
                              optimize=folds, external_data=False, verbose=False)
            return samples
        except Exception:  # noqa: BLE001: whatever the exporter cannot do
            if samples == "fixed":
                raise


def trained(module, inputs, labels, kind, dtype, narrow=False):
    import torch

    module = module.to(dtype)
    inputs = [x.to(dtype) if is_float(x) else x for x in inputs]
    labels = labels.to(dtype) if is_float(labels) else labels
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=RATE)
    losses, seconds = [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            loss = loss_of(module(*inputs), labels, kind)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    return losses, step_ms(seconds)


def step_ms(seconds):
    """Of the fastest step behind the first, which also allocates memory."""
    return 1e3 * min(seconds[1:])


def pytorch_side(name, folder, may_fold, narrow):
    """Exports and trains. Writes the results into FOLDER, and the last completed step into found.json."""
    import copy

    import numpy as np
    import onnx
    import torch

    from coverage_networks import NETWORKS
    from more_coverage_networks import MORE_NETWORKS

    found = {"phase": "making"}

    def reached(phase):
        found["phase"] = phase
        (folder / "found.json").write_text(json.dumps(found))

    reached("making")
    torch.manual_seed(SEED)
    network = (NETWORKS | MORE_NETWORKS)[name]()
    module = off_equal_values(without_dropout(wrapped(network)))
    inputs = list(network.inputs.values())
    found["parameters"] = sum(p.numel() for p in module.parameters())
    with torch.no_grad():
        output = copy.deepcopy(module)(*inputs)
    labels = labels_for(output, network.loss)
    found["loss"] = network.loss
    found["folds"] = folds = may_fold and not normalizes(module)
    found["batch"] = inputs[0].shape[0]
    reached("exporting")
    found["samples"] = export(module, network, folder / "model.onnx", folds)
    tensors = {tensor.name for tensor in onnx.load(folder / "model.onnx").graph.initializer}
    found["frozen"] = [key for key, parameter in module.named_parameters() if not parameter.requires_grad and key in tensors]
    arrays = {key: value.numpy() for key, value in network.inputs.items()}
    np.savez(folder / "batch.npz", **arrays, labels=labels.numpy())
    reached("training")
    found["float32"], found["pytorch_ms"] = trained(copy.deepcopy(module), inputs, labels, network.loss, torch.float32)
    if narrow:
        found["bfloat16"], found["pytorch_ms"] = trained(module, inputs, labels, network.loss, torch.float32, narrow=True)
        reached("done")
        return
    try:
        found["float64"], _ = trained(copy.deepcopy(module), inputs, labels, network.loss, torch.float64)
        found["moved"], _ = trained(one_unit_off(module), inputs, labels, network.loss, torch.float64)
    except RuntimeError as failure:  # some networks make float32 tensors on the way
        found["no_float64"] = str(failure).splitlines()[0][:200]
    reached("done")


def in_child(name, folder, seconds, may_fold, narrow):
    """Runs pytorch_side in a forked process, which shares the imports; returns the error, if any."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            quiet = os.open(folder / "pytorch.log", os.O_CREAT | os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            pytorch_side(name, folder, may_fold, narrow)
            code = 0
        except BaseException as failure:  # noqa: BLE001: whatever it is, it is the result
            traceback.print_exc()
            while failure.__cause__ is not None:
                failure = failure.__cause__
            first = (str(failure).strip().splitlines() or [""])[0]
            (folder / "failure.txt").write_text(f"{type(failure).__name__}: {first}"[:300])
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if status == 0:
                return ""
            failure = folder / "failure.txt"
            return failure.read_text() if failure.exists() else f"ended with status {status}"
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"takes longer than {seconds} s"


# ---- pipetrain ----


def pipetrain_side(arguments, folder, found, stages=1):
    """Trains the file; returns the losses or the error message."""
    events, kernels, seconds = folder / "events.jsonl", folder / "kernels.log", arguments.seconds
    device = ["--device", "cpu"] if arguments.device == "cpu" else ["--gpu-ids", ",".join(["0"] * stages)]
    command = [arguments.pipetrain, "train", "--model", folder / "model.onnx", "--data", folder / "batch.npz", "--tie", "pytorch", "--normalize", "none", "--no-shuffle",
               *device, "--stages", stages, "--precision", "bf16" if arguments.bf16 else "fp32", "--threads", 1, "--batch-size", found["batch"], "--micro-batches", 1, "--loss", found["loss"],
               "--optimizer", "sgd", "--lr", RATE, "--momentum", 0, "--lr-schedule", "constant", "--epochs", STEPS, "--save-every", "never",
               *(word for key in found["frozen"] for word in ("--freeze", key)), "--run-dir", folder / "run", "--overwrite", "--metrics", events, "-o", folder / "trained.onnx", "-q"]
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=seconds,
                              env={**os.environ, "PIPETRAIN_CACHE_DIR": str(folder.parent / "cache"), "PIPETRAIN_KERNEL_LOG": str(kernels)})
    except subprocess.TimeoutExpired:
        return {"refused": f"takes longer than {seconds} s"}
    notes = [line for line in done.stderr.splitlines() if "taken for" in line]
    if done.returncode:
        words = [line.strip() for line in done.stderr.strip().splitlines() if line.strip() and not line.startswith(("warning", "note"))]
        text = " ".join(words).replace(str(folder) + "/", "")
        return {"refused": text[-400:] or f"exit code {done.returncode}", "exit": done.returncode}
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    steps = [line for line in lines if line["event"] == "step"]
    ends = [line["t"] for line in steps]
    on_host = sorted({line.split()[1] for line in kernels.read_text().splitlines() if line.startswith("host ")} if kernels.exists() else ())
    return {**({"host": on_host} if on_host else {}), "losses": [line["loss"] for line in steps], "ms": step_ms([0, *(b - a for a, b in zip(ends, ends[1:]))]),
            **({"notes": notes} if notes else {})}


def judged(found, ours):
    """Whether the losses follow PyTorch's, and how far they, PyTorch's in float32 and those of moved parameters are from float64."""
    if "bfloat16" in found:
        apart, theirs = (furthest(losses, found["float32"]) for losses in (ours, found["bfloat16"]))
        limit = max(NO_FURTHER * theirs if theirs < math.inf else 0, NARROW_NO_LESS_THAN)
        return {"apart": apart, "autocast_apart": theirs, "limit": limit, "matches": apart <= limit}
    if not all(map(math.isfinite, found.get("float64", [math.nan]))):
        apart = furthest(ours, found["float32"])
        return {"apart": apart, "limit": WITHOUT_FLOAT64, "matches": apart <= WITHOUT_FLOAT64}
    apart, theirs, moved = (furthest(losses, found["float64"]) for losses in (ours, found["float32"], found["moved"]))
    limit = max(NO_FURTHER * theirs, NO_FURTHER * moved if moved < math.inf else 0, NO_LESS_THAN)
    return {"apart": apart, "float32_apart": theirs, "moved_apart": moved, "limit": limit, "matches": apart <= limit}


def row_of(name, arguments, folder):
    """The result of a network; where the exporter's folding of parameters changes it, of the export with optimize=False."""
    start = time.monotonic()
    row = tried(name, arguments, folder, may_fold=True)
    if row["result"] == "does not match" and row["folds"]:
        whole = tried(name, arguments, folder, may_fold=False)
        if whole["result"] == "matches":
            row = {**whole, "result": "matches if exported with optimize=False", "folded_apart": row["apart"],
                   "reason": f"by default the exporter folds arithmetic on parameters: {row['apart']:.0e} apart"}
    return {**row, "seconds": round(time.monotonic() - start, 1)}


def tried(name, arguments, folder, may_fold):
    subprocess.run(["rm", "-rf", folder], check=True)
    folder.mkdir()
    failure = in_child(name, folder, arguments.seconds, may_fold, arguments.bf16)
    path = folder / "found.json"
    found = json.loads(path.read_text()) if path.exists() else {"phase": "making"}
    row = {"name": name, **found}
    if not failure and not all(map(math.isfinite, found["float32"])):
        failure = f"its losses are {found['float32']}"
    if failure:
        kind = {"making": "not made", "exporting": "not exported"}.get(found["phase"], "not trained by PyTorch")
        row.update(result=kind, reason=failure)
    else:
        row.update(pipetrain_side(arguments, folder, found))
        if "refused" in row:
            row.update(result="refused", reason=row.pop("refused"))
        else:
            row.update(judged(found, row["losses"]))
            row["result"] = "matches" if row["matches"] else "does not match"
            if arguments.stages > 1:
                cut = pipetrain_side(arguments, folder, found, arguments.stages)
                row["in_stages"] = SAME_BITS if cut.get("losses") == row["losses"] else cut.get("refused") or f"other losses, {cut['losses']}"
    return row


def versions(binary):
    from importlib import metadata

    out = {}
    for package in ("torch", "torchvision", "transformers", "timm", "diffusers", "onnx", "onnxscript"):
        try:
            out[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            out[package] = "none"
    shown = subprocess.run([str(binary), "--version"], capture_output=True, text=True)
    return {**out, "pipetrain": shown.stdout.strip().splitlines()[0].removeprefix("pipetrain ") if shown.stdout.strip() else "?"}


def rows_of(files, now, how):
    """The rows of earlier runs, by name, later files over earlier ones; those of other versions say so. `how`: what must be alike."""
    rows = {}
    for file in files:
        earlier = json.loads(file.read_text())
        for option, value in how.items():
            if earlier.get(option, DEFAULTS[option]) != value:
                sys.exit(f"{file} is of a run with another --{option}: {earlier.get(option, DEFAULTS[option])}")
        for name, row in earlier["networks"].items():
            rows[name] = row if earlier["versions"] == now else {"versions": earlier["versions"], **row}
    return rows


def part_of(text):
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part, parts


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="\n".join(__doc__.splitlines()[2:]),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    root = Path(__file__).resolve().parents[1]
    parser.add_argument("--pipetrain", type=Path, default=root / "build" / "pipetrain")
    parser.add_argument("--bf16", action="store_true", help="train in bfloat16")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where pipetrain trains")
    parser.add_argument("--stages", type=int, default=1, metavar="N", help="train again in N stages, which must give the same bits")
    parser.add_argument("--part", type=part_of, default=(1, 1), metavar="K/N",
                        help="only the K-th, K+N-th … network, to run N parts beside each other, each with its own -o")
    parser.add_argument("--more", action="store_true", help="the networks of more_coverage_networks.py instead")
    parser.add_argument("--only", nargs="+", default=[""], metavar="PREFIX", help="networks whose names begin so")
    parser.add_argument("--from", dest="first", default="", metavar="NAME", help="begin with this name")
    parser.add_argument("--again", nargs="+", default=[], type=Path, metavar="FILE",
                        help="take over the rows of earlier NAME.json files, and run those again that did not match")
    parser.add_argument("--seconds", type=int, default=120, help="for each side of a network")
    parser.add_argument("--keep", type=Path, help="a folder for the files of all networks")
    parser.add_argument("-o", "--output", type=Path,
                        help="name of the two files, without .md; default: coverage, or more-coverage with --more")
    arguments = parser.parse_args()
    arguments.output = arguments.output or Path("more-coverage" if arguments.more else "coverage")
    return arguments


def has_same_bits(row):
    return row.get("in_stages", SAME_BITS) == SAME_BITS


def is_right(row):
    return row["result"].startswith("matches") and has_same_bits(row)


def write(found, output, names):
    output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    output.with_suffix(".md").write_text(coverage_report.markdown(found, names))


def main():
    import tempfile

    import torch

    from coverage_networks import NETWORKS
    from more_coverage_networks import MORE_NETWORKS

    arguments = parse()
    networks = list(MORE_NETWORKS if arguments.more else NETWORKS)
    arguments.pipetrain = arguments.pipetrain.resolve()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    __import__("onnxscript")
    for package in ("torchvision.models", "transformers", "timm", "diffusers"):
        try:
            __import__(package)  # once: the children have it
        except ModuleNotFoundError as missing:
            if missing.name != package.split(".")[0]:
                raise
            print(f"{missing.name} is missing: its networks are not made", flush=True)
    if networks != sorted(networks):
        sys.exit("the names of the networks are not in alphabetical order")
    path = arguments.output.with_suffix(".json")
    now = versions(arguments.pipetrain)
    how = {option: getattr(arguments, option) for option in DEFAULTS}
    found = {"networks": rows_of([*arguments.again, *([path] if path.exists() else [])], now, how),
             "date": time.strftime("%Y-%m-%d"), "versions": now, **how}
    done = {name for name, row in found["networks"].items() if not arguments.again or is_right(row)}
    with tempfile.TemporaryDirectory() as temporary:
        base = arguments.keep or Path(temporary)
        base.mkdir(parents=True, exist_ok=True)
        part, parts = arguments.part
        for name in networks[part - 1::parts]:
            if name < arguments.first or not name.startswith(tuple(arguments.only)) or name in done or (arguments.again and name not in found["networks"]):
                continue
            folder = base / name.replace("/", "-")
            row = found["networks"][name] = row_of(name, arguments, folder)
            if not arguments.keep:
                subprocess.run(["rm", "-rf", folder], check=True)
            print(f"{name}: {row['result']} {row.get('reason', '')} ({row['seconds']} s)", flush=True)
            write(found, arguments.output, networks)
    write(found, arguments.output, networks)
    return 1 if any(row["result"] == "does not match" or not has_same_bits(row) for row in found["networks"].values()) else 0


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main())
