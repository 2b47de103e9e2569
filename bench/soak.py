#!/usr/bin/env python3
"""Trains a tiny model for many steps and watches what the process holds: memory, descriptors, threads.

Prints a line every few seconds and fails when, after the first part of the steps, resident memory grows by more than a megabyte or the number of
descriptors or threads changes.

  python3 bench/soak.py --program build/pipetrain --steps 1000000
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

BEGIN = 0.1  # part of the steps in which buffers still grow


def count(path):
    return sum(1 for _ in path.iterdir())


def last_step(folder):
    """The step in the last whole line of the journal; 0 before the first."""
    try:
        with (folder / "journal.txt").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().split(b"\n")[:-1]
        return int(lines[-1].split()[0])
    except (OSError, IndexError, ValueError):
        return 0


def watch(process, folder, every):
    """Samples of (step, resident KiB, anonymous KiB, descriptors, threads) until the process ends."""
    proc = pathlib.Path(f"/proc/{process.pid}")
    samples = []
    while process.poll() is None:
        time.sleep(every)
        try:
            status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
            if "VmRSS" not in status:
                continue
            sample = (last_step(folder), int(status["VmRSS"].split()[0]), int(status["RssAnon"].split()[0]), count(proc / "fd"),
                      int(status["Threads"]))
        except OSError:
            break
        samples.append(sample)
        print("step %d  resident %d KiB  anonymous %d KiB  %d descriptors  %d threads" % sample, flush=True)
    return samples


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", required=True, type=lambda text: str(pathlib.Path(text).resolve()))
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--every", type=float, default=5, help="seconds between two samples")
    parser.add_argument("more", nargs="*", help="further options of train")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = pathlib.Path(name)
        data = "".join(f"{i % 5},{i % 7},{i % 3},{i % 2},{i % 4}\n" for i in range(400))
        (folder / "data.csv").write_text("a,b,c,d,label\n" + data)
        subprocess.run([arguments.program, "new", "mlp", "--depth", "1", "--width", "8", "--image", "2", "--channels", "1", "--classes", "4", "-q",
                        "-o", str(folder / "tiny.onnx")], check=True)
        environment = {**os.environ, "PIPETRAIN_CACHE_DIR": str(folder / "cache")}
        begin = time.monotonic()
        process = subprocess.Popen([arguments.program, "train", str(folder / "tiny.onnx"), "--data", str(folder / "data.csv"), "--device", "cpu",
                                    "--threads", "1", "--batch-size", "4", "--epochs", str(arguments.steps), "--max-steps", str(arguments.steps),
                                    "--save-every", "never", "--run-dir", str(folder / "run"), "-q", *arguments.more], env=environment,
                                   stdin=subprocess.DEVNULL)
        samples = watch(process, folder / "run", arguments.every)
        if process.returncode != 0:
            sys.exit(f"exit code {process.returncode}")
        seconds = time.monotonic() - begin
    warm = [sample for sample in samples if BEGIN * arguments.steps <= sample[0] < arguments.steps]
    if not warm:
        sys.exit("it ended before there was anything to compare")
    grown = max(sample[2] for sample in warm) - warm[0][2]
    print(f"{arguments.steps} steps in {seconds:.0f} s; since step {warm[0][0]}: anonymous memory +{grown} KiB, "
          f"descriptors {sorted({s[3] for s in warm})}, threads {sorted({s[4] for s in warm})}")
    if grown > 1024 or len({s[3] for s in warm}) > 1 or len({s[4] for s in warm}) > 1:
        sys.exit(1)


if __name__ == "__main__":
    main()
