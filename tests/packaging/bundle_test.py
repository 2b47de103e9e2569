"""What is carried elsewhere runs there: the tree of the bundle and the wheel, in a root that has glibc and a shell and nothing else.

Where such a root cannot be made (unshare is not allowed), those tests are skipped; that all libraries are the tree's own is seen by the loader's trace.
"""
import csv
import importlib.util
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

BUILD, SOURCES, FAKES = (pathlib.Path(os.environ[name]) for name in ("BUILD", "SOURCES", "FAKES"))
VERSION, COMPONENTS = os.environ["VERSION"], os.environ["COMPONENTS"].split(";")
SECONDS = 120
GLIBC = ["libc.so.6", "libm.so.6", "libmvec.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1"]
LIBRARIES = {path.name.split(".")[0]: path for path in (FAKES / "libraries").glob("*.so.*")}
MACHINES_OWN = {"libcudart", "libcublasLt", "libcudnn", "libnvrtc", "libmpi"}

specification = importlib.util.spec_from_file_location("bundle", SOURCES / "cmake/bundle.py")
bundle = importlib.util.module_from_spec(specification)
specification.loader.exec_module(bundle)


def run(*command, **settings):
    settings = {"capture_output": True, "text": True, "timeout": SECONDS} | settings
    return subprocess.run([str(word) for word in command], **settings)


def setUpModule():
    global folder, root, tree
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pipetrain-test-"))
    unittest.addModuleCleanup(shutil.rmtree, folder)
    root, tree = folder / "root", folder / "root/opt/pipetrain"
    for component in COMPONENTS:
        run("cmake", "--install", BUILD, "--prefix", tree, "--component", component, "--strip", check=True)
    done = run(sys.executable, SOURCES / "cmake/bundle.py", tree, "--version", VERSION, "--wheel", folder)
    if "on Debian 12" in done.stderr:
        raise unittest.SkipTest(done.stderr)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    # glibc and a shell, where they are here.
    shell = os.path.realpath("/bin/sh")
    libc = pathlib.Path(re.search(r"libc\.so\.6 => (\S+)", run("ldd", shell).stdout)[1])
    loader = pathlib.Path("/lib64/ld-linux-x86-64.so.2")
    for name in ("proc", "dev", "tmp", "bin", "work"):
        (root / name).mkdir()
    for source, target in [(shell, "bin/sh"), (loader, loader.relative_to("/"))] + [
            (libc.parent / name, (libc.parent / name).relative_to("/")) for name in GLIBC if (libc.parent / name).exists()]:
        (root / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, root / target)


def in_root(*command, cwd="/work", **environment):
    """Runs a command in the root, with these variables alone."""
    script = (f'{shutil.which("mount")} --rbind /proc "$0/proc" && {shutil.which("mount")} --rbind /dev "$0/dev" && '
              f'exec {shutil.which("chroot")} "$0" /bin/sh -c \'cd "$0" && exec "$@"\' "$@"')
    return run(shutil.which("unshare"), "--map-root-user", "--mount", "/bin/sh", "-c", script, root, cwd, *command,
               env={"PATH": "/bin", "HOME": "/work"} | environment)


class Tree(unittest.TestCase):
    def test_nothing_is_needed_that_is_neither_glibcs_nor_carried(self):
        files = bundle.elves(tree)
        self.assertIn(tree / "bin/pipetrain", files)
        for path in files:
            dynamic = run("readelf", "-dW", path, check=True).stdout
            for text in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic):
                for entry in text.split(":"):
                    self.assertRegex(entry, r"^\$ORIGIN", f"{path}: {text}")
            for name in bundle.needed(path):
                known = name in GLIBC or name.startswith("ld-linux") or (tree / "lib/pipetrain" / name).exists()
                if path.name in ("libpipetrain_cuda.so", "libpipetrain_mpi.so"):
                    known = known or name.split(".")[0] in MACHINES_OWN
                self.assertTrue(known, f"{path} needs {name}")
            for version in re.findall(r"\bGLIBC_(\d+)\.(\d+)", run("readelf", "-VW", path, check=True).stdout):
                self.assertLessEqual(tuple(map(int, version)), (2, 36), path)
        self.assertFalse(list(tree.rglob("libmpi.so*")) + list(tree.rglob("libcud*.so*")))

    def test_the_loader_takes_them_from_the_tree(self):
        done = run(tree / "bin/pipetrain", env={"LD_TRACE_LOADED_OBJECTS": "1"}, check=True)
        found = dict(re.findall(r"^\s*(\S+) => (\S+)", done.stdout, re.M))
        self.assertIn("libdnnl.so.2", found)
        for name, path in found.items():
            if name not in GLIBC:
                self.assertTrue(path.startswith(f"{tree}/bin/../lib/pipetrain/"), f"{name} is {path}")

    def test_every_library_has_its_licence(self):
        licences = {path.name for path in (tree / "share/doc/pipetrain/licences").iterdir()}
        for name in ("libdnnl2", "libprotobuf-lite32", "libstdc++6", "libgomp1", "GPL-3"):
            self.assertIn(name, licences)
        self.assertTrue((tree / "share/doc/pipetrain/copyright").exists())


