"""Runs the built pipetrain as a user would: what it writes where, and how it ends. Standard library only."""

import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import unittest

PROGRAM = os.environ["PIPETRAIN"]
MODELS = pathlib.Path(os.environ["PIPETRAIN_MODELS"])
MODEL = str(MODELS / "digits-cnn.onnx")
DATA = str(MODELS / "digits.csv.gz")
SECONDS = 300  # for one command, on a busy machine
# What users set for Open MPI itself (OMPI_MCA_…, PMIX_MCA_…, OMPI_ALLOW_RUN_AS_ROOT) stays.
NOT_OF_USER = re.compile("(PIPETRAIN|SLURM|SRUN|PMI|OMPI_COMM_WORLD|DMLC)_|PMIX_(?!MCA_)|(TF_CONFIG|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE)$")
EXIT = {"usage": 2, "model": 3, "data": 4, "resource": 5, "diverged": 6, "assertion": 8}


def environment_of_user():
    """The environment without pipetrain's own variables, but for PIPETRAIN_VECTORS: the whole suite can be run with narrower vectors. Without those
    that launchers and schedulers set, too: the tests may run in an allocation of nodes."""
    return {name: value for name, value in os.environ.items() if name == "PIPETRAIN_VECTORS" or not NOT_OF_USER.match(name)}


def digits():
    """The rows of the digits, as text."""
    with gzip.open(DATA, "rt") as file:
        return file.read().splitlines()


def fields(message):
    """The fields of a protobuf message: number, bytes of the whole field, and content of those that have a length."""
    def varint(at):
        value = shift = 0
        while True:
            value |= (message[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if message[at - 1] < 128:
                return value, at

    at = 0
    while at < len(message):
        begin = at
        key, at = varint(at)
        content = None
        if key & 7 == 0:
            _, at = varint(at)
        elif key & 7 == 2:
            length, at = varint(at)
            content = message[at:at + length]
            at += length
        else:
            at += 4 if key & 7 == 5 else 8
        yield key >> 3, message[begin:at], content


def field(number, content):
    def varint(value):
        return (bytes([value & 127 | 128]) + varint(value >> 7)) if value > 127 else bytes([value])

    return varint(number << 3 | 2) + varint(len(content)) + content


def move_data_out(model, to):
    """Writes the model at `model` to `to` with its tensors in a file beside it, as PyTorch's exporter does."""
    data = b""

    def outside(tensor):
        nonlocal data
        raw = next((content for number, _, content in fields(tensor) if number == 9), None)
        if raw is None:
            return tensor
        place = [("location", f"{to.name}.data"), ("offset", str(len(data))), ("length", str(len(raw)))]
        data += raw
        return (b"".join(whole for number, whole, _ in fields(tensor) if number != 9) +
                b"".join(field(13, field(1, key.encode()) + field(2, value.encode())) for key, value in place) + b"\x70\x01")

    def graph(message):
        return b"".join(field(5, outside(content)) if number == 5 else whole for number, whole, content in fields(message))

    message = pathlib.Path(model).read_bytes()
    to.write_bytes(b"".join(field(7, graph(content)) if number == 7 else whole for number, whole, content in fields(message)))
    pathlib.Path(f"{to}.data").write_bytes(data)


def refuse_constant(name):
    raise ValueError(f"{name} is not JSON")


def parse(text):
    """One JSON document; NaN and Infinity, which Python would take, are errors."""
    return json.loads(text, parse_constant=refuse_constant)


def events(text):
    return [parse(line) for line in text.splitlines()]


def is_alive(process):
    """Whether the process with this number runs; one that has ended and waits for its parent does not."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def steps_of(run_folder):
    """The steps in the journal of a run, in the order in which they were computed."""
    try:
        lines = (run_folder / "journal.txt").read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [int(line.split()[0]) for line in lines if line and line[0] != "#"]


class Case(unittest.TestCase):
    """A test with an empty folder to work in, and a cache of kernel times outside of it."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.cache = folder.name

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, *arguments, environment=None, before=None):
        """A running program. Of pipetrain's own variables it sees PIPETRAIN_VECTORS and those in `environment`. `before` runs in it first."""
        clean = environment_of_user()
        clean["PIPETRAIN_CACHE_DIR"] = self.cache
        return subprocess.Popen([PROGRAM, *arguments], cwd=self.folder, env=clean | (environment or {}),
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=before)

    def wait_for(self, what, seconds=SECONDS):
        """The first result of what() that is true."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found = what()
            if found:
                return found
            time.sleep(0.005)
        self.fail("nothing has happened")

    def run_program(self, *arguments, **options):
        """Returns exit code, stdout and stderr."""
        with self.start(*arguments, **options) as process:
            try:
                out, err = process.communicate(timeout=SECONDS)
            finally:
                process.kill()
        return process.returncode, out.decode(), err.decode()

    def succeed(self, *arguments, **options):
        """Runs what must end with 0; returns stdout and stderr."""
        code, out, err = self.run_program(*arguments, **options)
        self.assertEqual(code, 0, err)
        return out, err

    def refused(self, kind, *arguments, says=(), **options):
        """Runs what must end with the code of `kind` and say each of `says` on stderr; returns stderr."""
        code, _, err = self.run_program(*arguments, **options)
        self.assertEqual(code, EXIT[kind], err)
        self.assertIn("error: ", err)
        for part in [says] if isinstance(says, str) else says:
            self.assertIn(part, err)
        return err

    def preloaded(self, library):
        """A name of a library for LD_PRELOAD, which ends names at spaces."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        name = pathlib.Path(folder.name, pathlib.Path(library).name)
        name.symlink_to(library)
        return str(name)

    def german(self):
        """The environment of a user who writes numbers with commas. The locale is made here, as many systems lack it; where it cannot be
        made (Debian: locales), the environment only names it."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        made = pathlib.Path(folder.name, "de_DE.UTF-8")
        if shutil.which("localedef"):
            subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", made], capture_output=True, check=False)
        return {"LC_ALL": made.name} | ({"LOCPATH": folder.name} if made.exists() else {})

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)
        return str(path)
