"""Writes the files of an earlier version that earlier_version_test.py resumes and loads: make.py PIPETRAIN FOLDER."""
import pathlib, random, shutil, subprocess, sys

program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)


def run(*arguments):
    subprocess.run([program, *arguments], cwd=folder, check=True)


# On the reference device no bit depends on the CPU's vectors.
COMMON = ["--model", "model.onnx", "--data", "data.csv", "--device", "reference", "--gpus", "2", "--batch-size", "8", "--shuffle", "--lr-schedule", "constant",
          "--save-every", "3", "-q"]
RUNS = {
    "synchronous": ["--optimizer", "adamw", "--lr", "1e-2", "--ema", "0.9", "--val-split", "0.25", "--val-every", "2", "--schedule", "1f1b", "--micro-batches", "4"],
    "asynchronous": ["--optimizer", "sgd", "--momentum", "0.9", "--lr", "1e-2", "--schedule", "pipedream"],
}
run("new", "mlp", "--image", "4", "--channels", "1", "--width", "8", "--depth", "2", "--classes", "3", "--seed", "5", "-o", "model.onnx")
numbers = random.Random(7)
rows = [[numbers.randrange(3), *(round(numbers.uniform(-1, 1), 3) for _ in range(16))] for _ in range(48)]
folder.joinpath("data.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in [["label", *(f"p{i}" for i in range(16))], *rows]))
for name, options in RUNS.items():
    run("train", *COMMON, *options, "--max-steps", "3", "--run-dir", name, "-o", f"{name}/trained.onnx")
    # What this version itself makes of it: a stream of mini-batches that was emptied at step 3 has other numbers than one that was not.
    shutil.copytree(folder / name, folder / "resumed")
    run("train", "--resume=resumed", "--max-steps", "6", "-o", f"{name}.onnx", "-q")
    shutil.rmtree(folder / "resumed")
    if name == "synchronous":
        run("train", *COMMON, *options, "--max-steps", "6", "--run-dir", "whole", "-o", "whole.onnx")
        assert (folder / "whole.onnx").read_bytes() == (folder / "synchronous.onnx").read_bytes()
        (folder / "whole.onnx").unlink()
        shutil.rmtree(folder / "whole")
    shutil.rmtree(folder / name / "checkpoints/step-000002", ignore_errors=True)
    for unread in ("events.jsonl", "stderr.log", "trained.onnx"):
        (folder / name / unread).unlink(missing_ok=True)
