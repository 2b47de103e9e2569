"""Replicas that do not wait for each other (--replica-mode): what timing decided is recorded, and the
run can be computed again from it."""

import json
import os
import signal
import struct
import threading
import time
import unittest

from process_case import DATA, MODEL, RUN, ProcessCase
from program import EXIT, Case, parse

DIGITS = [*RUN, "-m", MODEL, "--data", DATA, "--limit", "480", "--batch-size", "32"]


class Slowed:
    """Stops a process two thirds of the time."""

    def __init__(self, process):
        self.process, self.ends = process, threading.Event()
        self.thread = threading.Thread(target=self.pulse)

    def pulse(self):
        while not self.ends.is_set():
            for number, seconds in ((signal.SIGSTOP, 0.02), (signal.SIGCONT, 0.01)):
                try:
                    os.kill(self.process, number)
                except ProcessLookupError:
                    return
                time.sleep(seconds)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()


class ReplicaCase(Case):
    def updates(self, run):
        """What each update has added, by its number, as the events say."""
        events = [parse(line) for line in (self.folder / run / "events.jsonl").read_text().splitlines()]
        return {event["step"]: event["parts"] for event in events if event["event"] == "step"}

    def check_replay(self, run, updates):
        found = json.loads(self.succeed("verify", "--replay", run, "--json")[0])
        self.assertTrue(found["equal"], found)
        self.assertEqual(found["updates"], updates)

    def check_updates(self, run, staleness=0, gradients=1):
        """Every gradient is of weights that are new enough, and counts once."""
        used = []
        for step, parts in self.updates(run).items():
            self.assertEqual(len(parts), gradients)
            for number, version in parts:
                self.assertTrue(0 <= step - 1 - version <= staleness, (step, parts))
                used.append(number)
            self.assertEqual(parts, sorted(parts))
        self.assertEqual(len(set(used)), len(used))
        return used


class ReplicaMode(ReplicaCase):
    def test_threads(self):
        run = [*DIGITS, "--epochs", "2", "--val-split", "0.2"]
        for name, replicas, staleness, gradients in (("async", "3:mode=async,staleness=4", 4, 1), ("backup", "3:mode=backup:1", 0, 2)):
            err = self.run_program(*run, "--replicas", replicas, "--run-dir", name)[2]
            self.assertIn("steps are not predicted", err)
            used = self.check_updates(name, staleness, gradients)
            if name == "async":
                self.assertEqual(sorted(used), list(range(24)))
            self.check_replay(name, 24)

    def test_the_name_of_a_run_need_not_be_utf8(self):
        name = os.fsdecode(b"run\xff")
        self.succeed(*DIGITS, "--replicas", "2:mode=async", "--max-steps", "4", "--run-dir", name)
        self.check_replay(name, 4)

    def test_it_goes_on_from_a_checkpoint(self):
        for name, mode in (("async", "async:staleness=5"), ("backup", "backup:1")):
            self.succeed(*DIGITS, "--replicas", "3", "--replica-mode", mode, "--max-steps", "20", "--save-every", "10", "--run-dir", name)
            half = f"--resume={self.folder / name / 'checkpoints' / 'step-000010'}"
            self.succeed("train", half, "--max-steps", "30", "--run-dir", f"{name}-on")
            self.check_replay(f"{name}-on", 30)
            self.refused("usage", "train", half, "--replica-mode", "sync", "--run-dir", "no", says="made of other gradients")

    def test_it_began_with_random_weights(self):
        self.succeed(*DIGITS, "--replicas", "2:mode=async", "--init", "random", "--seed", "3", "--max-steps", "6", "--run-dir", "run")
        self.check_replay("run", 6)

    def test_other_labels_count_after_a_checkpoint(self):
        self.succeed(*DIGITS, "--replicas", "2:mode=async", "--max-steps", "4", "--run-dir", "run")
        _, err = self.succeed("train", "--resume=run", "--ignore-index", "3", "--max-steps", "8")
        self.assertIn("note     ignore-index -100 → 3", err)
        self.refused("usage", "verify", "--replay", "run", says="resumed at step 4 with other options")

    def test_what_is_damaged_is_noticed(self):
        self.succeed(*DIGITS, "--replicas", "2:mode=async", "--max-steps", "12", "--run-dir", "run")
        step = self.folder / "run" / "checkpoints" / "step-000012"
        for name in ("replicas", "weights"):
            path = step / f"{name}.safetensors"
            content = path.read_bytes()
            (length,) = struct.unpack("<Q", content[:8])
            place = 8 + length + 16
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1:])
            self.refused("data", "verify", "--replay", "run", says=f"{name}.safetensors")
            path.write_bytes(content)
        self.check_replay("run", 12)
        # Other weights to begin with.
        self.refused("data", "verify", "--replay", "run", "-m", "run/trained.onnx", says="other weights than the run began with")

    def test_what_does_not_go_together_is_refused(self):
        two = ["--replicas", "2", "--replica-mode", "async"]
        for arguments, says in (
                (["--replicas", "3:mode=async,staleness=1"], "--staleness 1 is too small"),
                (["--replicas", "2", "--replica-mode", "backup:2"], "of 2 replicas 2 cannot be backup workers"),
                (["--replicas", "4", "--replica-mode", "backup:1"], "cannot be divided among the 3 replicas"),
                (["--replicas", "2", "--replica-mode", "backup"], "backup"),
                (["--replicas", "2", "--replica-mode", "async:old=1"], "async:staleness=N"),
                (["--replicas", "2,2", "--replica-mode", "async"], "networks in one stage"),
                (["--stages", "2", "--replica-mode", "async"], "networks in one stage"),
                ([*two, "--schedule", "pipedream"], "synchronous --schedule"),
                ([*two, "--shard-optimizer"], "--shard-optimizer"),
                ([*two, "--accumulators", "2"], "--accumulators"),
                ([*two, "--compress", "bf16"], "--compress"),
                ([*two, "--precision", "fp16"], "--precision fp16"),
                ([*two, "--on-nan", "skip"], "--on-nan skip"),
                ([*two, "--verify-every", "2"], "--verify-every"),
                ([*two, "--trace", "trace.json"], "--trace")):
            with self.subTest(arguments=arguments):
                self.refused("usage", *DIGITS, *arguments, says=says)
        self.refused("usage", "plan", "-m", MODEL, "--replicas", "2:mode=async", says="steps of other modes cannot be predicted")
        self.refused("usage", "verify", "-m", MODEL, *two, says="verify --replay RUN")
        self.succeed(*DIGITS, "--max-steps", "2", "--save-every", "1", "--run-dir", "sync")
        self.refused("usage", "verify", "--replay", "sync", says="no record to replay")


