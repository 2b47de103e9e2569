"""Options given on resume: which of the checkpoint's they put out of force, and that these stay out of force."""

import hashlib
import json
import os
import re
import shutil
import unittest

from program import DATA, MODEL, Case, digits

SMALL = ["train", "-m", MODEL, "--data", DATA, "--limit", "64", "--batch-size", "16", "--device", "cpu", "--threads", "1", "-q"]
SPLIT = ["--split", "block.conv1"]

# Of two options that decide the same thing: what is saved, what is given on resume.
RIVALS = [
    (["--max-steps", "2"], ["--epochs", "1"]),
    (["--epochs", "1"], ["--max-steps", "6"]),
    (["--micro-batches", "4"], ["--micro-batch-size", "8"]),
    (["--micro-batch-size", "8"], ["--micro-batches", "4"]),
    (["--gpus", "3"], ["--plan", "two.json"]),
    (["--gpus", "3"], ["--replicas", "2"]),
    (["--gpus", "3"], SPLIT),
    (["--plan", "two.json"], ["--gpus", "3"]),
    (["--plan", "two.json"], SPLIT),
    (["--plan", "two.json"], ["--replicas", "2"]),
    (["--plan", "two.json"], ["--schedule", "gpipe"]),
    (SPLIT, ["--gpus", "3"]),
    (SPLIT, ["--plan", "two.json"]),
    (SPLIT, ["--replicas", "2"]),
    (["--replicas", "2"], ["--gpus", "3"]),
    (["--replicas", "2"], ["--plan", "two.json"]),
    (["--replicas", "2"], SPLIT),
    (["--replicas", "2"], ["--schedule", "gpipe"]),
]


class StoppedEarly(Case):
    def test_it_is_over(self):
        def ends():
            lines = (self.folder / "run/events.jsonl").read_text().splitlines()
            return [(event["status"], event["steps"]) for event in map(json.loads, lines) if event["event"] == "run_end"]

        self.succeed(*SMALL, "--lr", "0", "--bn", "frozen", "--val-split", "0.25", "--epochs", "9", "--patience", "2", "--run-dir", "run")
        self.succeed("train", "--resume=run", "-q")
        self.assertEqual(ends(), [("early_stop", 9)] * 2)
        self.succeed("train", "--resume=run", "--patience", "4", "-q")
        self.assertEqual(ends()[-1], ("early_stop", 15))


    def test_validations_of_other_data_are_not_compared(self):
        def end():
            lines = (self.folder / "run/events.jsonl").read_text().splitlines()
            last = [event for event in map(json.loads, lines) if event["event"] == "run_end"][-1]
            return last["status"], last["steps"], last["best"]["step"]

        self.write("zeros.csv", "\n".join(row for row in digits()[:200] if row.endswith(",0")) + "\n")
        self.write("others.csv", "\n".join(digits()[64:128]) + "\n")
        # An epoch has four steps; no validation is better than the first one.
        self.succeed(*SMALL, "--lr", "0", "--bn", "frozen", "--val-data", "zeros.csv", "--epochs", "9", "--patience", "2", "--run-dir", "run")
        self.assertEqual(end(), ("early_stop", 12, 4))
        _, err = self.succeed("train", "--resume=run", "--val-data", "others.csv")
        self.assertRegex(err, r"note +validation \d+ samples, [0-9a-f]{8} → 64 samples, [0-9a-f]{8}")
        self.assertEqual(end(), ("early_stop", 24, 16))
        # The same data again are no other ones.
        self.succeed("train", "--resume=run", "-q")
        self.assertEqual(end(), ("early_stop", 24, 16))

    def test_validations_without_a_value_count(self):
        self.write("zeros.csv", "\n".join(row for row in digits()[:200] if row.endswith(",0")) + "\n")
        _, err = self.succeed(*SMALL[:-1], "--val-data", "zeros.csv", "--best-metric", "auc", "--patience", "2", "--epochs", "9", "--run-dir", "run")
        self.assertIn("early stopping: no finite auc in 2 validations", err)
        end = json.loads((self.folder / "run/events.jsonl").read_text().splitlines()[-1])
        self.assertEqual((end["status"], end["steps"]), ("early_stop", 8))
        # Also those before a resume, of the same metric.
        self.succeed("train", "--resume=run", "-q")
        self.succeed("train", "--resume=run", "--patience", "3", "-q")
        self.succeed("train", "--resume=run", "--best-metric", "loss", "--max-steps", "13", "-q")
        ends = map(json.loads, (self.folder / "run/events.jsonl").read_text().splitlines())
        self.assertEqual([(end["status"], end["steps"]) for end in ends if end["event"] == "run_end"],
                         [("early_stop", 8), ("early_stop", 8), ("early_stop", 12), ("ok", 13)])


