"""The GPU under test, from `pipetrain doctor` and nvidia-smi."""

import dataclasses
import hashlib
import json
import shutil
import subprocess
from pathlib import Path

PLUGIN = "libpipetrain_cuda.so"


@dataclasses.dataclass
class Gpu:
    doctor: dict  # its output; empty if it failed
    absent: str  # why there is no GPU
    is_rehearsal: bool
    text: str
    build: str = ""  # of the program and of the plugin

    @property
    def word(self):
        """The verdict of a successful step: "passed" only on a real GPU."""
        return "rehearsed" if self.is_rehearsal else "passed"


def find(places, environment):
    try:
        done = subprocess.run([places.program("pipetrain"), "doctor", "--json"], env=environment, capture_output=True, text=True, timeout=60)
        doctor = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return Gpu({}, f"pipetrain doctor failed: {error}", False, "none")
    names = doctor["gpu_names"]
    build = f"{doctor.get('build', '')}, plugin {plugin_of(places, environment)}"
    if not names:
        return Gpu(doctor, doctor["gpus_absent"], False, "none", build)
    is_rehearsal = any("rehearsal" in name for name in names)
    text = "none: a rehearsal" if is_rehearsal else smi("name,driver_version,memory.total") or ", ".join(names)
    return Gpu(doctor, "", is_rehearsal, text, build)


def plugin_of(places, environment):
    """The beginning of the plugin's checksum: its kernels can change without the program."""
    folders = [places.programs, places.programs.parent / "lib" / "pipetrain"]
    if environment.get("PIPETRAIN_BACKEND_PATH"):
        folders = [Path(environment["PIPETRAIN_BACKEND_PATH"])]
    for folder in folders:
        if (folder / PLUGIN).is_file():
            return hashlib.sha256((folder / PLUGIN).read_bytes()).hexdigest()[:12]
    return "none"


def smi(query):
    """nvidia-smi's description of the first GPU; empty without it."""
    if not shutil.which("nvidia-smi"):
        return ""
    done = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else ""
