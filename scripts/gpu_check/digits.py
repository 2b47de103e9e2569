"""Training runs on the digits: 20 steps in file order, compared with losses recorded from PyTorch in float64 (digits.json)."""

import collections
import dataclasses
import json
from pathlib import Path

from gpu_check import places
from gpu_check.steps import Failed

GOLDEN = places.read("digits.json")
# Tolerance as a multiple of the largest rounding difference in 20 runs each: other GPUs may differ a little more. A gradient
# that is 10 % too large differs by 20 times the tolerance in bfloat16, by 50 times in float32.
SLACK = 3


@dataclasses.dataclass
class Run:
    folder: Path
    losses: list
    kernels: collections.Counter  # lines of PIPETRAIN_KERNEL_LOG
    output: str

    @property
    def trained(self):
        return (self.folder / "trained.onnx").read_bytes()


def command(context, *flags):
    return [context.places.program("pipetrain"), "train", "--model", context.places.file("models/digits-cnn.onnx"),
            "--data", context.places.file("models/digits.csv.gz"), "--device", "cuda", *flags]


def train(context, *flags, environment=None, warnings=False, micro_batches=True):
    """Later flags win; without `micro_batches` a batch is one micro-batch, as asynchronous schedules need."""
    folder = context.folder()
    fixed = [*(["--micro-batches", GOLDEN["micro_batches"]] if micro_batches else []),
             "--batch-size", GOLDEN["batch"], "--max-steps", len(GOLDEN["losses"]),
             "--optimizer", f"sgd:momentum={GOLDEN['momentum']}", "--lr", GOLDEN["rate"], "--lr-schedule", "constant", "--no-shuffle",
             "--save-every", "never", "--run-dir", folder, "--overwrite", "--metrics", folder / "events.jsonl"]
    output = context.run(command(context, *fixed, *flags), warnings=warnings,
                         environment={"PIPETRAIN_KERNEL_LOG": str(folder / "kernels.log"), **(environment or {})})
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    log = folder / "kernels.log"
    kernels = collections.Counter(log.read_text().splitlines() if log.exists() else [])
    return Run(folder, [event["loss"] for event in events if event["event"] == "step"], kernels, output)


def reference(context, name, *flags):
    """A reference run, made on first use."""
    return context.session.once(name, lambda: train(context, *flags))


def expect_golden(context, run, precision, recorded=GOLDEN["losses"]):
    """All 20 losses equal those recorded from PyTorch, up to rounding."""
    allowed = SLACK * GOLDEN[precision]
    if len(run.losses) != len(recorded):
        raise Failed(f"{len(run.losses)} losses, not {len(recorded)}", run.output)
    apart = [abs(loss - golden) / golden for loss, golden in zip(run.losses, recorded)]
    for step, distance in enumerate(apart):
        if not distance <= allowed:  # NaN is not
            raise Failed(f"the loss of step {step + 1} is {run.losses[step]:.6f}, not {recorded[step]:.6f} "
                         f"(difference {distance:.1e}, allowed {allowed:.1e} in {precision})", run.output)
    context.figure(f"{len(apart)} losses within {max(apart):.1e} of PyTorch's in float64 (allowed: {allowed:.1e} in {precision})")


def expect_same(run, whole):
    """The same losses and the same weights, bit for bit."""
    for step, (loss, other) in enumerate(zip(run.losses, whole.losses)):
        if loss != other:
            raise Failed(f"the loss of step {step + 1} is {loss!r}, not {other!r}: not the same bits", run.output)
    if len(run.losses) != len(whole.losses) or run.trained != whole.trained:
        raise Failed("the trained weights differ in their bits", run.output)