class Archives(unittest.TestCase):
    def test_the_same_tree_gives_the_same_bytes(self):
        small = folder / "small"
        (small / "bin").mkdir(parents=True)
        (small / "share").mkdir()
        (small / "bin/pipetrain").write_text("#!/bin/sh\n")
        (small / "bin/pipetrain").chmod(0o755)
        (small / "share/text").write_text("text")
        made = []
        for seconds in (1, 2):
            for path in small.rglob("*"):
                os.utime(path, (seconds * 10**9, seconds * 10**9))
            out = folder / f"made{seconds}"
            out.mkdir()
            bundle.write_tar(small, out / "small.tar.xz")
            bundle.write_wheel(small, out, VERSION)
            made.append({path.name: path.read_bytes() for path in out.iterdir()})
        self.assertEqual(len(made[0]), 2)
        self.assertEqual(made[0], made[1])

    def test_the_wheel_installs_the_program(self):
        wheel = folder / f"pipetrain-{VERSION}-py3-none-manylinux_2_36_x86_64.whl"
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
            record = archive.read(f"pipetrain-{VERSION}.dist-info/RECORD").decode()
        self.assertEqual({row[0] for row in csv.reader(io.StringIO(record))}, names)
        self.assertIn(f"pipetrain-{VERSION}.data/scripts/pipetrain", names)
        environment = folder / "environment"
        if run(sys.executable, "-m", "venv", environment).returncode != 0:
            self.skipTest("this Python makes no virtual environments (Debian: python3-venv)")
        done = run(environment / "bin/pip", "install", "--no-index", "--disable-pip-version-check", wheel)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = run(environment / "bin/pipetrain", "doctor", cwd=folder, env={})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"pipetrain {VERSION}", done.stdout)
        self.assertTrue((environment / "share/pipetrain/topologies/laptop.json").exists())


