"""The program with --device cuda on devices that are recorded: its profile, plan, times and bits.

recorded_test.py PIPETRAIN FOLDER_OF_THE_RECORDED_PLUGIN SOURCES
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

program, plugin, sources = (pathlib.Path(path).resolve() for path in sys.argv[1:4])
model, data = sources / "models" / "digits-cnn.onnx", sources / "models" / "digits.csv.gz"
checks = 0


def check(right, words, result=None):
    global checks
    checks += 1
    if not right:
        told = f"\n{result.stdout[-3000:]}{result.stderr[-3000:]}" if result else ""
        sys.exit(f"check {checks}: {words}{told}")


def run(arguments, code=0, **environment):
    result = subprocess.run(list(map(str, arguments)), env={**os.environ, "PIPETRAIN_BACKEND_PATH": str(plugin), **environment},
                            capture_output=True, text=True, timeout=200)
    check(result.returncode == code, f"exit {result.returncode}, not {code}: {' '.join(map(str, arguments))}", result)
    return result


def train(folder, *flags):
    train_and_tell(folder, *flags)
    return (folder / "trained.onnx").read_bytes()


def train_and_tell(folder, *flags, steps=3, **environment):
    return run([program, "train", "--model", model, "--data", data, "--batch-size", 64, "--max-steps", steps, "--seed", 3,
                "--run-dir", folder, "--save-every", "never", *flags], **environment)


def profile_and_plan(work):
    """Kernel times are measured by the devices' clocks, cached, and used by the plan."""
    flags = ["--model", model, "--data", data, "--batch-size", 64, "--gpu-ids", "0,1,2"]
    cache = {"PIPETRAIN_CACHE_DIR": str(work / "cache")}
    result = run([program, "profile", *flags, "-o", work / "profile.json"], **cache)
    check("recorded 0" in result.stdout and "weight grad" in result.stdout, "the table of a profile", result)
    # The recorded devices move one byte per ns; pooling and similar operators are bound by that.
    check("roofline: 1 GB/s" in result.stdout, "the rates of the device", result)
    shares = re.findall(r"^\S+ +(?:MaxPool|BatchNorm|LayerNorm)\w* +\d+ .* (\d+) %$", result.stdout, re.MULTILINE)
    check(len(shares) > 0 and all(20 <= int(share) <= 101 for share in shares), f"shares of the roofline: {shares}", result)
    profile = json.loads((work / "profile.json").read_text())
    check(profile["backend"] == "device" and profile["device"] == "recorded 0", "whose profile it is")
    timed = [node for node in profile["nodes"] if node["seconds"] > 0]
    # 1 us and 1 ns per byte: the outputs give a lower bound; the upper bound excludes compilation.
    check(len(timed) > 20 and all(1e-6 + 0.9e-9 * node["output_bytes"] <= node["seconds"] or node["op"] in HOST for node in timed),
          "seconds of nodes")
    kept = json.loads((work / "cache" / "kernel-times.json").read_text())["environments"]
    check(any(name.startswith("recorded |") for name in kept), "the cache names the device's make")
    result = run([program, "plan", *flags], **cache)
    check("estimated from FLOPs" not in result.stdout + result.stderr, "the plan goes by what was measured", result)
    return timed


HOST = ("Softmax", "ReluGrad")  # which have no kernel on recorded devices


def times_of_a_run(work):
    """Stages on one device and on four have the bits of one stage, and a trace has both sides' times: of one step, since a recorded
    device's clock may be ahead of the host's, which begins the next."""
    whole = train(work / "one", "--gpu-ids", "0")
    check(train(work / "four", "--gpu-ids", "0,0,0,0", "--schedule", "1f1b", "--trace", work / "trace.json", "--trace-steps", "3-3") == whole,
          "four stages of one device have not the bits of one")
    check(train(work / "apart", "--gpu-ids", "0,1,2,3", "--edge", "nccl", "--schedule", "zb-h1") == whole, "four devices have not the bits of one")
    trace = json.loads((work / "trace.json").read_text())
    sides = {event["pid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    for side in ("predicted", "measured"):
        spans = [event for event in trace["traceEvents"] if event["ph"] == "X" and event.get("cat") in ("forward", "backward")
                 and sides[event["pid"]].startswith(side)]
        check(len(spans) >= 64 and all(event["dur"] >= 1 for event in spans), f"{len(spans)} {side} spans in the trace")


def copies_of_a_step(work):
    """A step of synchronous training copies its mini-batch from page-locked memory, and nothing else: running statistics go to
    the devices for a validation, which is at the end."""
    told = []
    for number, steps in enumerate((2, 2, 5)):  # the first one measures kernels as well
        result = train_and_tell(work / f"copies-{number}", "--gpu-ids", "0,0", "--schedule", "1f1b", "--val-split", 0.1, steps=steps,
                                RECORDED_ALL_KERNELS="1", PIPETRAIN_CACHE_DIR=str(work / "copies-cache"))
        told.append(re.search(r"(\d+) copies from pageable memory of (\d+) bytes", result.stderr).groups())
    check(told[1] == told[2], f"copies and bytes from pageable memory in 2 and 5 steps: {told[1:]}", result)


with tempfile.TemporaryDirectory() as folder:
    timed = profile_and_plan(pathlib.Path(folder))
    times_of_a_run(pathlib.Path(folder))
    copies_of_a_step(pathlib.Path(folder))
print(f"on recorded devices: {checks} checks, {len(timed)} nodes timed")
