#!/usr/bin/env python3
"""Random failures under `pipetrain launch` on two hosts of one machine, until the runs have ended.

    tests/network/random_kills.py [--pipetrain build/pipetrain] [--cable build/network_cable] [--kills 200] [--kills-per-run 10] [--seed 1]

Every run must end with the SHA-256 of one that was not disturbed. Kinds of failure:

    rank      kill -9 of one training process          mpirun    kill -9 of the launcher of the processes
    host      kill -9 of all that runs on the second   launch    kill -9 of `launch` itself, which is started again
              host, whose memory is lost, too          stop      SIGSTOP of a training process
    cable     cut until that is noticed                short     cut for 2 s, which must be survived

Prints a table: seconds until launch says that training has ended, seconds to the first step that had not been done before, and
steps computed again. Needs root.
"""

import argparse
import collections
import hashlib
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SHARED_MEMORY = pathlib.Path("/dev/shm")
LONGEST = 120  # seconds to wait for anything
WEIGHTS = {"rank": 8, "host": 3, "mpirun": 3, "launch": 2, "stop": 1, "cable": 1, "short": 1}
TIMEOUT = 5  # --comm-timeout


class Run:
    """A launched run; what it says is noted with its time."""

    def __init__(self, arguments, hosts, folder, environment):
        self.arguments, self.hosts, self.folder, self.environment = arguments, hosts, folder, environment
        self.said = []
        self.start()

    def start(self):
        command, settings = self.hosts.launch(self.arguments.pipetrain, "--min", "2", "--max-restarts", "20", "--commit-every", str(self.arguments.commit_every),
                                              "--", *train(self.arguments, self.folder), "--resume=auto", "--comm-timeout", str(TIMEOUT))
        self.process = subprocess.Popen(command, env=self.environment | settings, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self.read, args=(self.process.stderr,), daemon=True)
        self.reader.start()

    def read(self, pipe):
        for line in pipe:
            self.said.append((time.monotonic(), line.rstrip()))

    def steps(self):
        try:
            lines = (self.folder / "journal.txt").read_text().split("\n")[:-1]
        except FileNotFoundError:
            return []
        return [int(line.split()[0]) for line in lines if line and line[0] != "#" and len(line.split()) > 1]

    def wait_for(self, what):
        """Seconds until it is so; None: the run has ended."""
        begin = time.monotonic()
        while time.monotonic() < begin + LONGEST:
            if what():
                return time.monotonic() - begin
            if self.process.poll() is not None:
                return None
            time.sleep(0.01)
        sys.exit("it does not get on:\n" + self.text())

    def text(self):
        return "\n".join(line for _, line in self.said[-40:])

    def ended_since(self, begin):
        """When launch has said that training ended; None: it has not."""
        return next((when for when, line in self.said if when > begin and "training ended by" in line), None)


def train(arguments, folder):
    return ["train", "--model", str(ROOT / "models/digits-cnn.onnx"), "--data", str(ROOT / "models/digits.csv.gz"), "--limit", "320", "--batch-size", "32",
            "--stages", "2", "--max-steps", str(arguments.steps), "--save-every", "200", "--device", "cpu", "--threads", "1", "--no-pin", "--run-dir", str(folder)]


def children_of(process):
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def below(process, name):
    """A process of this name below another one; None: there is none."""
    for child in children_of(process):
        try:
            if pathlib.Path(f"/proc/{child}/comm").read_text().strip() == name:
                return child
        except OSError:
            continue
        found = below(child, name)
        if found:
            return found
    return None


def launcher_of(process):
    """`pipetrain launch`: this process, or one below it. Its name in /proc may be another one, as it starts itself again."""
    try:
        words = pathlib.Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    if words[1:2] == [b"launch"]:
        return process
    return next((found for found in map(launcher_of, children_of(process)) if found), None)


def strike(kind, run, hosts):
    """Does it; returns what has to be done once the failure has been noticed. None: there was nothing to hit."""
    ranks = hosts.training_on(1) + hosts.training_on(2)
    if len(ranks) < 2:
        return None
    if kind in ("rank", "stop"):
        os.kill(random.choice(ranks), signal.SIGKILL if kind == "rank" else signal.SIGSTOP)
    elif kind == "host":
        hosts.kill_all_on(2)
        for place in SHARED_MEMORY.glob("pipetrain-*/node2"):
            shutil.rmtree(place, ignore_errors=True)
    elif kind == "mpirun":
        victim = below(run.process.pid, "mpirun")
        if not victim:
            return None
        os.kill(victim, signal.SIGKILL)
    elif kind == "launch":
        victim = launcher_of(run.process.pid)
        if not victim:
            return None
        os.kill(victim, signal.SIGKILL)
        run.process.wait()
        for _ in range(500):  # what it has started ends by itself
            if not hosts.training_on(1) + hosts.training_on(2):
                break
            time.sleep(0.01)
        run.start()
    else:
        hosts.cut()
        if kind == "short":
            time.sleep(2)
            hosts.mend()
        return hosts.mend
    return lambda: None