class InRoot(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not shutil.which("unshare") or in_root("/bin/sh", "-c", ":").returncode != 0:
            raise unittest.SkipTest("no root of its own: unshare is not allowed here")

    def succeed(self, *command, **environment):
        done = in_root("/opt/pipetrain/bin/pipetrain", *command, **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_digits_are_learnt(self):
        models = "/opt/pipetrain/share/pipetrain/models"
        self.succeed("--model", f"{models}/digits-cnn.onnx", "--data", f"{models}/digits.csv.gz", "--epochs", "10", "--lr", "2e-3", "--gpus", "2",
                     "--device", "cpu", "--seed", "1", "-q", "-o", "digits.onnx")
        self.succeed("eval", "digits.onnx", "--data", f"{models}/digits.csv.gz", "--assert", "accuracy>=0.97")

    def libraries(self, **environment):
        out = self.succeed("doctor", "--json", PIPETRAIN_BACKEND_PATH="/plugin", **environment)
        return {library["name"]: library for library in json.loads(out)["cuda_libraries"]}

    def place(self, source, target):
        """Puts a library into the root, for this test alone."""
        path = root / target.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, path)
        self.addCleanup(path.unlink)

    def place_wheels(self, packages):
        for library in LIBRARIES.values():
            package = {"libcudnn": "cudnn", "libnccl": "nccl"}.get(library.name.split(".")[0], "cu13")
            self.place(library, f"{packages}/nvidia/{package}/lib/{library.name}")

    def place_python(self, folder, packages):
        path = root / folder.lstrip("/") / "python3"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n: > /tmp/started\necho {packages}\n")
        path.chmod(0o755)
        self.addCleanup(path.unlink)
        self.addCleanup((root / "tmp/started").unlink, missing_ok=True)

    def setUp(self):
        self.place(FAKES / "plugin/libpipetrain_cuda.so", "/plugin/libpipetrain_cuda.so")

    def test_what_is_not_there_is_named(self):
        for library in self.libraries().values():
            self.assertEqual((library["path"], library["version"]), ("", ""))
            self.assertIn("PIPETRAIN_CUDA_LIBRARIES", library["absent"])

    def test_wheels_of_a_python(self):
        self.place_wheels("/site")
        self.place_python("/python/bin", "/site")
        versions = {"CUDA runtime": "13.0", "cuBLASLt": "13.0.2", "cuDNN": "9.12.0", "NVRTC": "13.0", "NCCL": "2.27.7"}
        for variables in ({"PATH": "/nowhere:/python/bin:/bin"}, {"VIRTUAL_ENV": "/python"}):
            found = self.libraries(**variables)
            self.assertEqual({name: library["version"] for name, library in found.items()}, versions)
            for library in found.values():
                self.assertTrue(library["path"].startswith("/site/nvidia/"), library)
                self.assertEqual(library["from"], "the wheels of /python/bin/python3")

    def test_the_plugin_gets_them(self):
        library = LIBRARIES["libcudart"]
        train = ("/opt/pipetrain/bin/pipetrain", "train", "--model", "/opt/pipetrain/share/pipetrain/models/digits-cnn.onnx", "--device", "cuda")
        variables = {"PIPETRAIN_BACKEND_PATH": "/plugin", "VIRTUAL_ENV": "/python"}
        done = in_root(*train, **variables)
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn("no driver for NVIDIA GPUs was found", done.stderr)
        # Any library will do as a driver's that the plugin is not linked with.
        self.place(LIBRARIES["libnccl"], "/lib/libcuda.so.1")
        done = in_root(*train, **variables)
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn(f"libpipetrain_cuda.so cannot be loaded: cannot find {library.name}: not known to the system loader", done.stderr)
        self.place_wheels("/site")
        self.place_python("/python/bin", "/site")
        done = in_root(*train, **variables)
        self.assertIn("belongs to another build", done.stderr)

    def test_the_order_of_places(self):
        self.place_wheels("/site")
        self.place_python("/python/bin", "/site")
        name = LIBRARIES["libcudnn"].name
        for place, origin, variables in [
                ("/usr/local/cuda/lib64", "the CUDA toolkit in /usr/local/cuda", {}),
                ("/cuda/lib", "the CUDA toolkit in /cuda", {"CUDA_HOME": "/cuda"}),
                ("/loader", "the system loader", {"LD_LIBRARY_PATH": "/loader"}),
                ("/mine", "PIPETRAIN_CUDA_LIBRARIES", {"PIPETRAIN_CUDA_LIBRARIES": "/mine", "LD_LIBRARY_PATH": "/loader"})]:
            self.place(LIBRARIES["libcudnn"], f"{place}/{name}")
            found = self.libraries(VIRTUAL_ENV="/python", **variables)
            self.assertEqual((found["cuDNN"]["path"], found["cuDNN"]["from"]), (f"{place}/{name}", origin))
            self.assertEqual(found["NCCL"]["from"], "the wheels of /python/bin/python3")
        done = in_root("/opt/pipetrain/bin/pipetrain", "doctor", PIPETRAIN_BACKEND_PATH="/plugin", PIPETRAIN_CUDA_LIBRARIES="/nowhere")
        self.assertEqual(done.returncode, 2)
        self.assertIn("PIPETRAIN_CUDA_LIBRARIES: there is no folder /nowhere", done.stderr)

    def test_one_that_cannot_be_loaded(self):
        name = LIBRARIES["libcudnn"].name
        (folder / "broken").write_text("no library")
        self.place(folder / "broken", f"/usr/local/cuda/lib64/{name}")
        self.assertIn(f"/usr/local/cuda/lib64/{name}: ", self.libraries()["cuDNN"]["absent"])
        self.assertIn("cuDNN: none: ", self.succeed("doctor", PIPETRAIN_BACKEND_PATH="/plugin"))

    def test_the_current_folder_plants_nothing(self):
        self.place_wheels("/work")
        for library in LIBRARIES.values():
            self.place(library, f"/work/{library.name}")
            self.place(library, f"/work/lib64/{library.name}")
        self.place_python("/work", "nvidia")
        self.place_python("/work/bin", "/work")
        found = self.libraries(PATH=".::bin:/bin", VIRTUAL_ENV=".", PYTHONPATH=".", CUDA_HOME=".", CUDA_PATH="")
        self.assertEqual({library["path"] for library in found.values()}, {""})
        self.assertFalse((root / "tmp/started").exists())

    def test_no_python_is_started_where_no_gpu_is_asked_for(self):
        self.place_python("/python/bin", "/site")
        model = "/opt/pipetrain/share/pipetrain/models/digits-cnn.onnx"
        for command in (["--help"], ["plan", "--model", model, "--gpus", "2"],
                        ["train", "--model", model, "--device", "cpu", "--max-steps", "1", "--batch-size", "8", "-q"]):
            self.succeed(*command, PIPETRAIN_BACKEND_PATH="/plugin", VIRTUAL_ENV="/python", PATH="/python/bin")
            self.assertFalse((root / "tmp/started").exists(), command)
        self.libraries(VIRTUAL_ENV="/python")
        self.assertTrue((root / "tmp/started").exists())


if __name__ == "__main__":
    unittest.main()
