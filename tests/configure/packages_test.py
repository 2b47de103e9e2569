"""What cpack checks before it packs, by packing a small project with the script of this one."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SOURCES = Path(os.environ["PIPETRAIN_SOURCES"])
CMAKE = os.environ.get("CMAKE", "cmake")
# What cmake/package.cmake sets, but packages without programs, which need no Debian tools.
PROJECT = f"""cmake_minimum_required(VERSION 3.25)
project(small VERSION 1.0 LANGUAGES NONE)
install(FILES CMakeLists.txt DESTINATION share/program COMPONENT program)
install(FILES pipetrain.1 DESTINATION share/man/man1 COMPONENT program)
install(FILES CMakeLists.txt DESTINATION share/cuda COMPONENT cuda)
install(FILES libpipetrain_cuda.so DESTINATION lib/pipetrain COMPONENT cuda OPTIONAL)
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "nobody <nobody@example.org>")
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE all)
set(CPACK_COMPONENTS_ALL ${{COMPONENTS}})
set(CPACK_PRE_BUILD_SCRIPTS "{SOURCES}/cmake/before_packaging.cmake")
include(CPack)
"""


class Packages(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "CMakeLists.txt").write_text(PROJECT)
        (self.folder / "pipetrain.1").write_text("a manual page\n")
        tools = self.folder / "tools"
        tools.mkdir()
        (tools / "dpkg-shlibdeps").write_text("#!/bin/sh\n")
        (tools / "dpkg-shlibdeps").chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}

    def pack(self, *components):
        """Exit code, all that cpack says in one line, and the components that it has packed."""
        build = self.folder / "-".join(components)
        subprocess.run([CMAKE, "-G", "Ninja", "-S", self.folder, "-B", build, f"-DCOMPONENTS={';'.join(components)}"], capture_output=True, check=True)
        done = subprocess.run([Path(CMAKE).with_name("cpack")], cwd=build, env=self.environment, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, " ".join(done.stdout.split()), sorted(path.stem.rsplit("-", 1)[1] for path in build.glob("small-*.deb"))

    def test_a_build_without_the_plugin(self):
        code, said, packed = self.pack("program")
        self.assertEqual(code, 0, said)
        self.assertEqual(packed, ["program"])
        pages = list((self.folder / "program/_CPack_Packages").rglob("pipetrain.1*"))
        self.assertEqual([page.name for page in pages], ["pipetrain.1.gz"])

    def test_a_plugin_that_is_not_built(self):
        code, said, packed = self.pack("program", "cuda")
        self.assertNotEqual(code, 0)
        self.assertIn("the GPU plugin is not built: cmake --build . --target pipetrain_cuda", said)
        self.assertEqual(packed, [])

    def test_a_plugin_that_is_built(self):
        (self.folder / "libpipetrain_cuda.so").write_text("a plugin")
        code, said, packed = self.pack("program", "cuda")
        self.assertEqual(code, 0, said)
        self.assertEqual(packed, ["cuda", "program"])


if __name__ == "__main__":
    unittest.main()