class FinishedRun(Case):
    def test_it_writes_what_else_is_asked_for(self):
        run = [*SMALL[:-1], "--lora", "2", "--val-split", "0.25", "--max-steps", "4", "--run-dir", "run", "--resume=auto"]
        self.succeed(*run)
        for more in (["--adapter", "a.safetensors"], ["--save", "last"]):
            _, err = self.succeed("train", "--resume=run", *more)
            self.assertNotIn("nothing left to train", err)
        self.assertTrue((self.folder / "a.safetensors").exists())
        # Only once; a job queue repeats its command line.
        _, err = self.succeed(*run, "--adapter", "a.safetensors")
        self.assertIn("nothing left to train", err)


    def test_other_validation_data_choose_its_best_model_anew(self):
        for name, rows in (("some.csv", digits()[64:96]), ("others.csv", digits()[64:128])):
            self.write(name, "\n".join(rows) + "\n")
        self.succeed(*SMALL, "--val-data", "some.csv", "--max-steps", "4", "--run-dir", "run")
        self.succeed("train", "--resume=run", "--val-data", "others.csv", "-o", "out.onnx")
        written = [json.loads(line) for line in (self.folder / "run/events.jsonl").read_text().splitlines()]
        self.assertEqual([event["step"] for event in written if event["event"] == "val"][-1], 4)
        ends = [event for event in written if event["event"] == "run_end"]
        self.assertEqual(ends[1]["best"]["step"], 4)
        self.assertNotEqual(ends[1]["best"]["value"], ends[0]["best"]["value"])

    def test_its_output_may_have_a_name_of_any_bytes(self):
        model = os.fsdecode(b"m\xfcnchen.onnx")  # not UTF-8
        self.succeed(*SMALL, "--max-steps", "1", "--run-dir", "run", "-o", model)
        before = (self.folder / model).read_bytes()
        self.succeed("train", "--resume=run", "--max-steps", "2", "-q")
        self.assertEqual([path.name for path in self.folder.glob("*.onnx")], [model])
        self.assertNotEqual((self.folder / model).read_bytes(), before)

    def test_it_writes_the_model_again_that_another_has_replaced(self):
        self.succeed(*SMALL, "--lr", "0", "--bn", "frozen", "--val-split", "0.25", "--max-steps", "4", "--run-dir", "run")
        for more, says in ((["--save", "last"], "the last model, of step 4"), ([], "the best model, loss"), ([], "nothing left to train")):
            _, err = self.succeed("train", "--resume=run", *more)
            self.assertIn(says, err)


class OtherFolder(Case):
    def test_the_best_model_goes_along(self):
        run = ["train", "-m", MODEL, "--data", DATA, "--batch-size", "64", "--val-split", "0.2", "--val-every", "2", "--save-every", "2", "--keep", "9",
               "--device", "cpu", "--threads", "1", "--lr-schedule", "constant", "--bn", "frozen"]
        self.succeed(*run, "--max-steps", "6", "--run-dir", "a", "-q")
        steps = [json.loads(line) for line in (self.folder / "a/events.jsonl").read_text().splitlines()]
        best = [event for event in steps if event["event"] == "run_end"][0]["best"]["step"]
        for source, folder in (("a", "b"), ("a/checkpoints/step-000004", "c")):
            _, err = self.succeed(f"--resume={source}", "--run-dir", folder, "--max-steps", "8", "--lr", "0", "--save-every", "1")
            self.assertNotIn("is lost", err)
            if best == 6 and folder == "c":
                continue  # a model that the run in the other folder does not know
            kept = json.loads(self.succeed("eval", f"{folder}/trained.onnx", "--data", DATA, "--device", "cpu", "--json")[0])["loss"]
            self.assertEqual(kept, json.loads(self.succeed("eval", "a/trained.onnx", "--data", DATA, "--device", "cpu", "--json")[0])["loss"])


