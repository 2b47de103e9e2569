"""The examples run as they stand, at a small size."""

import pathlib
import random
import re
import shlex
import shutil
import subprocess
import unittest

from program import PROGRAM, SECONDS, Case, environment_of_user

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


class Examples(Case):
    def run_example(self, name, **size):
        clean = environment_of_user()
        clean |= {"PIPETRAIN": PROGRAM, "PIPETRAIN_CACHE_DIR": self.cache, "OUT": str(self.folder)} | size
        done = subprocess.run(["sh", "-e", EXAMPLES / name], env=clean, capture_output=True, text=True, timeout=SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_digits(self):
        self.assertIn("top3", self.run_example("digits.sh", EPOCHS="1", STAGES="2"))

    def test_new_head(self):
        self.assertEqual(len(self.run_example("new_head.sh", EPOCHS="1").splitlines()), 3)

    def test_language_model(self):
        self.run_example("language_model.sh", STEPS="2")
        self.assertTrue((self.folder / "gpt-trained.onnx").exists())

    def test_cifar10(self):
        made = random.Random(5)
        (self.folder / "data").mkdir()
        for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
            self.write(f"data/{name}", b"".join(bytes([made.randrange(10)]) + made.randbytes(3072) for _ in range(4)))
        self.run_example("cifar10.sh", DATA=str(self.folder / "data"), EPOCHS="1", STAGES="2", BATCH="8", WIDTH="8")
        self.assertTrue((self.folder / "cifar10.onnx").exists())

    def test_sweep(self):
        if not shutil.which("jq"):
            self.skipTest("no jq")
        lines = self.run_example("sweep.sh", EPOCHS="1", RATES="1e-3 1e-2").splitlines()
        self.assertEqual([line.split("\t")[1] for line in lines], ["ok", "ok"])

    def test_the_slurm_scripts_are_shell(self):
        for name in ("job.slurm", "slurm.sbatch"):
            subprocess.run(["sh", "-n", EXAMPLES / name], check=True)

    def test_the_commands_for_clusters_have_options_that_exist(self):
        """What launch refuses first are options; the hosts of a cluster are not there."""
        sbatch = (EXAMPLES / "slurm.sbatch").read_text().replace("\\\n", " ")
        command = next(line for line in sbatch.splitlines() if line.startswith("pipetrain launch")).rstrip("& ")
        job = (EXAMPLES / "mpijob.yaml").read_text()
        quoted = re.search(r"command: \[(\"pipetrain\", \"launch\".*?)\]", job, re.DOTALL)[1]
        for words in (shlex.split(command)[1:], re.findall(r'"([^"]*)"', quoted)[1:]):
            err = self.refused("resource" if "--discover" in words else "usage", *words)
            self.assertRegex(err, r"cannot be run|needs the hosts")


if __name__ == "__main__":
    unittest.main()
