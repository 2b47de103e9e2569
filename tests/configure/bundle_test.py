"""A bundle is made of no GPU plugin that lacks cuDNN's graphs or NCCL; one sentence says so."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SOURCES = Path(os.environ["PIPETRAIN_SOURCES"])
CMAKE = os.environ.get("CMAKE", "cmake")
# What cmake/bundle.cmake asks of the project.
PROJECT = f"""cmake_minimum_required(VERSION 3.25)
project(pipetrain VERSION 1.0 LANGUAGES CXX)
file(WRITE ${{CMAKE_BINARY_DIR}}/empty.cpp "int main() {{}}")
add_executable(pipetrain ${{CMAKE_BINARY_DIR}}/empty.cpp)
add_custom_target(pipetrain_cuda)
add_custom_target(documents)
include("{SOURCES}/cmake/bundle.cmake")
"""


class Bundle(unittest.TestCase):
    def targets(self, *flags):
        """What the build says of each target that packs, or nothing where it would be packed."""
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        (folder / "CMakeLists.txt").write_text(PROJECT)
        build = folder / "build"
        done = subprocess.run([CMAKE, "-G", "Ninja", "-S", folder, "-B", build, *flags], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = []
        for name in ("bundle", "wheel"):
            plan = subprocess.run(["ninja", "-C", build, "-n", "-v", name], capture_output=True, text=True, check=True)
            if "cmake/bundle.py" in plan.stdout:
                said.append("")
                continue
            done = subprocess.run([CMAKE, "--build", build, "--target", name], capture_output=True, text=True, check=False)
            self.assertNotEqual(done.returncode, 0)
            said.append(done.stdout)
        return said

    def test_a_plugin_that_lacks_something(self):
        for flag in ("-DPIPETRAIN_NCCL_INCLUDE=/nccl", "-DCUDNN_FRONTEND_INCLUDE=/frontend"):
            for text in self.targets(flag):
                self.assertIn("the GPU plugin of this build has no cuDNN graphs or no NCCL; configure with -DPIPETRAIN_CUDNN_FRONTEND=", text)

    def test_a_plugin_that_has_all(self):
        self.assertEqual(self.targets("-DPIPETRAIN_NCCL_INCLUDE=/nccl", "-DCUDNN_FRONTEND_INCLUDE=/frontend"), ["", ""])


if __name__ == "__main__":
    unittest.main()
