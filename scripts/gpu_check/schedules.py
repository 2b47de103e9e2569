"""Stage 4: several virtual devices on one GPU: every schedule, CUDA graphs, replicas, two processes, and the overhead of virtual stages."""

import shutil

from gpu_check import digits, speed
from gpu_check.installation import one_stage
from gpu_check.steps import Failed, Group, Skipped, Stage, Step

JOBS = 4
SAME = ("gpipe", "1f1b", "1f1b-eager", "1f1b-auto", "interleaved-1f1b", "zb-h1", "zb-h2", "zb", "interleaved-zb", "zb-v", "v-half", "v-min")
FOUR = ("--gpu-ids", "0,0,0,0")
MOST_OVERHEAD = 0.03


def same(*flags, environment=None, warnings=False):
    """Compares bits with one stage."""
    return lambda context: digits.expect_same(digits.train(context, *flags, environment=environment, warnings=warnings), one_stage(context))


def same_of(name, common, *flags):
    """Compares bits with a run that has only the common flags."""
    def work(context):
        whole = digits.reference(context, name, *common, "--gpu-ids", "0")
        digits.expect_same(digits.train(context, *common, *flags), whole)

    return work


def twice(*flags, **options):
    """Compares bits with a repeated run."""
    return lambda context: digits.expect_same(digits.train(context, *flags, **options), digits.train(context, *flags, **options))


def stale(name):
    """Compares bits with a repeated run, and losses with PyTorch's on old weights. How old those of pipedream are depends on the cuts."""
    flags = (*FOUR, "--split", digits.GOLDEN["split"], "--schedule", name)

    def work(context):
        run, again = (digits.train(context, *flags, micro_batches=name == "pipedream-2bw") for _ in range(2))
        digits.expect_same(run, again)
        digits.expect_golden(context, run, "float32", digits.GOLDEN["asynchronous"][name])

    return work


def near(precision, *flags):
    """Compares losses with those recorded from PyTorch."""
    def work(context):
        digits.expect_golden(context, digits.train(context, *flags), precision)

    return work


def schedule_file(name, micro_batches, check):
    def work(context):
        flags = ("--schedule", context.places.file(f"schedules/{name}.schedule"), "--micro-batches", micro_batches, "--drop-last")
        check(*flags)(context)

    return work


def graphs(context):
    """Passes as CUDA graphs have the bits of passes launched kernel by kernel."""
    flags = ("--gpu-ids", "0,0", "--schedule", "1f1b")
    run = digits.train(context, *flags)
    launched = run.kernels["graph launched"]
    if not launched:
        raise Failed("no pass became a CUDA graph", run.output)
    context.figure(f"{launched} graphs launched")
    one_by_one = digits.train(context, *flags, environment={"PIPETRAIN_CUDA_GRAPHS": "off"})
    if one_by_one.kernels["graph launched"]:
        raise Failed("PIPETRAIN_CUDA_GRAPHS=off is not obeyed", one_by_one.output)
    digits.expect_same(run, one_by_one)


def chains(context):
    """Fused element-wise chains have the bits of their nodes: where PIPETRAIN_NVRTC names a file that is not there, they run node by node, with a warning."""
    if context.gpu.is_rehearsal:
        raise Skipped("NVRTC compiles for GPUs only")
    run = digits.train(context, "--gpu-ids", "0", environment={"PIPETRAIN_NVRTC": "/nothing"}, warnings=True)
    if "NVRTC" not in run.output:
        raise Failed("without an NVRTC for kernels the program does not warn", run.output)
    digits.expect_same(run, one_stage(context))


def traced(context):
    trace = context.folder() / "trace.json"
    digits.train(context, *FOUR, "--schedule", "1f1b", "--trace", trace)
    if not trace.stat().st_size:
        raise Failed("the trace is empty")


def to_97_percent(context):
    folder = context.folder()
    context.run(digits.command(context, "--gpu-ids", "0", "--epochs", "30", "--run-dir", folder, "--overwrite", "--save-every", "never"))
    context.run([context.places.program("pipetrain"), "eval", "--model", folder / "trained.onnx", "--data",
                 context.places.file("models/digits.csv.gz"), "--assert", "accuracy>=0.97"])


def two_ranks(context):
    """NCCL between two processes that share the GPU."""
    if context.gpu.is_rehearsal:
        raise Skipped("NCCL needs a GPU")
    context.run([context.places.program("nccl_processes")])


def two_processes(context):
    """Two processes of one run may not share a GPU: one-sentence error."""
    if context.gpu.is_rehearsal:
        raise Skipped("GPUs are identified by their driver")
    if not shutil.which("mpirun"):
        raise Skipped("mpirun is not on PATH")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    said = context.run(["mpirun", "-np", "2", "--oversubscribe", *digits.command(context, "--gpu-ids", "0,0", "--max-steps", "2")], code=2,
                       environment=root, warnings=True)
    if "would share GPU" not in said:
        raise Failed("two processes that share a GPU get no error", said)


def stage():
    steps = [Step(name, 40, same(*FOUR, "--schedule", name)) for name in SAME]
    steps += [Step("dualpipev", 40, schedule_file("dualpipev-4x8", 8, lambda *flags: same(*FOUR, *flags))),
              Step("chimera", 40, schedule_file("chimera-4x4", 4, lambda *flags: twice(*FOUR, *flags)))]
    steps += [Step(name, 60, stale(name)) for name in digits.GOLDEN["asynchronous"]]
    steps += [
        Step("graphs", 40, graphs),
        Step("recompute", 40, same(*FOUR, "--schedule", "1f1b", "--recompute", "all")),
        Step("replicas", 60, near("float32", "--gpu-ids", "0,0", "--replicas", "2")),
        Step("averages", 40, same_of("averages", ("--ema", "0.9", "--clip-norm", "1"), "--gpu-ids", "0,0")),
        Step("chains", 40, chains), Step("trace", 40, traced),
        Step("tf32", 40, near("bfloat16", "--gpu-ids", "0", "--precision", "tf32")),
        Step("fp16", 40, near("bfloat16", "--gpu-ids", "0", "--precision", "fp16")),
        Step("fp16-1f1b", 40, same_of("fp16", ("--precision", "fp16"), "--gpu-ids", "0,0")),
        Step("two-ranks", 60, two_ranks), Step("two-processes", 60, two_processes), Step("accuracy", 90, to_97_percent)]
    return Stage(4, "schedules, graphs, replicas, processes", 180,
                 [Group(steps, JOBS), Group([Step("overhead", 110, speed.overhead(MOST_OVERHEAD), repeat=False)])])
