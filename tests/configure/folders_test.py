"""The project is configured wherever its folder lies, also below folders that have names of its own."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SOURCES = Path(os.environ["PIPETRAIN_SOURCES"])
CMAKE = os.environ.get("CMAKE", "cmake")


class Folders(unittest.TestCase):
    def configured(self, place, *flags):
        """The build folder of the project in a folder of this name."""
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        (folder / place).mkdir(parents=True)
        link = folder / place / "pipetrain"
        link.symlink_to(SOURCES)
        done = subprocess.run([CMAKE, "-G", "Ninja", "-S", link, "-B", folder / place / "build", "-DPIPETRAIN_CUDA=OFF", *flags],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return folder / place / "build"

    def plan(self, place, *flags):
        """The build's files and commands for the project in a folder of this name."""
        return (self.configured(place, *flags) / "build.ninja").read_text()

    def test_names_of_its_own_folders(self):
        for place in ("src/cuda", "src/train", "a b"):
            self.assertTrue("train_command.cpp" in self.plan(place, "-DPIPETRAIN_TESTS=OFF"), place)

    def test_names_of_kernels_and_helpers_that_some_tests_leave_out(self):
        plan = self.plan("matmul_cuda/emulated_kernels", "-DPIPETRAIN_TESTS=ON")
        for name in ("softmax_cuda.cu.o", "op_check.cpp.o"):
            self.assertTrue(name in plan, name)
        self.assertFalse("matmul_cuda.cpp.o" in plan)

    def test_tests_run_in_a_folder_with_a_space(self):
        build = self.configured("a b", "-DPIPETRAIN_TESTS=ON")
        done = subprocess.run([Path(CMAKE).with_name("ctest"), "--test-dir", build, "--no-tests=error", "-R", "^layers$"], text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
