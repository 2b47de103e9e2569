"""Checkpoints, plans, profiles and configurations that version 0.1.0 wrote load, and training resumed from them ends with the bits that that version reached
(earlier_version/make.py; on the reference device, whose bits do not depend on the CPU's vectors)."""

import json
import pathlib
import shutil
import unittest

from program import Case, fields, parse

FILES = pathlib.Path(__file__).parent / "earlier_version/0.1.0"
INPUTS = ["--model", "model.onnx", "--data", "data.csv"]
RUNS = {"synchronous": ["--schedule", "1f1b", "--micro-batches", "4"], "asynchronous": ["--schedule", "pipedream"]}


class EarlierVersion(Case):
    def setUp(self):
        super().setUp()
        shutil.copytree(FILES, self.folder, dirs_exist_ok=True)

    def expect_model(self, written, run):
        # That version did not say how a model was trained, on which columns and at which scale.
        later = (b"pipetrain.loss", b"pipetrain.columns", b"pipetrain.normalize")
        model = b"".join(whole for number, whole, content in fields((self.folder / written).read_bytes())
                         if not (number == 14 and any(key in content for key in later)))
        self.assertEqual(model, (self.folder / f"{run}.onnx").read_bytes(), f"{written} is not {run}.onnx")

    def test_a_resumed_run_ends_with_the_same_bits(self):
        for run in RUNS:
            with self.subTest(run):
                self.succeed("train", f"--resume={run}", *INPUTS, "--max-steps", "6", "-o", f"resumed-{run}.onnx", "-q")
                self.expect_model(f"resumed-{run}.onnx", run)

    def test_what_it_did_not_record_is_no_change(self):
        for run in RUNS:
            _, err = self.succeed("train", f"--resume={run}", *INPUTS, "--max-steps", "4")
            self.assertIn("note     steps 3 → 4", err)
            self.assertNotIn("none →", err)

    def test_its_configuration_gives_the_same_run(self):
        self.succeed("train", "--config", "synchronous/config.toml", *INPUTS, "--max-steps", "6", "--run-dir", "again", "-o", "again.onnx")
        self.expect_model("again.onnx", "synchronous")

    def test_its_plan_and_profile_are_followed(self):
        for run, schedule in RUNS.items():
            with self.subTest(run):
                cuts = [stage["first_index"] for stage in json.loads((self.folder / run / "plan.json").read_text())["stages"]]
                self.succeed("plan", "-m", "model.onnx", "--device", "reference", "--gpus", "2", "--batch-size", "8", *schedule,
                             "--profile", f"{run}/profile.json", "-o", "planned.json")
                planned = parse((self.folder / "planned.json").read_text())
                self.assertEqual([stage["first_index"] for stage in planned["stages"]], cuts)
                self.succeed("train", *INPUTS, "--device", "reference", "--batch-size", "8", "--plan", f"{run}/plan.json", "--max-steps", "1",
                             "--run-dir", f"planned-{run}", "-q")
                followed = parse((self.folder / f"planned-{run}/plan.json").read_text())
                self.assertEqual([stage["first_index"] for stage in followed["stages"]], cuts)


if __name__ == "__main__":
    unittest.main()
