"""Stage 3: where the time of GPT-2 124M and ResNet-50 in bfloat16 goes, how long a step takes and how much memory it needs, and
PyTorch beside it, eager and compiled (bench/gpu.py). A rehearsal takes small networks, and PyTorch on the CPU.
"""

import collections
import json

from gpu_check.steps import Failed, Group, Skipped, Stage, Step

# Networks to time, their replacements in a rehearsal, and operators that NVIDIA's libraries must
# compute.
NETWORKS = {"gpt2": ("gpt-tiny", ("MatMul", "Attention", "AttentionGrad")),
            "resnet50": ("resnet-tiny", ("Conv", "ConvInputGrad", "ConvWeightGrad"))}


def network_of(context, name):
    return NETWORKS[name][0] if context.gpu.is_rehearsal else name


def python(context, torch):
    """A Python with the modules that bench/gpu.py needs."""
    modules = "numpy, onnx, torch" if torch else "numpy, onnx"

    def probe():
        program = f"import {modules}" + ("\nassert torch.cuda.is_available()" if torch and not context.gpu.is_rehearsal else "")
        try:
            context.run([context.python, "-c", program])
        except Failed as failed:
            if "ModuleNotFoundError" not in failed.output:
                raise
            raise Skipped(f"{context.python} lacks some of {modules} (set GPU_CHECK_PYTHON to another Python)") from failed
        return context.python

    return context.session.once(modules, probe)


def bench(context, name, command, *flags, before=(), torch=False, environment=None):
    """Runs bench/gpu.py on a network in a separate folder, and returns its output."""
    words = [python(context, torch), context.places.file("bench/gpu.py"), "--pipetrain", context.places.program("pipetrain"),
             "--rounds", "1", "--folder", context.session.work / "networks", *before]
    words += ["--torch-device", "cpu"] if context.gpu.is_rehearsal else []
    network = network_of(context, name)
    words += [command, "--network", network] if command == "overhead" else [command, network]
    try:
        output = context.run([*words, *flags], environment=environment)
    except Failed as failed:
        unmet = [line for line in failed.output.splitlines() if line.startswith("not met: ")]
        take_figures(context, failed.output)
        raise Failed(unmet[0], failed.output) if unmet else failed
    take_figures(context, output)
    return output


def take_figures(context, output):
    for line in output.splitlines():
        if line.startswith("figure: "):
            context.figure(line.removeprefix("figure: "))


def prepare(name):
    return lambda context: bench(context, name, "prepare")


def compile_ahead(name):
    """Compiles the PyTorch networks that are timed later, in parallel."""
    def work(context):
        if context.gpu.is_rehearsal:
            raise Skipped("PyTorch compiles for a GPU")
        network = network_of(context, name)
        flags = [network, context.session.work / "networks" / network, "--steps", "1", "--compile", "--bf16"]
        flags += ["--channels-last"] if name == "resnet50" else []
        context.run([python(context, True), context.places.file("bench/peer_pytorch_gpu.py"), *flags], environment=compiled_cache(context))

    return work


def compiled_cache(context):
    return {"TORCHINDUCTOR_CACHE_DIR": str(context.session.work / "inductor")}


def profile(name):
    def work(context):
        path = context.folder() / "profile.json"
        bench(context, name, "profile", "-o", path)
        document = json.loads(path.read_text())
        # One line per node would be half a MiB.
        nodes = [[node[key] for key in ("op", "name", "part", "seconds", "flops", "output_bytes")] for node in document["nodes"]]
        context.session.results.update("measurements.json", f"profile {name}", {"device": document["device"], "nodes": json.dumps(nodes)})

    return work


def alone(name):
    def work(context):
        log = context.folder() / "kernels.log"
        bench(context, name, "alone", environment={"PIPETRAIN_KERNEL_LOG": str(log)})
        ran = collections.Counter(tuple(line.split()[:2]) for line in log.read_text().splitlines() if not line.startswith("device "))
        on_host = sorted({op for by, op in ran if by == "host"})
        if on_host:
            raise Failed("ran on the host: " + ", ".join(on_host))
        for op in NETWORKS[name][1]:
            if ("library", op) not in ran:
                raise Failed(f"{op} was not computed by NVIDIA's library")
        library = sorted(f"{op} {count}" for (by, op), count in ran.items() if by == "library")
        context.figure("kernels of NVIDIA's libraries: " + ", ".join(library))

    return work


def beside(name, program, *flags):
    def work(context):
        path = context.folder() / "found.json"
        goal = () if context.gpu.is_rehearsal else flags
        bench(context, name, "beside", "--programs", program, "-o", path, *goal, torch=True, environment=compiled_cache(context))
        context.session.results.update("measurements.json", f"benchmark {name}", json.loads(path.read_text()))

    return work


def compiled(name):
    def work(context):
        if context.gpu.is_rehearsal:
            raise Skipped("PyTorch compiles for a GPU")
        beside(name, "compiled")(context)

    return work


def overhead(most):
    def work(context):
        goal = () if context.gpu.is_rehearsal else ("--at-most", most)
        bench(context, "gpt2", "overhead", *goal)

    return work


def stage():
    def steps(role, limit, make, repeat=False):
        return [Step(f"{role}-{name}", limit, make(name), repeat) for name in NETWORKS]

    return Stage(3, "speed and memory", 300, [
        Group(steps("prepare", 60, prepare), 2),
        Group(steps("compile", 100, compile_ahead), 2),
        Group([*steps("profile", 45, profile, repeat=True), *steps("alone", 45, alone, repeat=True),
               *steps("eager", 60, lambda name: beside(name, "eager", "--at-least", "1")), *steps("compiled", 60, compiled)])])
