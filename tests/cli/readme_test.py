"""The commands of the README run as they are written, in its order, in a folder that holds the files they name."""

import os
import pathlib
import re
import shutil
import subprocess
import unittest

from program import DATA, MODELS, PROGRAM, SECONDS, Case, digits

README = (pathlib.Path(__file__).resolve().parents[2] / "README.md").read_text()


def commands():
    """Lines of the indented blocks, then whole commands within sentences."""
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```", README, re.MULTILINE | re.DOTALL))
    lines = [line for line in blocks.splitlines() if line.startswith("build/pipetrain ")]
    sentences = re.findall(r"`(pipetrain (?:new|plan) [^`]*\.onnx[^`]*)`", README)
    return lines, ["build/" + sentence for sentence in sentences]


class Readme(Case):
    def run_line(self, line):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PIPETRAIN_")}
        clean |= {"PIPETRAIN_CACHE_DIR": self.cache, "PIPETRAIN_DEVICE": "cpu"}
        done = subprocess.run(["bash", "-o", "pipefail", "-c", line], cwd=self.folder, env=clean, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=SECONDS)
        self.assertEqual(done.returncode, 0, f"{line}\n{done.stdout[-500:]}\n{done.stderr[-3000:]}")

    def test_every_command_runs(self):
        (self.folder / "build").mkdir()
        (self.folder / "build/pipetrain").symlink_to(PROGRAM)
        (self.folder / "models").symlink_to(MODELS)
        rows = digits()[:400]
        self.write("test.csv", "\n".join(rows) + "\n")
        self.write("five.csv", "".join(row + "\n" for row in rows if int(row.rpartition(",")[2]) < 5))
        self.write("new.csv", "".join(row.rpartition(",")[0] + "\n" for row in rows))
        self.write("notes.txt", README[:4000])
        self.run_line("build/pipetrain data convert test.csv -o train.npz")
        self.run_line("build/pipetrain schedule export 1f1b --stages 4 --micro-batches 16 -o my.schedule")
        lines, sentences = commands()
        self.assertGreaterEqual(len(lines), 25)
        self.assertGreaterEqual(len(sentences), 2)
        for line in lines + sentences:
            if "| jq" in line and not shutil.which("jq"):
                continue
            with self.subTest(line):
                # The run of the example with a date in its name.
                for name in re.findall(r"runs/[\w-]+-\d{8}-\d{6}", line):
                    saved = next((self.folder / "runs").glob("digits-cnn-*/checkpoints"))
                    shutil.copytree(saved.parent, self.folder / name)
                self.run_line(line)


if __name__ == "__main__":
    unittest.main()
