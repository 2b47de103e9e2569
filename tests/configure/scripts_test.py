"""What scripts find out about a machine: its cores, where programs may run, and what sanitizers need."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCES = Path(os.environ["PIPETRAIN_SOURCES"])


class Scripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()

    def bash(self, script):
        """Exit code, and what a script prints that uses scripts/packages.sh as the others do. It runs in an empty folder, which is that for temporary
        files, too."""
        done = subprocess.run(["bash", "-c", f"set -euo pipefail\nsource '{SOURCES}/scripts/packages.sh'\n{script}"], cwd=self.folder, text=True,
                              env=os.environ | {"TMPDIR": str(self.folder)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return done.returncode, done.stdout.strip()

    def test_a_container_limits_the_cores(self):
        for limit, cores in (("max 100000", 8), ("200000 100000", 2), ("250000 100000", 3), ("50000 100000", 1), ("1600000 100000", 8), ("", 8),
                             ("-1 0", 8)):
            self.assertEqual(self.bash(f"nproc() {{ echo 8; }}\ncat() {{ echo {limit}; }}\ncores"), (0, str(cores)), limit)
        self.assertEqual(self.bash("nproc() { echo 8; }\ncat() { return 1; }\ncores"), (0, "8"))

    def test_programs_run_elsewhere_where_temporary_ones_may_not(self):
        runs = "tests_can_run_what_they_write\necho $TMPDIR"
        self.assertEqual(self.bash(runs), (0, str(self.folder)))
        self.assertEqual(list(self.folder.iterdir()), [])
        self.assertEqual(self.bash("chmod() { :; }\n" + runs), (0, f"{self.folder}/build/tmp"))
        self.assertTrue((self.folder / "build/tmp").is_dir())

    def test_sanitizers_need_addresses_that_are_not_too_random(self):
        fixes, refuses = 'setarch() { shift; "$@"; echo fixed; }\n', "setarch() { return 1; }\n"
        for bits, setarch, said in (("echo 28", fixes, "runs"), ("echo 32", fixes, "fixed\nruns\nfixed"), ("return 1", fixes, "fixed\nruns\nfixed"),
                                    ("echo 28", refuses, "runs"), ("return 1", refuses, "runs")):
            self.assertEqual(self.bash(f"cat() {{ {bits}; }}\n{setarch}sanitized echo runs"), (0, said), (bits, setarch))
        code, said = self.bash(f"cat() {{ echo 32; }}\n{refuses}sanitized echo runs")
        self.assertEqual(code, 1)
        self.assertIn("sysctl vm.mmap_rnd_bits=28", said)
        self.assertNotIn("runs", said)

    def test_recipes_are_skipped_without_git(self):
        done = subprocess.run([sys.executable, SOURCES / "tests/recipes/run", "--check"], env=os.environ | {"PATH": str(self.folder)}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.assertEqual((done.returncode, done.stdout), (77, "skipped: needs git\n"))


if __name__ == "__main__":
    unittest.main()