class Names(Case):
    def test_a_schedule_is_no_folder_of_its_name(self):
        (self.folder / "gpipe").mkdir()
        self.succeed(*SMALL, "--schedule", "gpipe", "--gpus", "2", "--max-steps", "2", "--run-dir", "run")
        manifest = json.loads(next(self.folder.glob("run/checkpoints/step-*/manifest.json")).read_text())
        self.assertIn("--schedule=gpipe", manifest["settings"])


class Configuration(Case):
    def test_it_says_how_the_run_began(self):
        def init(run):
            return re.findall(r"(?m)^init = .*$", (self.folder / run / "config.toml").read_text())

        self.succeed(*SMALL, "--init", "random", "--max-steps", "2", "--run-dir", "run")
        for steps in ("3", "4"):
            self.succeed("--resume=run", "--max-steps", steps, "-q")
            self.assertEqual(init("run"), ['init = "random"'])
        self.succeed("--resume=run", "--run-dir", "other", "--max-steps", "5", "-q")
        self.assertEqual(init("other"), ['init = "random"'])
        # Initialization is not repeated.
        self.succeed(*SMALL, "--max-steps", "2", "--run-dir", "kept")
        self.succeed("train", "--resume=kept", "--init", "random", "--max-steps", "3", "-q")
        self.assertEqual(init("kept"), [])


class ElsewhereStarted(Case):
    def test_data_that_a_pattern_names_are_found_from_another_folder(self):
        rows = digits()
        (self.folder / "data").mkdir()
        (self.folder / "other").mkdir()
        for part in range(2):
            self.write(f"data/part-{part}.csv", "\n".join(rows[64 * part:64 * (part + 1)]) + "\n")
        self.succeed("train", "-m", MODEL, "--data", "data/part-*.csv", "--data-sharding", "files", "--replicas", "2", "--batch-size", "32",
                     "--micro-batch-size", "8", "--device", "cpu", "--threads", "1", "--max-steps", "2", "--run-dir", "run", "-q")
        self.succeed("--resume=../run", "--max-steps", "3", "-q", before=lambda: os.chdir(self.folder / "other"))


class Parts(Case):
    def test_parts_of_what_is_chosen_automatically_are_kept(self):
        def newest():
            path = max(self.folder.glob("run/checkpoints/step-*/manifest.json"))
            manifest = json.loads(path.read_text())
            return manifest["settings"], manifest["numbers"]["stages"]

        self.succeed(*SMALL[:-3], "--threads", "1:pin=false", "-q", "--gpus", "2", "--schedule", "interleaved-1f1b:virtual-stages=3",
                     "--max-steps", "2", "--run-dir", "run")
        before = newest()
        self.assertEqual(before[1], "6")
        for part in ("--schedule=:virtual-stages=3", "--threads=:pin=false"):
            self.assertIn(part, before[0])
        self.succeed("--resume=run", "--max-steps", "3", "-q")
        settings, stages = newest()
        self.assertEqual(stages, "6")
        self.assertEqual({s for s in settings if "=:" in s}, {s for s in before[0] if "=:" in s})
        # Another schedule has no use for them, but it may have its own.
        self.succeed("--resume=run", "--max-steps", "4", "--schedule", "zb", "--memory-units", "3", "-q")
        settings, stages = newest()
        self.assertEqual(stages, "2")
        self.assertEqual([s for s in settings if s.startswith("--schedule")], ["--schedule=zb", "--schedule=:memory-units=3"])


    def test_parts_given_by_themselves_outlive_the_value(self):
        self.succeed(*SMALL, "--max-steps", "5", "--save-every", "1", "--keep", "all", "--val-split", "0.25", "--val-every", "never", "--save", "last",
                     "--on-bad-sample", "skip", "--replicas", "2", "--shard-optimizer", "--run-dir", "run")
        self.succeed("--resume=run", "--max-steps", "7", "--save-every", "2", "--best-metric", "accuracy", "--val-every", "1", "--on-error", "nan=stop",
                     "--replicas", "2,2", "-q")
        self.assertEqual(len(list(self.folder.glob("run/checkpoints/step-*"))), 7)
        settings = json.loads((self.folder / "run/checkpoints/step-000007/manifest.json").read_text())["settings"]
        for part in ("--save-every=:keep=all", "--best-metric=:save=last", "--on-error=:bad-sample=skip", "--replicas=:shard-optimizer=true"):
            self.assertIn(part, settings)
        # One that is given again takes its place.
        self.succeed("--resume=run", "--max-steps", "8", "--keep", "2", "-q")
        self.assertLess(len(list(self.folder.glob("run/checkpoints/step-*"))), 4)  # with the best one


