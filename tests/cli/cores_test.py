"""Runs beside each other share the cores of a machine instead of taking the same ones."""

import os
import pathlib
import time
import unittest

from program import DATA, MODEL, SECONDS, Case

RUN = ["train", "-m", MODEL, "--data", DATA, "--limit", "64", "--batch-size", "32", "--epochs", "1000000", "--device", "cpu", "--threads", "1", "-q"]


class Cores(Case):
    def cores_of_device(self, process):
        """The cores that the thread of device 0 may use, once it computes."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for task in pathlib.Path(f"/proc/{process.pid}/task").glob("*"):
                try:
                    status = (task / "status").read_text()
                except OSError:
                    continue
                if status.startswith("Name:\tdevice 0\n"):
                    time.sleep(0.2)  # it takes its name before its cores
                    text = (task / "status").read_text()
                    return next(line.split()[1] for line in text.splitlines() if line.startswith("Cpus_allowed_list:"))
            time.sleep(0.05)
        self.fail("no device computes")

    def test_two_runs_do_not_pin_to_the_same_core(self):
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest("one core")
        processes = []
        for run in "abc":
            processes.append(self.start(*RUN, "--run-dir", run))
            self.addCleanup(processes[-1].communicate)
            self.addCleanup(processes[-1].kill)
        cores = [self.cores_of_device(process) for process in processes]
        pinned = [text for text in cores if text.isdigit()]
        self.assertEqual(len(set(pinned)), len(pinned), cores)


if __name__ == "__main__":
    unittest.main()
