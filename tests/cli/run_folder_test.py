"""What a run leaves behind, and that it never replaces what another one left."""

import os
import pathlib
import subprocess
import unittest

from program import DATA, MODEL, SECONDS, Case, events, parse


class RunFolder(Case):
    def contents(self):
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))

    def test_a_run_keeps_what_was_decided_and_what_happened(self):
        _, err = self.succeed("train", "-m", MODEL, "--data", DATA, "--max-steps", "3", "--run-dir", "run")
        run = self.folder / "run"
        self.assertEqual(sorted(path.name for path in run.iterdir()),
                         ["checkpoints", "config.toml", "events.jsonl", "journal.txt", "plan.json", "profile.json", "stderr.log", "trained.onnx"])
        self.assertEqual(parse((run / "plan.json").read_text())["schema"], "pipetrain.plan/1")
        self.assertEqual(parse((run / "profile.json").read_text())["schema"], "pipetrain.profile/1")
        records = events((run / "events.jsonl").read_text())
        self.assertEqual(records[0]["schema"], "pipetrain.events/1")
        self.assertEqual(records[-1]["output"], "run/trained.onnx")
        self.assertIn("saved", (run / "stderr.log").read_text())
        self.assertIn("run/trained.onnx", err)
        self.assertNotEqual((run / "trained.onnx").read_bytes(), pathlib.Path(MODEL).read_bytes())

    def test_a_run_that_goes_on_can_write_its_events_to_a_pipe(self):
        run = ["train", "-m", MODEL, "--data", DATA, "--limit", "64", "--run-dir", "run", "-q"]
        self.succeed(*run, "--max-steps", "1")
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
        self.addCleanup(reader.kill)
        self.succeed(*run, "--max-steps", "2", "--resume", "--metrics", "pipe")
        out, _ = reader.communicate(timeout=SECONDS)
        self.assertEqual([event["step"] for event in events(out.decode()) if event["event"] == "step"], [2])

    def test_events_that_cannot_be_written_are_a_matter_of_resources(self):
        run = ["train", "-m", MODEL, "--data", DATA, "--limit", "64", "--run-dir", "run", "-q"]
        self.succeed(*run, "--max-steps", "1")
        (self.folder / "run/events.jsonl").unlink()
        (self.folder / "run/events.jsonl").mkdir()
        self.refused("resource", *run, "--max-steps", "2", "--resume", says="run/events.jsonl")

    def test_a_folder_may_be_named_with_a_slash(self):
        self.succeed("train", "-m", MODEL, "--device", "cpu", "--max-steps", "1", "--run-dir", "run/", "-q")
        self.assertEqual(events((self.folder / "run/events.jsonl").read_text())[0]["run"], "run")
        self.succeed("report", "run", "-o", "-")

    def test_two_runs_have_two_folders(self):
        for _ in range(2):
            self.succeed("train", "-m", MODEL, "--max-steps", "1")
        runs = [path for path in (self.folder / "runs").iterdir() if not path.is_symlink()]
        self.assertEqual(len(runs), 2)
        latest = (self.folder / "runs" / "latest").resolve()
        self.assertEqual(latest, max(runs, key=lambda path: (path / "trained.onnx").stat().st_mtime_ns).resolve())

    def test_a_run_that_fails_at_once_does_not_hide_the_one_to_resume(self):
        train = ["train", "-m", MODEL, "--device", "cpu", "--max-steps", "2", "-q"]
        self.succeed(*train, "--save-every", "1")
        runs = self.contents()
        self.refused("usage", *train, "--lr", "-1", says="--lr must not be negative, not -1")
        self.refused("usage", *train, "--lr", "nan", says="--lr")
        self.assertEqual(self.contents(), runs)
        self.refused("usage", *train, "--lr-schedule", "linear:min=1")  # seen once the number of steps is known
        _, err = self.succeed("train", "--resume", "--max-steps", "3")
        self.assertIn("step 2 of 3", err)

    def test_a_folder_in_use_is_kept_unless_told_otherwise(self):
        self.succeed("train", "-m", MODEL, "--max-steps", "1", "--run-dir", "run")
        before = (self.folder / "run" / "events.jsonl").read_bytes()
        self.refused("usage", "train", "-m", MODEL, "--max-steps", "2", "--run-dir", "run", says=['"run"', "--overwrite"])
        self.assertEqual((self.folder / "run" / "events.jsonl").read_bytes(), before)
        self.succeed("train", "-m", MODEL, "--max-steps", "2", "--run-dir", "run", "--overwrite")

    def test_a_run_that_goes_on_elsewhere_keeps_what_another_left_there(self):
        train = ["train", "-m", MODEL, "--data", DATA, "--limit", "64", "--device", "cpu", "--save-every", "1", "--keep", "all", "-q"]
        self.succeed(*train, "--max-steps", "2", "--run-dir", "a")
        self.succeed(*train, "--max-steps", "3", "--run-dir", "b")

        def files():
            return {str(path): path.read_bytes() for path in (self.folder / "b").rglob("*") if path.is_file()}

        before = files()
        for source in ("a", "a/checkpoints", "a/checkpoints/step-000001", "a/checkpoints/latest"):
            self.refused("usage", "--resume", source, "--run-dir", "b", "--max-steps", "4", "-q", says=['"b" is not empty', "--overwrite"])
            self.assertEqual(files(), before)
        self.refused("usage", "--resume=a", "--run-dir", "b", "--max-steps", "4", "--restarts", "1", "-q", says='"b" is not empty')
        self.assertEqual(files(), before)
        self.succeed("--resume=a", "--run-dir", "new", "--max-steps", "3", "-q")
        # The run's own folder is no other, however it is named.
        (self.folder / "link").symlink_to("b")
        steps = 3
        for source, folder in (("b", "b"), ("b/", "link"), ("link/checkpoints", "b"), ("b/checkpoints/latest", "b"),
                               ("b/checkpoints/step-000004", "b")):
            steps += 1
            self.succeed("--resume", source, "--run-dir", folder, "--max-steps", str(steps), "-q")
        self.assertEqual(events((self.folder / "b/events.jsonl").read_text())[-1]["steps"], steps)
        self.succeed("--resume=a", "--run-dir", "b", "--overwrite", "--max-steps", "3", "-q")

    def test_the_log_of_a_run_has_all_messages_and_the_error_at_its_end(self):
        train = ["train", "-m", MODEL, "--data", DATA, "--device", "cpu", "--limit", "64", "--max-steps", "2"]
        _, said = self.succeed(*train, "--run-dir", "good")
        err = self.refused("diverged", *train, "--lr", "1e30", "--optimizer", "sgd", "--run-dir", "bad")
        for text, name in ((said, "good"), (err, "bad")):
            log = (self.folder / name / "stderr.log").read_text()
            for line in text.splitlines():
                if not line.startswith("step "):  # progress
                    self.assertEqual(log.count(" " + line + "\n") or log.count("\n" + line + "\n"), 1, line + "\nis not in\n" + log)

    def test_overwriting_a_run_deletes_its_checkpoints(self):
        small = ["train", "-m", MODEL, "--device", "cpu", "--save-every", "3", "--run-dir", "run", "-q"]
        checkpoints = self.folder / "run" / "checkpoints"
        self.succeed(*small, "--max-steps", "9")
        self.refused("usage", *small, "--max-steps", "3", "--overwrite", "--resume=run", "--resume-weights-only",
                     says=["--overwrite would delete the checkpoint run/checkpoints/step-000009", "--run-dir"])
        before = sorted(checkpoints.iterdir())
        self.refused("usage", *small, "--max-steps", "3", "--overwrite", "--adapter", "adapter.safetensors", says="--lora")
        self.refused("usage", *small, "--max-steps", "3", "--restarts", "2", says='"run" is not empty')
        self.assertEqual(sorted(checkpoints.iterdir()), before)
        (checkpoints / "notes.txt").write_text("mine")
        self.succeed(*small, "--max-steps", "6", "--overwrite")
        self.assertEqual(sorted(path.name for path in checkpoints.iterdir()), ["latest", "notes.txt", "step-000003", "step-000006"])

    def test_options_that_do_not_suit_leave_an_earlier_run_as_it_is(self):
        train = ["train", "-m", MODEL, "--data", DATA, "--limit", "64", "--device", "cpu", "--max-steps", "9", "--save-every", "3", "--keep", "9",
                 "--run-dir", "run", "-q"]
        self.succeed(*train)

        def files():
            return {str(path): path.read_bytes() for path in (self.folder / "run").rglob("*") if path.is_file()}

        before = files()
        traced = ["--trace", "trace.json", "--trace-steps"]
        back = ["train", "--resume=run/checkpoints/step-000003", "--run-dir", "run", "-q"]
        for more, says in ((["--patience", "3"], "--patience needs validation"), (["--lr-schedule", "step"], "needs --lr-step"),
                           (["--min-lr", "1"], "--min-lr must be between"), ([*traced, "5:10"], 'not "5:10"'), ([*traced, "5-3"], "comes after")):
            for command in ([*train, "--overwrite"], back):
                for end in ([], ["--dry-run"]):
                    with self.subTest(more=more, command=command, end=end):
                        self.refused("usage", *command, *more, *end, says=says)
                        self.assertEqual(files(), before)
        self.refused("usage", *train, "--overwrite", "--gpus", "2", "--schedule", "pipedream", *traced, "5", says="traced as a whole")
        self.assertEqual(files(), before)

    def test_overwriting_a_run_deletes_what_would_pass_for_the_new_one(self):
        small = ["train", "-m", MODEL, "--data", DATA, "--device", "cpu", "--max-steps", "2", "--run-dir", "run", "-q", "--overwrite"]
        others = [self.folder / "run" / name for name in ("best.onnx", "best.onnx.data", "last.onnx", "last.onnx.data")]
        (self.folder / "run").mkdir()
        for other in others:
            other.write_text("mine")
        self.succeed(*small)  # in a folder that is no run
        self.assertTrue(all(other.exists() for other in others))
        (self.folder / "run/texts.txt").write_text("cased\n")
        self.succeed(*small)
        self.assertFalse(any(other.exists() for other in others))
        self.assertFalse((self.folder / "run/texts.txt").exists())

    def test_overwriting_a_run_keeps_the_model_that_is_trained_with_a_new_head(self):
        small = ["--data", DATA, "--device", "cpu", "--max-steps", "2", "--run-dir", "run", "-q"]
        self.succeed("train", "-m", MODEL, *small)
        best = (self.folder / "run/trained.onnx").rename(self.folder / "run/best.onnx")
        before = best.read_bytes()
        self.succeed("train", "-m", "run/best.onnx", "--num-classes", "12", *small, "--overwrite")
        self.assertEqual(best.read_bytes(), before)

    def test_a_new_head_that_is_not_trained_leaves_the_model_of_an_earlier_run(self):
        small = ["train", "-m", MODEL, "--num-classes", "12", "--limit", "64", "--device", "cpu", "--max-steps", "2", "--run-dir", "run", "-q"]
        train = [*small, "--data", DATA]
        self.succeed(*train)
        run = self.folder / "run"
        before, names = (run / "model.onnx").read_bytes(), sorted(path.name for path in run.iterdir())
        over = ["--overwrite", "--seed", "5"]
        self.succeed(*train, *over, "--dry-run")
        self.assertEqual((run / "model.onnx").read_bytes(), before)
        for kind, says, *command in [("usage", "leave out --dry-run", *train, *over, "--dry-run", "--lr", "find"),
                                     ("data", "nowhere.csv", *small, *over, "--data", "nowhere.csv"),
                                     ("usage", "keeps its last model", *train, *over, "--val-split", "0.25", "-o", "run/last.onnx")]:
            self.refused(kind, *command, says=says)
            self.assertEqual((run / "model.onnx").read_bytes(), before)
            self.assertEqual(sorted(path.name for path in run.iterdir()), names)
        self.succeed("--resume=run", "--max-steps", "3", "-q")
        self.succeed(*train, *over)
        self.assertNotEqual((run / "model.onnx").read_bytes(), before)
        self.assertEqual(sorted(path.name for path in run.iterdir()), names)

    def test_an_output_that_exists_is_kept_unless_told_otherwise(self):
        output = self.write("model.onnx", "precious")
        self.refused("usage", "train", "-m", MODEL, "--max-steps", "1", "-o", output, says=["model.onnx", "--overwrite"])
        self.assertEqual(pathlib.Path(output).read_text(), "precious")
        self.succeed("train", "-m", MODEL, "--max-steps", "0", "-o", output, "--overwrite")
        self.assertEqual(pathlib.Path(output).read_bytes(), pathlib.Path(MODEL).read_bytes())

    def test_an_output_folder_that_is_missing_is_named_before_training(self):
        self.refused("usage", "train", "-m", MODEL, "--max-steps", "1", "-o", "nowhere/model.onnx", says="nowhere")

    def test_an_output_that_is_a_folder_is_refused_before_anything_is_done(self):
        train = ["train", "-m", MODEL, "--data", DATA, "--limit", "64", "--device", "cpu", "--max-steps", "1", "-q"]
        self.succeed(*train, "--lora", "2", "--run-dir", "run")
        (self.folder / "there").mkdir()
        before = self.contents()
        for command in (train, ["export", "--from", "run"], ["data", "make", "spirals"], ["tune", MODEL, "--device", "cpu"]):
            for name in ("there", "there/"):
                for more in ([], ["--overwrite"]):
                    with self.subTest(command=command[0], name=name, more=more):
                        self.refused("usage", *command, "-o", name, *more, says=f'--output: "{name}" is a folder; name a file in it')
                        self.assertEqual(self.contents(), before)
        self.refused("usage", *train, "--lora", "2", "--adapter", "there", says='--adapter: "there" is a folder')
        self.refused("usage", "export", "--from", "run", "--adapter", "there", says='--adapter: "there" is a folder')

    def test_a_dry_run_writes_nothing(self):
        _, err = self.succeed("train", "-m", MODEL, "--data", DATA, "--device", "cpu", "--gpus", "4", "--dry-run")
        self.assertIn("4 stages", err)
        self.assertEqual(self.contents(), [])

    def test_commands_that_only_look_write_nothing(self):
        for command in ["inspect", "plan", "profile"]:
            self.succeed(command, MODEL)
        self.succeed("eval", MODEL, "--data", DATA)
        self.assertEqual(self.contents(), [])

    def test_the_folder_of_all_runs_can_be_chosen(self):
        self.succeed("train", "-m", MODEL, "--max-steps", "1", environment={"PIPETRAIN_RUNS_DIR": "elsewhere"})
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["elsewhere"])

    def test_a_diverged_run_writes_no_model(self):
        self.refused("diverged", "train", "-m", MODEL, "--data", DATA, "--optimizer", "sgd", "--lr", "1e30", "--run-dir", "run")
        self.assertFalse((self.folder / "run" / "trained.onnx").exists())
        self.assertEqual(events((self.folder / "run" / "events.jsonl").read_text())[-1]["exit_code"], 6)


    def test_what_a_run_says_was_predicted_is_what_its_plan_said(self):
        # Steps of more than 0.1 s begin with an estimate, which is replaced by times of the run.
        _, err = self.succeed("train", "-m", MODEL, "--device", "cpu", "--threads", "1", "--batch-size", "4096", "--micro-batches", "1",
                              "--max-steps", "3", "--run-dir", "run", "-v", environment={"PIPETRAIN_CACHE_DIR": "none"})
        self.assertIn("(until steps are measured)", err)
        planned, done = (next(line for line in err.splitlines() if line.startswith(word)) for word in ("predicted step", "done"))
        self.assertIn("(predicted " + planned.split(" · ")[0].removeprefix("predicted step ") + ")", done)
        self.assertNotIn("estimate", parse((self.folder / "run/profile.json").read_text()))


class Locale(Case):
    def test_numbers_do_not_depend_on_the_language(self):
        texts = {self.succeed("plan", MODEL, "--gpus", "2", "--json", environment={"LC_ALL": language})[0]
                 for language in ["C", "de_DE.UTF-8"]}
        self.assertEqual(len(texts), 1)


if __name__ == "__main__":
    unittest.main()
