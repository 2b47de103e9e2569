"""A file of tests that are all skipped counts as skipped, and says why."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

RUN_TESTS = pathlib.Path(__file__).resolve().parent / "run_tests.py"
HEAD = "import unittest\n\n\nclass Some(unittest.TestCase):\n"
PASSES = "    def test_that_passes(self):\n        pass\n"
FAILS = "    def test_that_fails(self):\n        self.fail()\n"
SKIPPED = "    def test_that_is_skipped(self):\n        self.skipTest('no cable')\n"
NEVER_RUN = "    @unittest.skip('no network')\n    def test_that_is_never_run(self):\n        pass\n"
IN_PART = ("    def test_of_parts(self):\n        for part in range(2):\n            with self.subTest(part=part):\n"
           "                if part:\n                    self.skipTest('no cable')\n")
NO_CLASS = "    @classmethod\n    def setUpClass(cls):\n        raise unittest.SkipTest('no root')\n"


class RunTests(unittest.TestCase):
    def expect(self, code, reasons, *parts):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "some_test.py")
            file.write_text(HEAD + "".join(parts))
            done = subprocess.run([sys.executable, "-B", RUN_TESTS, file], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        said = [line for line in done.stdout.splitlines() if line.startswith("skipped: ")]
        self.assertEqual(said, [f"skipped: {reason}" for reason in reasons])

    def test_all_are_skipped(self):
        self.expect(77, ["no cable"], SKIPPED, SKIPPED.replace("skipped(", "skipped_too("))
        self.expect(77, ["no network", "no cable"], NEVER_RUN, SKIPPED)
        self.expect(77, ["no root"], NO_CLASS, PASSES)

    def test_some_are_run(self):
        self.expect(0, [], PASSES)
        self.expect(0, [], PASSES, SKIPPED, NEVER_RUN)
        self.expect(0, [], IN_PART)

    def test_one_fails(self):
        self.expect(1, [], FAILS)
        self.expect(1, [], FAILS, SKIPPED)
        self.expect(1, [], PASSES, FAILS)

    def test_there_are_none(self):
        self.expect(1, [], "    pass\n")


if __name__ == "__main__":
    unittest.main()
