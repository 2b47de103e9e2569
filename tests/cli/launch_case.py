"""What tests of `pipetrain launch` share."""

import json
import pathlib
import shutil
import signal

from program import DATA, MODEL, PROGRAM, SECONDS, Case, is_alive, steps_of

PLUGIN = pathlib.Path(PROGRAM).parent / "libpipetrain_mpi.so"
TRAIN = ["train", "-m", MODEL, "--data", DATA, "--limit", "320", "--batch-size", "32", "--device", "cpu", "--threads", "1", "--no-pin", "--stages", "2"]
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def children_of(process):
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


class LaunchCase(Case):
    def setUp(self):
        if not shutil.which("mpirun") or not PLUGIN.exists():
            self.skipTest("needs mpirun (Debian: openmpi-bin) and libpipetrain_mpi.so (libopenmpi-dev)")
        super().setUp()
        self.hosts = self.write("hosts", "localhost slots=2\n")

    def launch(self, *arguments, options=(), environment=None, before=None):
        self.process = self.start("launch", "--hosts", self.hosts, *options, "--", *TRAIN, *arguments, "--run-dir", "run",
                                  environment=MPI | (environment or {}), before=before)
        self.addCleanup(self.end)
        return self.process

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=SECONDS)
        if (self.folder / "run/launch.json").exists():  # what a killed launch has left in memory
            shutil.rmtree(self.memory(), ignore_errors=True)

    def memory(self):
        """Where the processes of the run keep their state for each other."""
        record = json.loads((self.folder / "run/launch.json").read_text())
        return pathlib.Path(f"/dev/shm/pipetrain-{record.get('commits')}")

    def steps(self):
        return steps_of(self.folder / "run")

    def wait_for_steps(self, count):
        self.wait_for(lambda: len(self.steps()) >= count or self.process.poll() is not None)

    def launcher(self):
        """mpirun; None: it is not there now."""
        return next(iter(children_of(self.process.pid)), None)

    def ranks(self):
        """The training processes in the order of their numbers."""
        found = {}
        for child in children_of(self.launcher() or 0):
            try:
                environment = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            found |= {int(one.split(b"=")[1]): child for one in environment if one.startswith(b"OMPI_COMM_WORLD_RANK=")}
        return [found[rank] for rank in sorted(found)]

    def finish(self, code):
        _, err = self.process.communicate(timeout=SECONDS)
        err = err.decode()
        self.assertEqual(self.process.returncode, code, err)
        record = json.loads((self.folder / "run/launch.json").read_text())
        self.assertEqual((record["state"], record["exit_code"]), ("ended", code))
        return err

    def newest_checkpoint(self):
        """Its step."""
        return max(int(path.name.removeprefix("step-")) for path in (self.folder / "run/checkpoints").glob("step-*"))

    def repeated(self):
        """Steps that were computed more than once."""
        steps = self.steps()
        return len(steps) - len(set(steps))

    def kill_launch(self):
        """In the middle of training; returns where its commits are."""
        self.wait_for_steps(20)
        left = [self.launcher(), *self.ranks()]
        self.process.kill()
        self.wait_for(lambda: not any(is_alive(process) for process in left))
        self.process.communicate()
        memory = self.memory()
        self.addCleanup(shutil.rmtree, memory, ignore_errors=True)
        self.assertTrue(memory.exists())
        return memory
