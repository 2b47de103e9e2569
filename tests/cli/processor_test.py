"""A processor without the instructions that the CPU's kernels are compiled for: what needs them is refused in one sentence,
everything else works."""

import re
import shutil
import subprocess
import unittest

from program import DATA, MODEL, PROGRAM, Case, environment_of_user

# Old processors by qemu's names, with what they lack.
PROCESSORS = {
    "Conroe": ["SSE4.2", "POPCNT", "AVX", "FMA", "AVX2", "BMI1", "BMI2", "LZCNT"],
    "Nehalem": ["AVX", "FMA", "AVX2", "BMI1", "BMI2", "LZCNT"],
    "IvyBridge": ["FMA", "AVX2", "BMI1", "BMI2", "LZCNT"],
}
COMPUTING = [
    ["train", MODEL, "--data", DATA, "--max-steps", "1"],
    ["eval", MODEL, "--data", DATA],
    ["predict", MODEL, "--data", DATA],
    ["profile", MODEL],
    ["plan", MODEL, "--gpus", "2", "--device", "cpu"],
    ["plan", MODEL, "--gpus", "2", "--topology", "laptop"],
    ["simulate", MODEL, "--gpus", "2", "--topology", "laptop"],
    ["verify", MODEL, "--data", DATA],
    ["doctor", "--measure"],
]
OTHERS = [
    ["--version"],
    ["--help"],
    ["train", "--help"],
    ["help", "train"],
    ["inspect", MODEL],
    ["doctor"],
    ["schedule", "show", "1f1b"],
    ["data", "inspect", DATA],
    ["completion", "bash"],
    ["new", "mlp", "-o", "new.onnx", "--overwrite"],
]


class OldProcessor(Case):
    def check_sentence(self, text, lacks):
        errors = [line for line in text.splitlines() if line.startswith("error: ")]
        self.assertEqual(len(errors), 1, text)
        self.assertIn("the CPU kernels of this build need instructions that this processor lacks: ", errors[0])
        missing = re.search(r"lacks: ([^;]*);", errors[0])[1].split(", ")
        for name in lacks:
            self.assertIn(name, missing)
        self.assertIn("PIPETRAIN_CPU_ARCH", errors[0])

    def test_a_planted_answer(self):
        environment = {"PIPETRAIN_VECTORS": "none"}
        for command in COMPUTING:
            with self.subTest(command=command):
                self.check_sentence(self.refused("resource", *command, environment=environment), ["AVX2", "FMA"])
        for command in OTHERS:
            with self.subTest(command=command):
                self.succeed(*command, environment=environment)
        out, _ = self.succeed("doctor", environment=environment)
        self.assertRegex(out, r"(?m)^vectors  too old for this build's CPU kernels, which need .*AVX2")

    def test_emulated_processors(self):
        qemu = shutil.which("qemu-x86_64")
        if not qemu:
            self.skipTest("qemu-x86_64 is not installed (Debian: qemu-user)")
        # The program starts itself anew, which would leave the emulator, unless this is set.
        environment = environment_of_user() | {"OMP_WAIT_POLICY": "passive", "PIPETRAIN_CACHE_DIR": self.cache}
        environment.pop("PIPETRAIN_VECTORS", None)
        for processor, lacks in PROCESSORS.items():
            for command in COMPUTING + OTHERS:
                with self.subTest(processor=processor, command=command):
                    done = subprocess.run([qemu, "-cpu", processor, PROGRAM, *command], cwd=self.folder,
                                          env=environment, capture_output=True, text=True, check=False, timeout=300)
                    self.assertEqual(done.returncode, 5 if command in COMPUTING else 0, done.stderr)
                    if command in COMPUTING:
                        self.check_sentence(done.stderr, lacks)


if __name__ == "__main__":
    unittest.main()
