"""A run that gets no memory or no thread ends with exit code 5 and one sentence that says what was asked for, or ends well.
PIPETRAIN_FAILURES: how many of the requests of a run fail, one in each run (default 24); "all" is meant for a machine at night."""

import hashlib
import os
import resource
import unittest

from program import DATA, EXIT, MODEL, Case

FAILING = os.environ["FAILING_ALLOCATIONS"]
FAILURES = os.environ.get("PIPETRAIN_FAILURES", "24")
RUN = ["train", MODEL, "--data", DATA, "--limit", "64", "-b", "32", "--max-steps", "2", "--device", "cpu", "--stages", "2",
       "--threads", "1", "--run-dir", "run", "-o", "trained.onnx", "--overwrite", "--status-file", "status.json"]


class Memory(Case):
    def ends_well_or_says_why(self, code, err):
        self.assertIn(code, (0, EXIT["resource"]), err)
        if code == 0:
            return
        self.assertEqual(err.count("error: "), 1, err)
        self.assertRegex(err, "error: (not enough memory|cannot (start another thread|map|open|read|create)|.*memory)", err)

    def outcome(self):
        return hashlib.sha256((self.folder / "trained.onnx").read_bytes()).hexdigest()

    def test_limits_of_the_address_space(self):
        refused = 0
        for megabytes in (60, 90, 120, 150, 180, 220, 260, 300, 350, 400, 500, 600, 800, 1000):
            with self.subTest(megabytes):
                limit = megabytes << 20
                code, _, err = self.run_program(*RUN, before=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
                if code == 127:  # the system's loader has no room for the libraries
                    continue
                self.ends_well_or_says_why(code, err)
                refused += code == EXIT["resource"]
        self.assertGreater(refused, 0)

    def fail_one_by_one(self, kind, run=RUN):
        """Returns how many of the failing runs ended well."""
        environment = {"LD_PRELOAD": self.preloaded(FAILING), "PIPETRAIN_FAIL_KIND": kind, "OMP_WAIT_POLICY": "passive"}
        counted = self.folder / "count"
        self.succeed(*run, environment=environment | {"PIPETRAIN_FAIL_COUNT": str(counted)})
        good, requests = self.outcome(), int(counted.read_text())
        self.assertGreater(requests, 0)
        number = requests if FAILURES == "all" else min(requests, int(FAILURES))
        refused = well = 0
        for i in range(number):
            nth = 1 + i * requests // number
            with self.subTest(f"{kind} {nth} of {requests}"):
                code, _, err = self.run_program(*run, environment=environment | {"PIPETRAIN_FAIL_NTH": str(nth)})
                self.ends_well_or_says_why(code, err)
                if code == 0:
                    self.assertEqual(self.outcome(), good)
                refused += code == EXIT["resource"]
                well += code == 0
        self.assertGreater(refused, 0)
        return well

    def test_a_request_for_memory_fails(self):
        self.fail_one_by_one("memory")

    def test_a_thread_cannot_be_started(self):
        self.fail_one_by_one("thread")

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "one core: nothing is copied by several threads")
    def test_large_tensors_are_copied_by_the_threads_that_there_are(self):
        self.succeed("new", "mlp", "--image", "8", "--width", "1536", "-o", "mlp.onnx")  # a tensor of 9 MiB
        run = [*RUN]
        run[run.index(MODEL)] = "mlp.onnx"
        self.assertGreater(self.fail_one_by_one("thread", run), 0)


if __name__ == "__main__":
    unittest.main()
