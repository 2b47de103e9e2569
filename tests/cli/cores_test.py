"""Runs beside each other share the cores of a machine instead of taking the same ones."""

import fcntl
import os
import pathlib
import time
import unittest

from program import DATA, MODEL, Case, events, parse

RUN = ["train", "-m", MODEL, "--data", DATA, "--limit", "64", "--batch-size", "32", "--epochs", "1000000", "--device", "cpu", "--threads", "1", "-q"]


def is_claimed(core):
    """Whether a run has this core to itself: src/pipeline/runtime/core_claims.cpp."""
    for path in ("/dev/shm/pipetrain-cores", "/tmp/pipetrain-cores"):
        try:
            with open(path, "r+b") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, core)
                return False
        except BlockingIOError:
            return True
        except OSError:  # there is none, or it is another user's
            continue
    return False


class Cores(Case):
    def cores_of_device(self, process):
        """The cores that the thread of device 0 may use, once it computes."""
        def of_thread():
            for task in pathlib.Path(f"/proc/{process.pid}/task").glob("*"):
                try:
                    status = (task / "status").read_text()
                except OSError:
                    continue
                if status.startswith("Name:\tdevice 0\n"):
                    return next(line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list:"))
            return ""

        cores = self.wait_for(of_thread)
        end = time.monotonic() + 3
        while not cores.isdigit() and time.monotonic() < end:  # it takes its name before its cores
            time.sleep(0.05)
            cores = of_thread()
        return cores

    def test_two_runs_do_not_pin_to_the_same_core(self):
        allowed = os.sched_getaffinity(0)
        if len(allowed) < 2:
            self.skipTest("one core")
        if taken := [core for core in sorted(allowed) if is_claimed(core)]:
            self.skipTest(f"other runs have cores: {taken}")
        processes = []
        for run in "abc":
            processes.append(self.start(*RUN, "--run-dir", run))
            self.addCleanup(processes[-1].communicate)
            self.addCleanup(processes[-1].kill)
        cores = [self.cores_of_device(process) for process in processes]
        pinned = [text for text in cores if text.isdigit()]
        self.assertGreaterEqual(len(pinned), 2, cores)
        self.assertEqual(len(set(pinned)), len(pinned), cores)

    def test_a_trace_has_the_predicted_step_of_devices_that_share_a_core(self):
        # Two devices of two threads each.
        core = min(os.sched_getaffinity(0))
        self.succeed("train", *RUN[1:9], "--max-steps", "2", "--device", "cpu", "--threads", "2", "--gpus", "2", "-q", "--run-dir", "run",
                     "--trace", "trace.json", "--trace-steps", "2", before=lambda: os.sched_setaffinity(0, {core}))
        (plan,) = [event for event in events((self.folder / "run/events.jsonl").read_text()) if event["event"] == "plan"]
        predicted = plan["predicted"]["step_ms"]
        (step,) = [event for event in parse((self.folder / "trace.json").read_text())["traceEvents"] if event.get("cat") == "step" and event["pid"] == 2]
        self.assertAlmostEqual(step["dur"] / 1e3, predicted, delta=0.01 * predicted)


if __name__ == "__main__":
    unittest.main()
