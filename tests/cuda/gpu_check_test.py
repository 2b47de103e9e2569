"""scripts/gpu-check on a rehearsal of a GPU: nothing passes there, planted faults are found by the stage that is to find them, and the
logic around them, with programs that are none.

gpu_check_test.py BUILD_FOLDER FOLDER_OF_THE_REHEARSAL_PLUGIN SOURCES
"""
import contextlib
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

build, plugin, sources = (pathlib.Path(path).resolve() for path in sys.argv[1:4])
sys.dont_write_bytecode = True
sys.path[:0] = [str(sources / "scripts"), str(sources / "bench")]
import gpu as bench  # noqa: E402: bench/gpu.py
from gpu_check import main, places  # noqa: E402

FAKE_DOCTOR = {"gpus": 1, "gpu_names": ["NVIDIA Fake"], "gpus_absent": "", "nccl": "NCCL 2.28", "cuda_libraries": []}


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.work = pathlib.Path(self.folder.name)
        self.out = self.work / "out"

    def command(self, *words, folder=build, use=plugin):
        script = sources / "scripts" / "gpu-check"
        return [str(word) for word in (sys.executable, script, *words, "--build", folder, "--plugin", use, "-o", self.out)]

    def check(self, *words, code=0, fault="", limit=4, environment=None, **options):
        environment = {**os.environ, "PIPETRAIN_REHEARSED_FAULT": fault, **(environment or {})}
        done = subprocess.run(self.command(*words, "--limit", limit, **options), env=environment, capture_output=True, text=True, timeout=250)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def finds(self, fault, words, reason, code=1, **options):
        """The verdict first, then the first failure and why."""
        said = self.check(*words, code=code, fault=fault, **options)
        lines = said.splitlines()
        self.assertRegex(lines[0], r"^stage \d \(.*\): FAILED")
        self.assertRegex(lines[1], "^first failure: FAILED: .*" + reason)
        return said

    def fake_build(self, **scripts):
        """A build folder whose programs are shell scripts; pipetrain doctor reports a GPU."""
        folder = self.work / "build"
        folder.mkdir()
        (folder / "doctor.json").write_text(json.dumps(FAKE_DOCTOR))
        for name, text in {"pipetrain": f"cat {folder}/doctor.json", **scripts}.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)
        return folder

    def test_a_rehearsal_passes_nothing(self):
        said = self.check(1)
        self.assertRegex(said.splitlines()[0], r"^stage 1 .*: rehearsed \(8 rehearsed, 0 failed, 1 skipped\)")
        self.assertIn("20 losses within", said)
        written = {path.name: path for path in self.out.rglob("*")}
        self.assertLessEqual(set(written), {"gpu-check.md", "results.jsonl", "failures.log", "kernels.json", "measurements.json"})
        for text in (said, *(path.read_text() for path in written.values())):
            self.assertNotIn("passed", text)

    def test_a_wrong_gradient_is_found_by_the_losses(self):
        said = self.finds("wrong-gradient", (1, "--only", "digits-blocking"), r"the loss of step [2-9] is 2\.\d+, not 2\.\d+")
        self.assertIn("in float32", said)

    def test_convolutions_without_graphs_are_found(self):
        self.finds("no-graphs", (1, "--only", "digits-blocking"), "Conv was not computed by NVIDIA's library")

    def test_a_norm_without_a_plan_is_found(self):
        self.finds("missing-plan", (1, "--only", "digits-blocking"), r"pipetrain warns: .*\(BatchNorm\) runs with a hand-written kernel, since cuDNN")

    def test_an_old_library_is_found(self):
        self.finds("old-cudnn", (1, "--only", "digits-blocking"), r"cuDNN 8907: the check needs 9\.12")

    def test_missing_libraries_are_found(self):
        self.finds("missing-nccl", (1, "--only", "doctor"), "NCCL cannot be loaded")
        self.finds("missing-nvrtc", (1, "--only", "digits-blocking"), "pipetrain warns: .*NVRTC")

    def test_a_missing_plugin_is_found(self):
        self.finds("", (1, "--only", "doctor"), "no GPU: this build of pipetrain has no GPU support", code=5, use=self.work)

    def test_a_crash_at_exit_is_found(self):
        self.finds("crash-at-exit", (1, "--only", "digits-blocking"), "pipetrain ended by SIGABRT")
        self.finds("crash-at-exit", (2, "--only", "optimizers"), "optim_tests ended by SIGABRT")

    def test_a_kernel_that_never_ran_is_found(self):
        said = self.finds("missing-kernel", (2, "--only", "norms-1"), r"\d+ tests fail: LayerNorm\.")
        self.assertIn("again with CUDA_LAUNCH_BLOCKING=1", said)
        self.assertIn("=== stage 2: norms", (self.out / "failures.log").read_text())

    def test_tests_that_run_no_kernel_are_found(self):
        folder = self.fake_build(ops_tests="echo '[  PASSED  ] 40 tests.'")
        self.finds("", (2, "--only", "norms-1"), r"BatchNorm bfloat16: 0 kernels ran, \d+ are listed", folder=folder)

    def test_graphs_that_were_never_made_are_found(self):
        self.finds("no-recordings", (4, "--only", "graphs"), "no pass became a CUDA graph")
        self.assertRegex(self.check(4, "--only", "graphs"), r"\d\d+ graphs launched")

    def test_a_sanitizer_finds_something_or_does_not_run_here(self):
        folder = self.fake_build(ops_tests="exit 0")
        tool = folder / "compute-sanitizer"
        tool.symlink_to("ops_tests")
        path = {"PATH": f"{folder}:{os.environ['PATH']}"}
        for said, expected in (("Error: Device not supported", "skipped: memcheck: compute-sanitizer does not run here: not supported"),
                               ("Invalid __global__ write", "FAILED: memcheck: compute-sanitizer ended with exit code 1")):
            (folder / "ops_tests").write_text(f"#!/bin/sh\necho '{said}'\nexit 1\n")
            self.assertIn(expected, self.check(2, "--only", "memcheck", code=1, folder=folder, environment=path))
        (folder / "ops_tests").write_text("#!/bin/sh\nexit 0\n")
        self.assertIn("passed: memcheck", self.check(2, "--only", "memcheck", folder=folder, environment=path))

    def test_a_failing_family_names_its_tests_and_the_first_failure(self):
        output = ["op_check.cpp:7: Failure", "the first words", *["more"] * 100, "[  FAILED  ] Conv.One (1 ms)", "[  FAILED  ] Conv.Two (1 ms)"]
        (self.work / "output").write_text("\n".join(output) + "\n")
        folder = self.fake_build(ops_tests=f"cat {self.work}/output; exit 1")
        said = self.finds("", (2, "--only", "fused"), "2 tests fail: Conv.One, Conv.Two", folder=folder)
        self.assertEqual(said.splitlines()[2:4], ["    op_check.cpp:7: Failure", "    the first words"])

    def test_limits_hold(self):
        folder = self.fake_build(optim_tests="echo begun; sleep 600")
        start = time.monotonic()
        said = self.finds("", (2, "--only", "optimizers"), r"optim_tests exceeded the 2 s", limit=0.01, folder=folder)
        self.assertLess(time.monotonic() - start, 60)
        self.assertIn("    begun", said)

    def test_what_did_not_run_has_not_passed(self):
        folder = self.fake_build(nccl_processes="echo skipped: there is no NCCL; exit 77", optim_tests="echo '[  PASSED  ] 0 tests.'")
        said = self.check(4, "--only", "two-ranks", code=1, folder=folder)
        self.assertIn("skipped: two-ranks: there is no NCCL", said)
        self.assertIn("FAILED (0 passed, 0 failed, 1 skipped)", said)
        self.finds("", (2, "--only", "optimizers"), "no test ran", folder=folder)

    def test_a_gpu_can_pass_and_results_are_kept_by_step(self):
        folder = self.fake_build(nccl_processes="exit 0")
        said = self.check(4, "--only", "two-ranks", folder=folder)
        self.assertIn("stage 4 (schedules, graphs, replicas, processes): passed (1 passed, 0 failed, 0 skipped)", said)
        (folder / "nccl_processes").write_text("#!/bin/sh\nexit 3\n")
        self.check(4, "--only", "two-ranks", code=1, folder=folder)
        self.check(1, "--only", "doctor", folder=folder)
        report = (self.out / "gpu-check.md").read_text()
        self.assertIn("FAILED: two-ranks: nccl_processes ended with exit code 3, not with 0", report)
        self.assertNotIn("- passed: two-ranks", report)
        self.assertIn("- passed: doctor", report)
        self.assertEqual(len((self.out / "results.jsonl").read_text().splitlines()), 3)

    def test_results_of_another_gpu_do_not_count(self):
        folder = self.fake_build(nccl_processes="exit 0")
        self.check(4, "--only", "two-ranks", folder=folder)
        results = self.out / "results.jsonl"
        results.write_text(results.read_text().replace('"gpu": "', '"gpu": "another '))
        self.check(1, "--only", "doctor", folder=folder)
        report = (self.out / "gpu-check.md").read_text()
        self.assertIn("- passed: doctor", report)
        self.assertNotIn("two-ranks", report)

    def test_results_of_another_build_do_not_count(self):
        folder = self.fake_build(nccl_processes="exit 0")
        (folder / "doctor.json").write_text(json.dumps({**FAKE_DOCTOR, "version": "0.1.0", "build": "0.1.0-one"}))
        self.check(4, "--only", "two-ranks", folder=folder)
        report = (self.out / "gpu-check.md").read_text()
        self.assertRegex(report, r"- pipetrain 0\.1\.0\n- build 0\.1\.0-one, plugin [0-9a-f]{12}\n")
        results = self.out / "results.jsonl"
        of_this = results.read_text()
        another = self.work / "another"
        another.mkdir()
        (another / "libpipetrain_cuda.so").write_text("other kernels")
        without = json.loads(of_this)
        self.assertIn("0.1.0-one", without.pop("build"))
        for lines, use, counts in ((of_this, plugin, True), (of_this.replace("0.1.0-one", "0.1.0-two"), plugin, False),
                                   (json.dumps(without) + "\n", plugin, False), (of_this, another, False)):
            results.write_text(lines)
            self.check(1, "--only", "doctor", folder=folder, use=use)
            report = (self.out / "gpu-check.md").read_text()
            self.assertIn("- passed: doctor", report)
            self.assertEqual("two-ranks" in report, counts, report)

    def test_a_signal_ends_it_with_what_was_found(self):
        marker = self.work / "running"
        folder = self.fake_build(optim_tests=f"touch {marker}; sleep 600")
        process = subprocess.Popen(self.command(2, "--only", "optimizers", folder=folder), stdout=subprocess.PIPE, text=True)
        for _ in range(600):
            if marker.exists():
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, said)
        self.assertTrue(said.startswith("stage 2"), said)
        self.assertIn("stopped by a signal", said)

    def test_usage(self):
        self.check(1, "--only", "nothing-like-it", code=2)
        listed = self.check("all", "--list")
        self.assertEqual({line.split()[0] for line in listed.splitlines()}, {"1", "2", "3", "4"})

    def test_the_status_takes_the_report_and_nothing_else_changes(self):
        status = self.work / "status.md"
        before = (sources / "docs" / "gpu-status.md").read_text()
        status.write_text(before)
        self.out.mkdir()
        (self.out / "gpu-check.md").write_text("the report\n")
        for _ in range(2):
            main.write_status(self.out, status)
        after = status.read_text()
        self.assertEqual(after.count("the report\n"), 1)
        self.assertEqual(before.split(main.BEGIN)[0], after.split(main.BEGIN)[0])
        self.assertEqual(before.split(main.END)[1], after.split(main.END)[1])

    def test_everything_that_it_needs_is_there(self):
        found = places.find(build)
        self.assertEqual([path for path in found.missing() if "/build" not in path], [])

    def test_benchmarks_compare_three_losses(self):
        exact = [10.0, 9.0, 8.2]

        def wrong(ours, theirs=(10.001, 9.002, 8.199)):
            found = {bench.OURS: {"losses": ours}, bench.EAGER: {"losses": theirs}, bench.EXACT: {"losses": exact}}
            with contextlib.redirect_stdout(io.StringIO()):
                return bench.compare_losses(found)

        self.assertEqual(wrong([10.002, 9.003, 8.198]), "")
        self.assertIn("the losses are", wrong([10.0, 9.3, 8.7]))  # gradients that are too small
        self.assertIn("the losses are", wrong([10.0, float("nan"), 8.2]))
        self.assertIn("the comparison is inconclusive", wrong([10.0, 9.0, 8.2], theirs=[11.0, 9.0, 8.2]))

    def test_kernels_of_every_operator_are_listed(self):
        """Kernels recorded for any family; compared with docs/gpu-operators.md, which another test verifies."""
        text = (sources / "docs" / "gpu-operators.md").read_text()
        operators = {match[1] for match in re.finditer(r"^\| (\w+) \| (?!computed)", text, re.M)}
        listed = {kernel.split()[0] for family in places.read("kernels.json").values() for kernel in family}
        self.assertGreater(len(operators), 100)
        self.assertEqual(operators - listed, set())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
