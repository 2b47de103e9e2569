"""What tests of training in several processes, started by mpirun, share."""

import json
import pathlib
import shutil
import struct
import subprocess
import time

from program import DATA, MODEL, PROGRAM, SECONDS, Case, environment_of_user, parse

MPIRUN = shutil.which("mpirun")
PLUGIN = pathlib.Path(PROGRAM).parent / "libpipetrain_mpi.so"
RUN = ["train", "--device", "cpu", "--threads", "1", "--no-pin", "--log-every", "1"]
DIGITS = [*RUN, "-m", MODEL, "--data", DATA, "--limit", "320", "--batch-size", "32", "--stages", "4"]
# Asynchronous runs depend on their cuts.
STREAM = [*RUN, "-m", MODEL, "--data", DATA, "--limit", "320", "--batch-size", "32", "--stages", "4",
          "--split", "wide.conv,block.conv1,last.conv"]


def tensors(checkpoint, kind):
    """All tensors of a kind ("weights", "optimizer"), in however many files: type, shape, bytes."""
    found = {}
    for path in sorted(checkpoint.glob(f"{kind}*.safetensors")):
        content = path.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8:8 + length])
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            found[name] = (entry["dtype"], entry["shape"], content[8 + length + begin:8 + length + end])
    return found


class ProcessCase(Case):
    def setUp(self):
        if not MPIRUN or not PLUGIN.exists():
            self.skipTest("needs mpirun (Debian: openmpi-bin) and libpipetrain_mpi.so (libopenmpi-dev)")
        super().setUp()

    def start_in(self, count, *arguments, environment=None):
        """mpirun with so many processes; its own session, so that nothing is left of it afterwards."""
        clean = environment_of_user() | {"PIPETRAIN_CACHE_DIR": self.cache, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        process = subprocess.Popen([MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", str(count), PROGRAM, *arguments],
                                   cwd=self.folder, env=clean | (environment or {}), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def run_in(self, count, *arguments, **options):
        """Returns exit code, stdout and stderr."""
        process = self.start_in(count, *arguments, **options)
        out, err = process.communicate(timeout=SECONDS)
        return process.returncode, out.decode(), err.decode()

    def train_in(self, count, *arguments, **options):
        code, _, err = self.run_in(count, *arguments, **options)
        self.assertEqual(code, 0, err)
        return err

    def content(self, run):
        return (self.folder / run / "trained.onnx").read_bytes()

    def ranks(self, process):
        """Identifiers of the processes that mpirun has started, in the order of their ranks."""
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        found = {}
        for child in children:
            try:
                environment = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            for one in environment:
                if one.startswith(b"OMPI_COMM_WORLD_RANK="):
                    found[int(one.split(b"=")[1])] = int(child)
        return [found[rank] for rank in sorted(found)]

    def wait_for_file(self, path, process):
        end = time.monotonic() + SECONDS
        while not (self.folder / path).exists():
            self.assertIsNone(process.poll(), "it has ended")
            self.assertLess(time.monotonic(), end, "it does not get on")
            time.sleep(0.01)

    def wait_for_step(self, run, process):
        self.wait_for_file(f"{run}/events.jsonl", process)
        end = time.monotonic() + SECONDS
        while '"step"' not in (self.folder / run / "events.jsonl").read_text():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def losses(self, run, kind="step"):
        events = [parse(line) for line in (self.folder / run / "events.jsonl").read_text().splitlines()]
        return [event["loss"] for event in events if event["event"] == kind]
