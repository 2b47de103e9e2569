"""The GPU plugin on a machine without a GPU: loaded only when asked for, and every way in which it cannot serve is one sentence.

plugin_test.py PIPETRAIN FOLDER_OF_ANOTHER_BUILD FOLDER_OF_A_BROKEN_DEVICE PLUGIN; PLUGIN is empty where none was built (the rest is then said to be skipped).
"""
import os
import pathlib
import subprocess
import sys
import tempfile

program, other_build, broken_device, plugin = sys.argv[1:5]
checks = 0


def run(arguments, **environment):
    return subprocess.run([program, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60)


def check(condition, words, result):
    global checks
    checks += 1
    if not condition:
        sys.exit(f"{words}: exit {result.returncode}\n{result.stdout}{result.stderr[-3000:]}")


def doctor(words, folder):
    result = run(["doctor"], PIPETRAIN_BACKEND_PATH=str(folder))
    lines = [line for line in result.stdout.splitlines() if line.startswith("gpus ")]
    check(result.returncode == 0 and len(lines) == 1 and words in lines[0], f'expected doctor to say "{words}"', result)


def refused(words, folder, arguments=("--device", "cuda")):
    result = run(["train", "--model", model, *arguments], PIPETRAIN_BACKEND_PATH=str(folder))
    first = result.stderr.splitlines()[0] if result.stderr else ""
    check(result.returncode == 5 and words in first, f'expected exit 5 and "{words}"', result)


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    model = str(folder / "m.onnx")
    check(run(["new", "mlp", "-o", model]).returncode == 0, "pipetrain new", run(["--version"]))
    refused("there is no libpipetrain_cuda.so in", folder)
    refused("there is no libpipetrain_cuda.so in", folder, ("--gpu-ids", "0,0"))
    doctor("none: this build of pipetrain has no GPU support: there is no libpipetrain_cuda.so", folder)
    (folder / "libpipetrain_cuda.so").write_text("no library")
    refused("libpipetrain_cuda.so cannot be loaded: ", folder)
    refused("belongs to another build of pipetrain (0.0.0-older", other_build)

    # A device failure during the run, and an internal error.
    run_on_it = ["train", "--model", model, "--device", "cuda", "--max-steps", "1", "--run-dir", str(folder / "broken"), "--overwrite"]
    failed = run(run_on_it, PIPETRAIN_BACKEND_PATH=broken_device)
    check(failed.returncode == 7 and "error: the device does not answer" in failed.stderr, "a device that fails: 7", failed)
    failed = run(run_on_it, PIPETRAIN_BACKEND_PATH=broken_device, MISTAKE="1")
    check(failed.returncode == 1 and "please report it" in failed.stderr, "a mistake in the program: 1", failed)

    # Commands that need no GPU load no CUDA library.
    train = ["train", "--model", model, "--device", "cpu", "--max-steps", "1", "--batch-size", "8", "--run-dir", str(folder / "run")]
    for arguments in (["--help"], ["plan", "--model", model, "--gpus", "2"], train):
        result = run(arguments, LD_DEBUG="libs")
        loaded = [line for line in result.stderr.splitlines() if "calling init" in line and ("cuda" in line or "cudnn" in line or "cublas" in line)]
        check(result.returncode == 0 and "calling init" in result.stderr and not loaded, f"{arguments[0]} loads {loaded}", result)
    usage = run(["train", "--model", model, "--device", "cpu", "--gpu-ids", "0"])
    check(usage.returncode == 2, "--gpu-ids with --device cpu", usage)
    usage = run(["train", "--model", model, "--device", "cpu", "--edge", "nccl"])
    check(usage.returncode == 2, "--edge nccl with --device cpu", usage)
    usage = run(["train", "--model", model, "--gpu-ids", "0,1,2", "--replicas", "3", "--edge", "nccl", "--deterministic"])
    check(usage.returncode == 2 and "--deterministic" in usage.stderr, "--deterministic with NCCL's sums over three replicas", usage)
    usage = run(["train", "--model", model, "--gpu-ids", "0,0", "--gpus", "3"])
    check(usage.returncode == 2, "--gpu-ids that are not --gpus", usage)

    if not plugin:
        print(f"plugin: {checks} checks; skipped 6 that need a CUDA toolkit")
        sys.exit(0)
    needed = subprocess.run(["readelf", "-d", plugin], capture_output=True, text=True, check=True)
    check("libcudart" in needed.stdout and "libcuda.so" not in needed.stdout, "the plugin links libcuda", needed)
    check("libnccl" not in needed.stdout, "the plugin links libnccl", needed)
    # Test programs contain emulated kernels, whose functions have the same names as the plugin's.
    bound = subprocess.run(["readelf", "-rW", plugin], capture_output=True, text=True, check=True)
    interposable = [line for line in bound.stdout.splitlines() if "JUMP_SLO" in line and ("launch_" in line or "cuda_kernel" in line)]
    check(not interposable and "JUMP_SLO" in bound.stdout, f"the program may replace functions of the plugin: {interposable[:3]}", needed)
    here = pathlib.Path(plugin).parent
    if pathlib.Path("/dev/nvidiactl").exists():
        print(f"plugin: {checks} checks; skipped 4 that need a machine without a driver")
        sys.exit(0)
    doctor("none: no driver for NVIDIA GPUs was found", here)
    refused("no driver for NVIDIA GPUs was found", here)
    refused("no driver for NVIDIA GPUs was found", here, ("--gpu-ids", "0,0,0,0"))
    result = run(["train", "--model", model, "--device", "cuda"], PIPETRAIN_BACKEND_PATH=str(here), LD_DEBUG="libs")
    check("libpipetrain_cuda.so" in result.stderr, "the plugin was not even tried", result)
    print(f"plugin: {checks} checks")
