"""Stage 2: the operators' tests on the GPU, a process for each family, and which kernels ran in them.

What ran is counted by operator and type against kernels.json, which a rehearsal has recorded (--record): a test that finds no kernel
does nothing, and says nothing.
"""

import collections
import json
import re
import shutil

from gpu_check import places
from gpu_check.steps import Failed, Group, Skipped, Stage, Step

JOBS = 8
# Families with cuDNN plans, which are slow to build: number of processes.
SHARDS = {"conv": 6, "norms": 3, "attention": 2, "matmul": 2}
# Test suites and tests of ops_tests by family; `rest` has all others.
FAMILIES = {
    "conv": "ConvTest.*:Conv.*",
    "matmul": "MatMul*:Gemm*:Einsum*:GpuKernels.BesideProducts*",
    "norms": "BatchNorm*:LayerNorm*:RmsNorm*:InstanceNorm*:GroupNorm*:GpuKernels.AroundBatchNorm*:GpuRows.Norms*",
    "attention": "*Attention*:Rotary*",
    "recurrent": "Recurrent*:GpuKernels.Recurrences",
    "elementwise": "Elementwise*:Narrow*:Dropout*:GpuKernels.Dropout:GpuKernels.ComparisonsAndRemainders",
    "fused": "Fused*",
    "losses": "SoftmaxCrossEntropy*:*Losses*:BinaryCrossEntropy*:LossImport*:GpuKernels.CrossEntropy*",
    "reduce": "Reduce*:Softmax.*:SoftmaxImport*:Cumulative*:GpuKernels.SoftmaxGradients:GpuKernels.SumsAndRows",
    "spatial": "Pool*:GpuKernels.FeatureMaps:ReorderTest.*:Resize*:GridSample*",
}
NOT_OF_GPUS = "GpuOperators.*"  # compares a document with the sources
OPTIMIZERS = "optimizers"  # optim_tests
SANITIZED = "GpuKernels.S*:GpuKernels.Losses:GpuKernels.FeatureMaps:GpuKernels.AttentionGradients:LayerNorm.*:Gather*"
NO_SANITIZER = re.compile(r"not supported|unsupported|Failed to initialize|error 999", re.I)


def families():
    """(name, program, filter, shard): the slowest first."""
    rest = "*-" + ":".join([*FAMILIES.values(), NOT_OF_GPUS])
    out = []
    for name, tests in {**FAMILIES, "rest": rest}.items():
        count = SHARDS.get(name, 1)
        out += [(name if count == 1 else f"{name}-{index}", "ops_tests", tests, f"{index}/{count}") for index in range(1, count + 1)]
    return [*out, (OPTIMIZERS, "optim_tests", "GpuUpdate.*:EveryOptimizer.FollowsItsFormulaOnTheGpu", "1/1")]


def counted(log):
    """{"AttentionGrad bfloat16": {"library": 12, "own": 3}, …}"""
    out = collections.defaultdict(collections.Counter)
    for line in log.read_text().splitlines() if log.exists() else []:
        by, _, kernel = line.partition(" ")
        if by in ("own", "library"):
            out[kernel][by] += 1
    return {kernel: dict(counts) for kernel, counts in sorted(out.items())}


def expect_kernels(context, listed, ran):
    """Checks the numbers of kernels: at least as many as listed (half for operators with only library kernels), and at least one by each library."""
    if not listed:
        raise Failed("no kernels are listed for this family (kernels.json)")
    for kernel, expected in listed.items():
        found = ran.get(kernel, {})
        only_library = "own" not in expected and kernel.split()[0] not in OWN_TOO
        least = sum(expected.values()) / (2 if only_library else 1)
        if sum(found.values()) < least:
            raise Failed(f"{kernel}: {sum(found.values())} kernels ran, {sum(expected.values())} are listed")
        if expected.get("library", 0) >= ENOUGH and "library" not in found:
            raise Failed(f"{kernel}: none of {sum(found.values())} kernels was the library's")
    if context.gpu.is_rehearsal and ran != listed:
        raise Failed("kernels.json does not match the kernels that ran: gpu-check 2 --record rewrites it")
    by_library = sum(found.get("library", 0) for found in ran.values())
    context.figure(f"{sum(sum(found.values()) for found in ran.values())} kernels of {len({kernel.split()[0] for kernel in ran})} operators, "
                   f"{by_library} by NVIDIA's libraries")


