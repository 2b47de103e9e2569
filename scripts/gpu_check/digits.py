"""Trainings of the digits: 20 steps in the order of the file, whose losses PyTorch in float64 has recorded (digits.json)."""

import collections
import dataclasses
import json
from pathlib import Path

from gpu_check import places
from gpu_check.steps import Failed

GOLDEN = places.read("digits.json")
# Of how far rounding moved the recorded losses, at most, in 20 runs each: another GPU's rounding may move them a little further.
# A gradient that is a tenth too large moves them 20 times as far as this allows in bfloat16, 50 times in float32.
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
    """Flags that come later win; without `micro_batches` a batch is one unit, as asynchronous schedules want it."""
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
    """A run that others are compared with, made when it is first needed."""
    return context.session.once(name, lambda: train(context, *flags))


def expect_golden(context, run, precision):
    """All 20 losses are those that PyTorch recorded, up to rounding."""
    allowed = SLACK * GOLDEN[precision]
    if len(run.losses) != len(GOLDEN["losses"]):
        raise Failed(f"{len(run.losses)} losses, not {len(GOLDEN['losses'])}", run.output)
    apart = [abs(loss - golden) / golden for loss, golden in zip(run.losses, GOLDEN["losses"])]
    for step, distance in enumerate(apart):
        if not distance <= allowed:  # NaN is not
            raise Failed(f"the loss of step {step + 1} is {run.losses[step]:.6f}, not {GOLDEN['losses'][step]:.6f} "
                         f"(apart by {distance:.1e}, {allowed:.1e} is allowed in {precision})", run.output)
    context.figure(f"{len(apart)} losses within {max(apart):.1e} of PyTorch's in float64 ({allowed:.1e} is allowed in {precision})")


def expect_same(run, whole):
    """The same losses and the same weights, bit for bit."""
    for step, (loss, other) in enumerate(zip(run.losses, whole.losses)):
        if loss != other:
            raise Failed(f"the loss of step {step + 1} is {loss!r}, not {other!r}: not the same bits", run.output)
    if len(run.losses) != len(whole.losses) or run.trained != whole.trained:
        raise Failed("the trained weights have not the same bits", run.output)