class EarlierNames(Case):
    def test_what_an_earlier_version_saved_under_names_of_their_own(self):
        self.succeed(*SMALL, "--max-steps", "2", "--run-dir", "run", "--save-every", "2")
        path = self.folder / "run/checkpoints/step-000002/manifest.json"
        manifest = json.loads(path.read_text())
        del manifest["sha256"]
        manifest.pop("hmac_sha256", None)
        manifest["settings"] += ["--on-nan=skip", "--on-bad-sample=skip", "--keep=7", "--patience=0"]
        manifest["outputs"] = ["--on-checkpoint-error=fail"]
        text = json.dumps(manifest, indent=2)[:-2] + ',\n  "sha256": "'
        path.write_text(text + hashlib.sha256(text.encode()).hexdigest() + '"\n}\n')
        self.succeed("train", "--resume=run", "-m", MODEL, "--data", DATA, "--max-steps", "3", "-q")
        resumed = json.loads((self.folder / "run/checkpoints/step-000003/manifest.json").read_text())
        self.assertIn("--on-error=:nan=skip", resumed["settings"])
        self.assertIn("--on-error=:bad-sample=skip", resumed["settings"])
        self.assertIn("--save-every=:keep=7", resumed["settings"])


class NewHead(Case):
    def test_a_run_that_goes_on_keeps_its_classes(self):
        self.succeed(*SMALL, "--num-classes", "12", "--max-steps", "2", "--run-dir", "twelve")
        self.succeed(*SMALL, "--max-steps", "2", "--run-dir", "ten")
        for run, classes, other in (("twelve", "12", "11"), ("ten", "10", "12")):
            with self.subTest(run):
                self.refused("usage", f"--resume={run}", "--num-classes", other, "--max-steps", "3", "-q",
                             says=[f"--num-classes is {other}", f"{classes} classes", "--resume-weights-only"])
                # A job queue repeats what the run began with.
                self.succeed(f"--resume={run}", "--num-classes", classes, "--max-steps", "3", "-q")


class Dependent(Case):
    """Options that only apply with another one, which the checkpoint has."""

    def test_they_are_given_without_it(self):
        self.succeed(*SMALL, "--lr", "0.001", "--lr-schedule", "multistep:at=3,gamma=0.1", "--optimizer", "rmsprop", "--centered",
                     "--max-steps", "2", "--run-dir", "run")
        self.succeed("--resume=run", "--lr-milestones", "4,5", "--alpha", "0.9", "--centered", "--max-steps", "6", "-q")
        lines = map(json.loads, (self.folder / "run/events.jsonl").read_text().splitlines())
        rates = [event["lr"] for event in lines if event["event"] == "step"]
        self.assertEqual(len(rates), 6)
        for rate, expected in zip(rates, [1e-3, 1e-3, 1e-3, 1e-3, 1e-4, 1e-5]):
            self.assertAlmostEqual(rate, expected, places=9)

    def test_they_are_refused_with_another_one(self):
        new = [*SMALL, "--max-steps", "2", "--run-dir", "run"]
        cases = ((["--lr-milestones", "4"], "--lr-milestones applies to --lr-schedule multistep, not cosine"),
                 (["--alpha", "0.9"], "--alpha and --centered apply to --optimizer rmsprop, not adamw"),
                 (["--centered"], "--alpha and --centered apply to --optimizer rmsprop, not adamw"))
        for given, says in cases:  # where there is no checkpoint
            self.refused("usage", *new, "--resume=auto", *given, says=says)
        self.succeed(*new)
        for given, says in cases:
            self.refused("usage", "--resume=run", "--max-steps", "4", *given, says=says)
            self.refused("usage", *new, "--resume=run", "--resume-weights-only", "--overwrite", *given, says=says)


