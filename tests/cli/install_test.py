"""What `cmake --install` puts into a folder works from there."""

import pathlib
import subprocess
import unittest

from program import DATA, MODEL, PROGRAM, SECONDS, Case, environment_of_user


class Install(Case):
    def test_the_program_and_what_goes_with_it(self):
        build = pathlib.Path(PROGRAM).parent
        subprocess.run(["cmake", "--install", build, "--prefix", self.folder, "--component", "program"], check=True,
                       capture_output=True, timeout=SECONDS)
        share = self.folder / "share"
        for name in ["man/man1/pipetrain.1", "bash-completion/completions/pipetrain", "zsh/vendor-completions/_pipetrain",
                     "fish/vendor_completions.d/pipetrain.fish", "doc/pipetrain/README.md", "doc/pipetrain/copyright", "doc/pipetrain/changelog.gz", "doc/pipetrain/docs/cli.md",
                     "pipetrain/topologies/dgx-h100x8.json", "pipetrain/schedules/chimera-4x4.schedule",
                     "pipetrain/models/digits-cnn.onnx"]:
            self.assertGreater((share / name).stat().st_size, 0, name)
        # A name that only this folder has: the sources are not what is found.
        (share / "pipetrain/topologies/laptop.json").rename(share / "pipetrain/topologies/here-only.json")
        program = self.folder / "bin/pipetrain"
        for arguments in (["plan", MODEL, "--topology", "here-only"],
                          ["train", "-m", MODEL, "--data", DATA, "--device", "cpu", "--max-steps", "1", "--run-dir", "run"]):
            done = subprocess.run([program, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=SECONDS,
                                  env=environment_of_user() | {"PIPETRAIN_CACHE_DIR": self.cache})
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
