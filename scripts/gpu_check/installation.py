"""Stage 1: the installation is complete, and 20 steps on the digits have the losses recorded from PyTorch."""

import re

from gpu_check import digits
from gpu_check.gpu import smi
from gpu_check.steps import BLOCKING, Failed, Group, Skipped, Stage, Step

# Versions as the plugin reports them. 9.12 is the first cuDNN for CUDA 13.
LEAST = {"driver": (13000, "CUDA 13.0"), "CUDA": (13000, "CUDA 13.0"), "cuBLASLt": (130000, "13.0"), "cuDNN": (91200, "9.12")}
# Matmul and convolution have only library kernels; the other operators have hand-written ones as
# well.
BY_LIBRARY = ("Conv", "ConvInputGrad", "ConvWeightGrad", "MatMul")
STAGES = ("--gpu-ids", "0,0,0,0", "--schedule", "1f1b")


def files(context):
    missing = context.places.missing()
    if missing:
        raise Failed("missing: " + ", ".join(missing))


def doctor(context):
    """The plugin loads with all of its libraries, and there is a GPU."""
    gpu = context.gpu
    if gpu.absent:
        raise Failed(f"no GPU: {gpu.absent}")
    context.figure(gpu.text)
    if gpu.doctor["nccl"].startswith("none"):
        raise Failed(f"NCCL: {gpu.doctor['nccl']}")
    if not gpu.is_rehearsal:
        for library in gpu.doctor.get("cuda_libraries", []):
            if library["absent"]:
                raise Failed(f"{library['name']}: {library['absent']}")
            context.figure(f"{library['name']} {library['version']} from {library['from']}")
    context.run([context.places.program("pipetrain"), "doctor"])


def driver(context):
    if context.gpu.is_rehearsal:
        raise Skipped("there is no GPU")
    said = smi("name,driver_version,memory.total,clocks.max.sm,clocks.max.memory")
    if not said:
        raise Failed("nvidia-smi finds no GPU")
    context.figure(said)


def blocking(context):
    """Float32 with blocking launches: a failing kernel is named."""
    run = digits.train(context, "--gpu-ids", "0", environment={BLOCKING: "1"})
    check_versions(context, run)
    check_kernels(context, run)
    digits.expect_golden(context, run, "float32")
    context.session.once("one", lambda: run)


def check_versions(context, run):
    line = next((line for line in run.kernels if line.startswith("device ")), "")
    if not line:
        raise Failed("no kernel ran on a GPU", run.output)
    context.figure(line.removeprefix("device "))
    for name, (least, text) in LEAST.items():
        found = re.search(rf"\b{name} (\d+)", line)
        if not found or int(found[1]) < least:
            raise Failed(f"{name} {found[1] if found else 'is not reported'}: the check needs {text} or newer")


def check_kernels(context, run):
    ran = {tuple(line.split()[:2]) for line in run.kernels}
    for op in BY_LIBRARY:
        if ("library", op) not in ran:
            raise Failed(f"{op} was not computed by NVIDIA's library: the plugin has no cuDNN graphs, or cuDNN has no plan", run.output)
    on_host = sorted(op for by, op in ran if by == "host")
    if on_host:
        raise Failed("ran on the host: " + ", ".join(on_host), run.output)
    context.figure(f"{len(ran) - 1} operators had kernels")


def one_stage(context):
    return digits.reference(context, "one", "--gpu-ids", "0")


def not_blocking(context):
    digits.expect_same(digits.train(context, "--gpu-ids", "0"), one_stage(context))


def four_stages(context):
    digits.expect_same(digits.train(context, *STAGES), one_stage(context))


def bfloat16(context):
    run = digits.reference(context, "bf16", "--gpu-ids", "0", "--precision", "bf16")
    check_kernels(context, run)
    digits.expect_golden(context, run, "bfloat16")


def bfloat16_four_stages(context):
    whole = digits.reference(context, "bf16", "--gpu-ids", "0", "--precision", "bf16")
    digits.expect_same(digits.train(context, *STAGES, "--precision", "bf16"), whole)


def exit_codes(context):
    """Exit codes of runs, and that nothing crashes at exit."""
    folder = context.folder()
    always = ("--max-steps", "3", "--save-every", "never", "--run-dir", folder, "--overwrite", "-q")
    for code, flags in ((0, ()), (2, ("--schedule", "nonsense")), (3, ("--model", folder / "none.onnx")),
                        (4, ("--data", folder / "none.csv")), (5, ("--gpu-ids", "99")), (6, ("--lr", "1e30"))):
        context.run(digits.command(context, "--gpu-ids", "0", *always, *flags), code=code)


def stage():
    return Stage(1, "libraries, and the digits", 120, [Group([
        Step("files", 5, files, repeat=False), Step("doctor", 30, doctor, repeat=False), Step("driver", 10, driver, repeat=False),
        Step("digits-blocking", 40, blocking, repeat=False), Step("digits", 30, not_blocking), Step("digits-1f1b", 30, four_stages),
        Step("digits-bf16", 30, bfloat16), Step("digits-bf16-1f1b", 30, bfloat16_four_stages), Step("exit-codes", 60, exit_codes)])])