class Rivals(Case):
    def setUp(self):
        super().setUp()
        self.write("held-out.csv", "\n".join(digits()[64:96]) + "\n")
        self.succeed("plan", MODEL, "--gpus", "2", "-o", "two.json")

    def newest(self, run):
        """Of a run's newest checkpoint: its step, the settings that it keeps, the numbers that these led to."""
        folder = self.folder / run / "checkpoints"
        manifest = json.loads((folder / (folder / "latest").read_text().split()[0] / "manifest.json").read_text())
        return manifest["step"], dict(setting.split("=", 1) for setting in manifest["settings"]), manifest["numbers"]

    def saved_with(self, options):
        """A run of two steps (an epoch of four, where epochs are what is asked for)."""
        run = "saved" + "".join(options).replace(" ", "")
        if not (self.folder / run).exists():
            steps = [] if options[0] in ("--max-steps", "--epochs") else ["--max-steps", "2"]
            self.succeed(*SMALL, *options, *steps, "--run-dir", run, "--save-every", "1")
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        shutil.copytree(self.folder / run, self.folder / "run")

    def test_an_option_puts_its_rivals_out_of_force(self):
        for saved, given in RIVALS:
            with self.subTest(saved=saved, given=given):
                self.saved_with(saved)
                self.assertIn(saved[0], self.newest("run")[1])
                more = [] if given[0] in ("--max-steps", "--epochs") else ["--max-steps", "5"]
                self.succeed("--resume=run", *given, *more, "-q")
                step, settings, numbers = self.newest("run")
                self.assertNotIn(saved[0], settings)
                self.assertIn(given[0], settings)
                self.assertEqual(step, {"--epochs": 4, "--max-steps": 6}.get(given[0], 5))
                # It trains as with the same options from the beginning.
                self.succeed(*SMALL, *given, *more, "--run-dir", "fresh", "--overwrite")
                fresh = self.newest("fresh")[2]
                for name in ("steps", "stages", "replicas", "schedule", "micro-batch-size"):
                    self.assertEqual(numbers[name], fresh[name], name)

    def test_a_plan_brings_its_schedule_and_recomputation(self):
        self.succeed("plan", MODEL, "--gpus", "2", "--schedule", "zb-h1", "-o", "zb.json")
        for saved in (["--gpus", "2"], ["--schedule", "gpipe"], ["--plan", "two.json"], ["--recompute", "all"]):
            with self.subTest(saved=saved):
                self.saved_with(saved)
                self.succeed("--resume=run", "--plan", "zb.json", "--max-steps", "5", "-q")
                _, settings, numbers = self.newest("run")
                self.assertEqual((settings["--schedule"], numbers["schedule"]), ("zb-h1", "zb-h1"))
                self.assertNotIn("--recompute", settings)
        # A plan that says nothing of it leaves the schedule in force.
        plan = json.loads((self.folder / "two.json").read_text())
        self.write("any.json", json.dumps({name: value for name, value in plan.items() if name != "schedule"}))
        self.saved_with(["--schedule", "gpipe"])
        self.succeed("--resume=run", "--plan", "any.json", "--max-steps", "5", "-q")
        self.assertEqual(self.newest("run")[2]["schedule"], "gpipe")

    def test_validation_data_put_a_split_out_of_force(self):
        # What was held out is trained on, which is other data: 48 samples before, all 64 now.
        self.saved_with(["--val-split", "0.25"])
        self.refused("data", "--resume=run", "--val-data", "held-out.csv", says=["48 samples", "64 samples", "give the same --data, with the same --val-split, --limit, --seed and --normalize"])
        self.saved_with(["--val-data", "held-out.csv"])
        self.refused("data", "--resume=run", "--val-split", "0.25", says=["64 samples", "48 samples", "the same --val-split, --limit,"])
        self.saved_with(["--val-split", "0"])
        self.succeed("--resume=run", "--val-data", "held-out.csv", "--max-steps", "4", "-q")
        settings = self.newest("run")[1]
        self.assertNotIn("--val-split", settings)
        self.assertIn("--val-data", settings)
        # No part of them leaves other data for validation in force.
        self.saved_with(["--val-data", "held-out.csv"])
        _, err = self.succeed("--resume=run", "--val-split", "0", "--max-steps", "4")
        self.assertIn("32 validation samples", err)
        self.assertIn("--val-data", self.newest("run")[1])

    def test_what_has_no_rival_is_taken_over(self):
        self.saved_with(["--val-split", "0.25", "--micro-batches", "4"])
        self.succeed("--resume=run", "--lr", "0.01", "--max-steps", "4", "-q")
        settings = self.newest("run")[1]
        self.assertEqual([settings[name] for name in ("--val-split", "--micro-batches", "--lr")], ["0.25", "4", "0.01"])


if __name__ == "__main__":
    unittest.main()