ENOUGH = 4  # shapes, of which the library has a plan for one at least
# If a library has no plan, a hand-written kernel is used.
OWN_TOO = ("Attention", "AttentionGrad", "BatchNorm", "BatchNormGrad", "LayerNorm", "LayerNormInputGrad", "RmsNorm", "RmsNormInputGrad",
           "RecurrentWeightGrad")


def family(name, program, tests, shard, recorded):
    def work(context):
        log = context.folder() / "kernels.log"
        try:
            output = context.run([context.places.program(program), "--gtest_brief=1", f"--gtest_filter={tests}"], warnings=True,
                                 environment={"PIPETRAIN_TEST_DEVICE": "cuda", "PIPETRAIN_TEST_SHARD": shard,
                                              "PIPETRAIN_KERNEL_LOG": str(log), "OMP_NUM_THREADS": "1"})
        except Failed as failed:
            raise told_apart(failed) from failed
        passed = re.search(r"\[  PASSED  \] (\d+) test", output)
        if not passed or int(passed[1]) == 0:
            raise Failed("no test ran", output)
        context.figure(f"{passed[1]} tests")
        ran = counted(log)
        context.session.results.update("kernels.json", name, ran)
        if recorded is not None:
            recorded[name] = ran
        else:
            expect_kernels(context, places.read("kernels.json").get(name, {}), ran)

    return work


def told_apart(failed):
    """The failing tests, and the message of the first."""
    names = list(dict.fromkeys(re.findall(r"^\[  FAILED  \] ([\w.]+)", failed.output, re.M)))
    if not names:
        return failed
    beginning = failed.output.find(": Failure\n")
    lines = failed.output[failed.output.rfind("\n", 0, beginning) + 1:].splitlines() if beginning >= 0 else []
    return Failed(f"{failed}: {len(names)} tests fail: {', '.join(names[:8])}", "\n".join(lines[:400]))


def sanitizer(tool):
    def work(context):
        if context.gpu.is_rehearsal:
            raise Skipped("there is no GPU")
        if not shutil.which("compute-sanitizer"):
            raise Skipped("compute-sanitizer is not on PATH (it comes with the CUDA toolkit)")
        try:
            context.run(["compute-sanitizer", "--tool", tool, "--error-exitcode", "1", context.places.program("ops_tests"), "--gtest_brief=1",
                         f"--gtest_filter={SANITIZED}"], environment={"PIPETRAIN_TEST_DEVICE": "cuda"}, warnings=True)
        except Failed as failed:
            refusal = NO_SANITIZER.search(failed.output)
            if refusal:
                raise Skipped(f"compute-sanitizer does not run here: {refusal[0]}") from failed
            raise

    return work


def stage(recorded=None):
    """`recorded` stores the kernels that ran instead of comparing them."""
    steps = [Step(name, 150, family(name, program, tests, shard, recorded)) for name, program, tests, shard in families()]
    sanitizers = [Step(tool, 120, sanitizer(tool), repeat=False) for tool in ("memcheck", "racecheck")]
    return Stage(2, "operators", 240, [Group([*steps, *sanitizers], JOBS)])


def write_list(recorded):
    path = places.HERE / "kernels.json"
    known = json.loads(path.read_text())
    kept = {name: {**known, **recorded}[name] for name, *_ in families() if name in known or name in recorded}
    # One line per family.
    path.write_text("{\n" + ",\n".join(f'"{name}": {json.dumps(kernels)}' for name, kernels in sorted(kept.items())) + "\n}\n")
    return path
