"""Paths of programs and files: in a repository with its build folder, or in a bundle."""

import dataclasses
import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
# A repository's root, or share/pipetrain of a bundle: both have scripts/, bench/, models/ and schedules/.
ROOT = HERE.parents[1]
PROGRAMS = ("pipetrain", "ops_tests", "optim_tests", "nccl_processes")
FILES = ("models/digits-cnn.onnx", "models/digits.csv.gz", "schedules/chimera-4x4.schedule", "schedules/dualpipev-4x8.schedule",
         "bench/gpu.py", "bench/models.py", "bench/peer_pytorch_gpu.py", "bench/pipetrain_run.py", "bench/prepare.py",
         "bench/side_by_side.py", "bench/zoo_networks.py", "scripts/gpu_check/digits.json", "scripts/gpu_check/kernels.json")


@dataclasses.dataclass(frozen=True)
class Places:
    programs: Path

    def program(self, name):
        return self.programs / name

    def file(self, name):
        return ROOT / name

    def missing(self):
        wanted = [self.program(name) for name in PROGRAMS] + [self.file(name) for name in FILES]
        return [str(path) for path in wanted if not path.is_file()]


def find(build=None):
    """`build` names another build folder."""
    if build:
        return Places(Path(build).resolve())
    bundle = ROOT.parents[1] / "bin"
    in_bundle = ROOT.parent.name == "share" and (bundle / "pipetrain").is_file()
    return Places(bundle if in_bundle else ROOT / "build")


def read(name):
    """A JSON file in the directory of these scripts."""
    return json.loads((HERE / name).read_text())