def disturb(arguments, hosts, run, results):
    """One failure; False: the run had ended."""
    known = len(run.steps())
    if run.wait_for(lambda: len(run.steps()) >= known + random.randint(15, 60)) is None:
        return False
    kind = random.choices(list(WEIGHTS), WEIGHTS.values())[0]
    before = run.steps()
    begin = time.monotonic()
    repair = strike(kind, run, hosts)
    if repair is None:
        return True
    if kind not in ("launch", "short"):
        if run.wait_for(lambda: run.ended_since(begin)) is None:
            return False
        results[kind]["noticed"].append(run.ended_since(begin) - begin)
        repair()
    furthest = max(run.steps() or [0])
    if run.wait_for(lambda: max(run.steps() or [0]) > furthest) is None:
        return False
    results[kind]["new step"].append(time.monotonic() - begin)
    after = run.steps()[len(before):]
    results[kind]["again"].append(sum(step <= furthest for step in after) - (furthest - before[-1]))
    return True


def digest(folder):
    return hashlib.sha256((folder / "trained.onnx").read_bytes()).hexdigest()


def table(results):
    print("| failure | times | noticed after, median | longest | new step after, median | longest | steps again, most |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for kind in WEIGHTS:
        found = results[kind]
        if not found["new step"]:
            continue
        figures = [f"{value:.1f} s" for name in ("noticed", "new step") for value in
                   ((statistics.median(found[name]), max(found[name])) if found[name] else ())]
        if not found["noticed"]:
            figures = ["", "", *figures]
        print(f"| {kind} | {len(found['new step'])} | {' | '.join(figures)} | {max(found['again'])} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pipetrain", type=pathlib.Path, default="build/pipetrain")
    parser.add_argument("--cable", type=pathlib.Path, default="build/network_cable")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--kills-per-run", type=int, default=10)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--commit-every", default="auto")
    parser.add_argument("--delay-us", type=float, default=50)
    parser.add_argument("--mbit", type=float, default=1000)
    parser.add_argument("--only", nargs="+", choices=WEIGHTS)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.pipetrain = str(arguments.pipetrain.resolve())
    os.environ["NETWORK_CABLE"] = str(arguments.cable.resolve())
    for kind in set(WEIGHTS) - set(arguments.only or WEIGHTS):
        del WEIGHTS[kind]
    random.seed(arguments.seed)
    from two_hosts import TwoHosts, why_not

    if why_not():
        print("skipped: " + why_not())
        sys.exit(77)
    results = collections.defaultdict(lambda: collections.defaultdict(list))
    done = runs = same = 0
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        environment = os.environ | {"PIPETRAIN_CACHE_DIR": str(folder / "cache")}
        subprocess.run([arguments.pipetrain, *train(arguments, folder / "whole"), "-q"], env=environment, check=True, stdout=subprocess.DEVNULL)
        expected = digest(folder / "whole")
        while done < arguments.kills:
            runs += 1
            with TwoHosts(arguments.delay_us, arguments.mbit) as hosts:
                run = Run(arguments, hosts, folder / f"run-{runs}", environment)
                for _ in range(min(arguments.kills_per_run, arguments.kills - done)):
                    if not disturb(arguments, hosts, run, results):
                        break
                    done += 1
                try:
                    code = run.process.wait(10 * LONGEST)
                except subprocess.TimeoutExpired:
                    sys.exit("it does not end:\n" + run.text())
                run.reader.join()
                if code != 0:
                    sys.exit(f"exit code {code}:\n" + run.text())
            equal = digest(folder / f"run-{runs}") == expected
            same += equal
            print(f"run {runs}: {'the same' if equal else 'OTHER'} weights after {done} failures in all", file=sys.stderr, flush=True)
            shutil.rmtree(folder / f"run-{runs}")
    table(results)
    print(f"{done} failures in {runs} runs, {same} with the weights of the run that was not disturbed")
    sys.exit(same != runs)


if __name__ == "__main__":
    main()