class ReplicaModeOfProcesses(ReplicaCase, ProcessCase):
    def train_slowly(self, *arguments, run):
        process = self.start_in(3, *DIGITS, *arguments, "--run-dir", run)
        self.wait_for_step(run, process)
        with Slowed(self.ranks(process)[2]):
            _, err = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, err.decode())

    def test_a_slow_process(self):
        self.train_slowly("--replica-mode", "async:staleness=6", "--max-steps", "400", run="async")
        used = self.check_updates("async", staleness=6)
        self.assertEqual(sorted(used), list(range(400)))
        old = [step - 1 - version for step, [[_, version]] in self.updates("async").items()]
        self.assertGreater(max(old), 2, "the slow one's gradients are older than those of three equals")
        self.check_replay("async", 400)
        self.train_slowly("--replica-mode", "backup:1", "--max-steps", "300", run="backup")
        used = self.check_updates("backup", gradients=2)
        self.assertLess(len(used), max(used) + 1, "some gradients were discarded")
        self.check_replay("backup", 300)

    def test_more_replicas_than_processes_and_another_number_after_a_checkpoint(self):
        run = [*DIGITS, "--replicas", "3:mode=async,staleness=3", "--max-steps", "20", "--save-every", "10", "--val-split", "0.2"]
        self.train_in(2, *run, "--run-dir", "two")
        self.check_updates("two", staleness=3)
        self.check_replay("two", 20)
        half = f"--resume={self.folder / 'two' / 'checkpoints' / 'step-000010'}"
        self.train_in(3, "train", half, "--run-dir", "three")
        self.check_replay("three", 20)
        code, _, err = self.run_in(3, *DIGITS, "--replicas", "2:mode=async", "--run-dir", "few")
        self.assertEqual(code, 2, err)
        self.assertIn("3 processes were started for 2 replicas", err)

    def test_a_signal_to_any_process_saves_and_ends(self):
        process = self.start_in(2, *DIGITS, "--replica-mode", "async", "--max-steps", "1000000", "--run-dir", "run")
        self.wait_for_step("run", process)
        os.kill(self.ranks(process)[1], signal.SIGTERM)
        _, err = process.communicate(timeout=300)
        self.assertIn(b"stopped  by TERM", err)
        self.check_replay("run", max(self.updates("run")))

    def test_as_many_gradients_for_an_update_of_another_number_of_processes(self):
        """Of three processes one is a backup worker, of two none; of one there are too few."""
        run = [*DIGITS, "--replica-mode", "backup:1", "--max-steps", "20", "--save-every", "10"]
        self.train_in(3, *run, "--run-dir", "three")
        half = f"--resume={self.folder / 'three' / 'checkpoints' / 'step-000010'}"
        for name, more in (("two", []), ("said", ["--replica-mode", "backup:1"])):
            self.train_in(2, "train", half, *more, "--max-steps", "30", "--run-dir", name)
            self.check_updates(name, gradients=2)
            self.check_replay(name, 30)
        code, _, err = self.run_in(1, "train", half, "--run-dir", "one")
        self.assertEqual(code, EXIT["resource"], err)
        self.assertIn("adds the gradients of 2 replicas, but 1 process was started", err)
        code, _, err = self.run_in(3, "train", half, "--replica-mode", "backup:2", "--run-dir", "other")
        self.assertEqual(code, EXIT["usage"], err)

    def test_a_lost_process_ends_the_run(self):
        process = self.start_in(2, *DIGITS, "--replica-mode", "async", "--max-steps", "1000000", "--comm-timeout", "2", "--run-dir", "run")
        self.wait_for_step("run", process)
        os.kill(self.ranks(process)[1], signal.SIGSTOP)
        _, err = process.communicate(timeout=300)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn(b"process 1", err)


if __name__ == "__main__":
    unittest.main()
