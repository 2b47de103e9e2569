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
    def test_names_of_its_own_folders(self):
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        for place in ("src/cuda", "src/train", "a b"):
            (folder / place).mkdir(parents=True)
            link = folder / place / "pipetrain"
            link.symlink_to(SOURCES)
            done = subprocess.run([CMAKE, "-G", "Ninja", "-S", link, "-B", folder / place / "build", "-DPIPETRAIN_TESTS=OFF", "-DPIPETRAIN_CUDA=OFF"],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("train_command.cpp", (folder / place / "build/build.ninja").read_text())


if __name__ == "__main__":
    unittest.main()
