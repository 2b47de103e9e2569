"""The commands of the README and of docs/first-model.md run as they are written, in order, in a folder with the files they name."""

import os
import pathlib
import random
import re
import shutil
import subprocess
import unittest

from program import DATA, MODELS, PROGRAM, SECONDS, Case, digits

SOURCE = pathlib.Path(__file__).resolve().parents[2]
README = (SOURCE / "README.md").read_text()
FIRST_MODEL = (SOURCE / "docs/first-model.md").read_text()


def commands():
    """Lines of the indented blocks, then whole commands within sentences."""
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```", README, re.MULTILINE | re.DOTALL))
    lines = [line for line in blocks.splitlines() if line.startswith("build/pipetrain ")]
    sentences = re.findall(r"`(pipetrain (?:new|plan) [^`]*\.onnx[^`]*)`", README)
    return lines, ["build/" + sentence for sentence in sentences]


class Readme(Case):
    def run_line(self, line):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PIPETRAIN_")}
        clean |= {"PIPETRAIN_CACHE_DIR": self.cache, "PIPETRAIN_DEVICE": "cpu", "PATH": f"{self.folder}/build:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-o", "pipefail", "-c", line], cwd=self.folder, env=clean, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=SECONDS)
        self.assertEqual(done.returncode, 0, f"{line}\n{done.stdout[-500:]}\n{done.stderr[-3000:]}")

    def setUp(self):
        super().setUp()
        (self.folder / "build").mkdir()
        (self.folder / "build/pipetrain").symlink_to(PROGRAM)

    def test_every_command_of_the_first_model_runs(self):
        source = random.Random(3)
        kinds = ["setosa", "versicolor", "virginica"]
        rows = [[f"{source.gauss(1 + kind, 0.3):.2f}" for _ in range(4)] + [kinds[kind]] for kind in [0, 1, 2] * 40]
        header = "sepal length,sepal width,petal length,petal width"
        self.write("flowers.csv", header + ",species\n" + "".join(",".join(row) + "\n" for row in rows))
        self.write("new.csv", header + "\n" + "".join(",".join(row[:4]) + "\n" for row in rows[:5]))
        for name in ("cat", "dog"):
            (self.folder / "pets" / name).mkdir(parents=True)
            for i in range(20):
                self.write(f"pets/{name}/{i}.ppm", b"P6\n40 36\n255\n" + bytes(source.randrange(256) for _ in range(40 * 36 * 3)))
        # What PyTorch would have exported.
        self.run_line("pipetrain new mlp --image 2 --classes 3 -o flowers.onnx")
        self.run_line("pipetrain new lenet --image 32 --channels 3 --classes 1000 -o photos.onnx")
        lines = "".join(re.findall(r"^```sh\n(.*?)^```", FIRST_MODEL, re.MULTILINE | re.DOTALL)).splitlines()
        self.assertGreaterEqual(len(lines), 8)
        for line in lines:
            with self.subTest(line):
                self.run_line(line)

    def test_every_command_of_the_readme_runs(self):
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
