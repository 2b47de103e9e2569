"""What is on the disk when the machine stops: the order in which a run writes its files, syncs them and gives them their names."""

import os
import pathlib
import shutil
import subprocess
import unittest

from program import DATA, MODEL, PROGRAM, SECONDS, Case, environment_of_user

MPIRUN = shutil.which("mpirun")

RECORDER = os.environ["FILE_RECORDER"]
SMALL = ["train", "-m", MODEL, "--data", DATA, "--limit", "128", "--batch-size", "32", "--device", "cpu", "--threads", "1", "-q"]


class Disk:
    """What of the files of a run is on the disk: what was written after the last sync of a file may be lost, and so may a name that
    was given after the last sync of its folder. Each name relies on what is behind it and on the names that were given before it in
    the same folder; what goes, on what came in its place."""

    def __init__(self):
        self.unsynced = set()  # files, and folders in which a name was given
        self.named = []  # files and folders, each time they got a name

    def replay(self, lines):
        for line in lines:
            what, *paths = line.split("\t")
            getattr(self, what)(*map(pathlib.Path, paths))

    def under(self, path):
        return {one for one in self.unsynced if one == path or path in one.parents}

    def write(self, path):
        self.unsynced.add(path)

    def sync(self, path):
        self.unsynced.discard(path)

    def remove(self, path):
        self.unsynced -= self.under(path)

    def rename(self, source, target):
        assert not self.under(source), f"{source} becomes {target} before {self.under(source)} are on the disk"
        assert target.parent not in self.unsynced, f"{source} becomes {target} before the names in {target.parent} are on the disk"
        if target.name.startswith("."):
            return  # a folder that goes: nothing relies on it
        self.unsynced.add(target.parent)
        self.named.append(target)


class DiskOfProcesses(Disk):
    """Several processes write into the folder that becomes a checkpoint: only the manifest relies on the names of the others."""

    def rename(self, source, target):
        if not target.name.startswith(("weights-", "optimizer-")):
            return super().rename(source, target)
        assert not self.under(source), f"{source} becomes {target} before it is on the disk"
        self.unsynced.add(target.parent)
        self.named.append(target)


class Durability(Case):
    def record(self, *arguments):
        record = self.folder / "record.txt"
        record.unlink(missing_ok=True)
        self.succeed(*arguments, environment={"LD_PRELOAD": self.preloaded(RECORDER), "FILE_RECORD": str(record)})
        disk = Disk()
        disk.replay(record.read_text().splitlines())
        self.assertGreater(len(disk.named), 0)
        # Logs are no results: they are written as the run goes, under their own names.
        logs = {one for one in disk.unsynced if one.suffix in (".jsonl", ".log", ".txt")}
        self.assertEqual(disk.unsynced - logs, set(), "what is still not on the disk in the end")
        return disk

    def names(self, disk, folder):
        folder = (self.folder / folder).resolve()
        return [path.name for path in disk.named if path.parent == folder]

    def test_a_checkpoint_is_whole_before_it_has_a_name_and_latest_names_it_afterwards(self):
        for schedule in ("1f1b", "pipedream"):
            with self.subTest(schedule):
                run = ["--save-every", "1", "--keep", "2", "--gpus", "2", "--schedule", schedule, "--run-dir", schedule]
                disk = self.record(*SMALL, "--max-steps", "4", *run)
                steps = [f"step-{step:06}" for step in range(1, 5)]
                self.assertEqual(self.names(disk, f"{schedule}/checkpoints"), [name for step in steps for name in (step, "latest")])
                # Inside the folder that becomes a checkpoint the manifest, which names the other files, is the last.
                for step in steps:
                    inside = [path.name for path in disk.named if path.parent.name.startswith(f".{step}.")]
                    self.assertIn("weights.safetensors", inside)
                    self.assertEqual(inside.index("manifest.json"), len(inside) - 1)

    def test_parts_of_processes_are_on_the_disk_before_the_manifest_names_them(self):
        if not MPIRUN or not (pathlib.Path(PROGRAM).parent / "libpipetrain_mpi.so").exists():
            self.skipTest("needs mpirun (Debian: openmpi-bin) and libpipetrain_mpi.so (libopenmpi-dev)")
        record = self.folder / "record.txt"
        run = [*SMALL, "--gpus", "4", "--max-steps", "6", "--save-every", "2", "--keep", "2", "--run-dir", "run"]
        done = subprocess.run([MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", "2", "-x", f"LD_PRELOAD={self.preloaded(RECORDER)}", "-x", f"FILE_RECORD={record}",
                               PROGRAM, *run], cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS,
                              env=environment_of_user() | {"PIPETRAIN_CACHE_DIR": self.cache, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        checkpoints = str((self.folder / "run" / "checkpoints").resolve())
        disk = DiskOfProcesses()
        disk.replay(line for line in record.read_text().splitlines() if line.split("\t")[1].startswith(checkpoints))
        steps = [f"step-{step:06}" for step in (2, 4, 6)]
        self.assertEqual(self.names(disk, "run/checkpoints"), [name for step in steps for name in (step, "latest")])
        for step in steps:
            inside = [path.name for path in disk.named if path.parent.name.startswith(f".{step}.")]
            self.assertEqual(sorted(inside[:-1]), ["optimizer-0.safetensors", "optimizer-1.safetensors", "weights-0.safetensors", "weights-1.safetensors"])
            self.assertEqual(inside[-1], "manifest.json")

    def test_the_best_is_named_after_it_is_there(self):
        disk = self.record(*SMALL, "--epochs", "2", "--val-split", "0.25", "--save-every", "1ep", "--run-dir", "run")
        names = self.names(disk, "run/checkpoints")
        best = names.index("best")
        self.assertEqual(names[best - 1], "latest")
        self.assertTrue(names[best - 2].startswith("step-"))

    def test_models_are_whole_before_they_have_their_name(self):
        self.record(*SMALL, "--max-steps", "1", "--run-dir", "run", "-o", "trained.onnx")
        for arguments in (["export", "--from", "run", "-o", "out.onnx"], ["new", "mlp", "-o", "net.onnx"],
                          ["plan", MODEL, "--gpus", "2", "-o", "plan.json"], ["data", "make", "glyphs", "--samples", "9", "-o", "g.npz"]):
            with self.subTest(arguments[0]):
                self.assertEqual([path.name for path in self.record(*arguments).named][-1], arguments[-1])


if __name__ == "__main__":
    unittest.main()
