"""The program with --device cuda, its real plugin, and CUDA, cuDNN, cuBLASLt and NCCL that are not there (fake_*.cpp): every call that
real networks lead to is made, with the types and the tensors that their graphs have; no number is computed.

program_test.py PIPETRAIN FOLDER_OF_THE_PLUGIN FOLDER_OF_THE_FAKES
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

program, plugin, fakes = (pathlib.Path(path).resolve() for path in sys.argv[1:4])
checks = 0


def check(right, words, result=None):
    global checks
    checks += 1
    if not right:
        told = f"\n{result.stdout[-3000:]}{result.stderr[-3000:]}" if result else ""
        sys.exit(f"check {checks}: {words}{told}")


def run(folder, *arguments, code=0, **environment):
    """The program's output; `cudnn`: its use of plans."""
    names = [fakes / f"libfake_{name}.so" for name in ("gpus", "cudnn", "cublaslt")]
    events = folder / "events"
    events.write_text("")
    result = subprocess.run(
        list(map(str, [program, *arguments])), capture_output=True, text=True, timeout=200, cwd=folder,
        env={**os.environ, "LD_PRELOAD": ":".join(map(str, names)), "PIPETRAIN_BACKEND_PATH": str(plugin),
             "PIPETRAIN_NCCL": str(names[0]), "PIPETRAIN_CACHE_DIR": str(folder / "cache"), "FAKE_CUDNN_EVENTS": str(events),
             **environment})
    words = " ".join(map(str, arguments))
    check(result.returncode == code, f"exit {result.returncode}, not {code}: {words} {environment}", result)
    check("warning" not in result.stderr, f"a warning: {words}", result)
    result.cudnn = events.read_text().split("\n")
    wrong = [event for event in result.cudnn if event not in ("plan", "run", "")]
    check(not wrong, f"{wrong}: {words}", result)
    return result


def train(folder, model, *flags, code=0, **environment):
    return run(folder, "train", "--model", f"{model}.onnx", "--device", "cuda", "--max-steps", 2, "-b", 4, "--micro-batches", 2,
               "--limit", 32, "--val-split", 8, "--on-nan", "ignore", "--save-every", "never", "--run-dir", "run", "--overwrite",
               *flags, code=code, **environment)


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    for model in ("gpt-nano", "resnet18", "lstm"):
        run(folder, "new", model, "-o", f"{model}.onnx")
    # Four layers, each with attention and its gradient in two steps of two micro-batches, and attention in four batches of validation.
    for precision in ("bf16", "fp16"):
        result = train(folder, "gpt-nano", "--precision", precision, PIPETRAIN_CUDA_GRAPHS="off")  # graphs make no calls
        check(result.cudnn.count("run") == 4 * (2 * 2 * 2 + 4), f"cuDNN runs {result.cudnn.count('run')} plans", result)
        # Attention and its gradient, which all layers share.
        check(result.cudnn.count("plan") == 2, f"cuDNN has {result.cudnn.count('plan')} plans", result)
    for precision in ("fp32", "tf32", "bf16"):
        result = train(folder, "resnet18", "--precision", precision, PIPETRAIN_CUDA_GRAPHS="off")
        check(result.cudnn.count("run") > 100, f"cuDNN runs {result.cudnn.count('run')} plans", result)
    train(folder, "lstm", "--precision", "bf16")
    train(folder, "gpt-nano", "--precision", "bf16", "--gpus", 4, "--gpu-ids", "0,0,0,0", "--trace", "trace.json")
    train(folder, "resnet18", "--precision", "bf16", "--gpus", 2, "--gpu-ids", "0,1", "--schedule", "zb-v")
    for edge in ("copy", "nccl"):
        train(folder, "gpt-nano", "--precision", "bf16", "--gpus", 2, "--replicas", 2, "--edge", edge)
    train(folder, "gpt-nano", "--replicas", 2)  # on as many GPUs
    run(folder, "plan", "gpt-nano.onnx", "--gpus", 3, "--replicas", 3, "-b", 4, "-o", "three.json")
    result = train(folder, "gpt-nano", "--plan", "three.json", "--gpu-ids", "0,0,1", "--micro-batches", 3, "--edge", "nccl", "--deterministic", code=2)
    check("leave out --edge nccl" in result.stderr, "sums of three replicas in one order", result)
    result = train(folder, "gpt-nano", "--gpus", 2, "--edge", "nccl", code=5, PIPETRAIN_NCCL="/nowhere/libnccl.so.2")
    check("without it leave out --edge nccl" in result.stderr, "no NCCL", result)
    # A run on GPUs goes on without them.
    train(folder, "gpt-nano", "--gpu-ids", "0,0", "--save-every", 1)
    result = run(folder, "train", "--resume=run", "--device", "cpu", "--gpus", 2, "--max-steps", 3)
    check("--gpu-ids" not in result.stderr, "the GPUs of a run that goes on without", result)
    run(folder, "profile", "resnet18.onnx", "--device", "cuda", "--precision", "bf16", "-b", 4)
    # A failing call ends the run of one stage and of several with one sentence.
    for call, code in (("malloc:2", 5), ("host:2", 5), ("copy:30", 7), ("synchronize:20", 7), ("record:5", 7), ("record:40", 7),
                       ("synchronize point:1", 7), ("wait:5", 7)):
        for stages in (("--gpus", 1), ("--gpus", 3, "--gpu-ids", "0,0,1")):
            result = train(folder, "gpt-nano", *stages, code=code, FAKE_GPU_FAILS=call)
            check(result.stderr.count("error: ") == 1, call, result)
    # A GPU that the plugin has no kernels for, older than any that a build supports.
    result = train(folder, "gpt-nano", code=5, FAKE_CAPABILITY="70")
    check("fake A) has compute capability 7.0; this build of pipetrain has kernels for " in result.stderr, "an old GPU", result)
    # A driver that is too old for the CUDA libraries, and none.
    result = train(folder, "gpt-nano", code=5, FAKE_DRIVER="11080")
    check(re.search(r"the NVIDIA driver is for CUDA 11\.8; this build needs one for CUDA 1[2-9]\.0 or newer", result.stderr), "an old driver", result)
    result = train(folder, "gpt-nano", code=5, FAKE_DRIVER="0")
    check("no driver for NVIDIA GPUs was found" in result.stderr and "CUDA 0" not in result.stderr, "no driver", result)
print(f"the program on fake libraries: {checks} checks")
