"""Configuring for a processor or with a compiler that the CPU kernels are not made for ends with one sentence.

Each case configures the project until it is refused, which takes a second, before anything is looked for or compiled.
"""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SOURCES = os.environ["PIPETRAIN_SOURCES"]
CMAKE = os.environ.get("CMAKE", "cmake")


class Configure(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def configure(self, *flags):
        command = [CMAKE, "-G", "Ninja", "-S", SOURCES, "-B", str(self.folder / "build"), *flags]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def refused(self, done, *says):
        self.assertNotEqual(done.returncode, 0)
        text = " ".join(done.stderr.split())
        self.assertEqual(text.count("CMake Error"), 1, text)
        for word in says:
            self.assertIn(word, text)

    def toolchain(self, processor):
        path = self.folder / "toolchain.cmake"
        # The compiler is this machine's own: nothing is compiled before the processor is looked at.
        path.write_text(
            "set(CMAKE_SYSTEM_NAME Linux)\n"
            f"set(CMAKE_SYSTEM_PROCESSOR {processor})\n"
            "set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)\n"
        )
        return f"-DCMAKE_TOOLCHAIN_FILE={path}"

    def test_another_architecture(self):
        for processor in ["aarch64", "ppc64le", "riscv64"]:
            with self.subTest(processor=processor):
                done = self.configure(self.toolchain(processor))
                self.refused(done, "x86-64-v3", f"this build is for {processor}", "-DPIPETRAIN_CPU_ARCH")
                shutil.rmtree(self.folder / "build", ignore_errors=True)

    def test_a_compiler_that_does_not_know_it(self):
        done = self.configure("-DPIPETRAIN_CPU_ARCH=x86-64-v9")
        self.refused(done, "does not take -march=x86-64-v9", "-DPIPETRAIN_CPU_ARCH")

    def test_the_compilers_default_is_not_refused_elsewhere(self):
        # Without the compiler: the rest of the project would be configured.
        script = Path(SOURCES) / "cmake" / "cpu_architecture.cmake"
        for arch, accepted in {"": True, "x86-64-v3": False}.items():
            command = [CMAKE, "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DPIPETRAIN_CPU_ARCH={arch}", "-P", str(script)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode == 0, accepted, done.stderr)


if __name__ == "__main__":
    unittest.main()
