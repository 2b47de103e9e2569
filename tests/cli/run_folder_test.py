"""What a run leaves behind, and that it never replaces what another one left."""

import os
import pathlib
import subprocess
import unittest

import onnx_file
from program import DATA, MODEL, SECONDS, Case, events, parse


class RunFolder(Case):
    def contents(self):
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))

    def files(self, run="run"):
        return {str(path): path.read_bytes() for path in (self.folder / run).rglob("*") if path.is_file()}

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

    def test_a_run_in_the_current_folder_has_the_name_of_that(self):
        for name, place, given in (("here", "here", "."), ("there", ".", "there/.")):
            (self.folder / name).mkdir()
            self.succeed("train", "-m", MODEL, "--device", "cpu", "--max-steps", "1", "--run-dir", given, "--log-to", f"mlflow:{self.folder}/store-{name}",
                         "-q", before=lambda: os.chdir(self.folder / place))
            self.assertEqual(events((self.folder / name / "events.jsonl").read_text())[0]["run"], name)
            (run,) = (self.folder / f"store-{name}/0").glob("*/tags/mlflow.runName")
            self.assertEqual(run.read_text(), name)

    def test_a_run_in_the_current_folder_keeps_the_hidden_files_there(self):
        for folder in (".venv.old", ".cache.tmp"):
            (self.folder / folder).mkdir()
            self.write(f"{folder}/x", "mine")
        self.write(".notes.tmp", "mine")
        self.write(".events.jsonl.1-2.tmp", "half")  # of a run that was killed
        self.succeed("train", "-m", MODEL, "--device", "cpu", "--max-steps", "1", "--run-dir", ".", "--overwrite", "-q")
        for file in (".venv.old/x", ".cache.tmp/x", ".notes.tmp"):
            self.assertEqual((self.folder / file).read_text(), "mine")
        self.assertFalse((self.folder / ".events.jsonl.1-2.tmp").exists())

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

    def test_overwriting_leaves_no_checkpoints_behind_a_link(self):
        train = ["train", "-m", MODEL, "--device", "cpu", "--run-dir", "run", "--save-every", "1", "-q"]
        (self.folder / "scratch").mkdir()
        (self.folder / "run").mkdir()
        (self.folder / "run/checkpoints").symlink_to("../scratch")
        self.succeed(*train, "--max-steps", "2", "--overwrite")  # there are none yet
        self.refused("usage", *train, "--max-steps", "3", "--overwrite", says=['"run/checkpoints"', "symbolic link", "--run-dir"])
        self.succeed(*train, "--max-steps", "3", "--resume")

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
        # Of a run that is replaced nothing stays in the records.
        self.succeed("--resume=a", "--run-dir", "b", "--overwrite", "--max-steps", "3", "-q")
        written = events((self.folder / "b/events.jsonl").read_text())
        self.assertEqual([event["step"] for event in written if event["event"] == "step"], [3])
        self.assertEqual([line.split()[0] for line in (self.folder / "b/journal.txt").read_text().splitlines()], ["#", "3"])
        self.succeed("--resume=b", "--max-steps", "4", "-q")
        written = events((self.folder / "b/events.jsonl").read_text())
        self.assertEqual([event["step"] for event in written if event["event"] == "step"], [3, 4])

    def test_weights_alone_begin_no_run_beside_another(self):
        train = ["train", "-m", MODEL, "--data", DATA, "--limit", "64", "--device", "cpu", "--save-every", "1", "--max-steps", "2", "-q"]
        weights = [*train, "--resume-weights-only"]
        self.succeed(*weights, "--resume=auto", "--run-dir", "run")  # there is none yet
        before = self.files()
        for resume in ("auto", "latest", "run", "run/checkpoints/step-000002"):
            for more in ([], ["--restarts", "1"]):
                self.refused("usage", *weights, f"--resume={resume}", "--run-dir", "run", *more,
                             says=['begins a new run, but --run-dir "run" has an earlier one', f"another --run-dir, with --resume={resume if '/' in resume else 'run'} for"])
                self.assertEqual(self.files(), before)
        self.refused("usage", *weights, "--resume=auto", "--run-dir", "run", "--overwrite", says="would delete the checkpoint")
        self.assertEqual(self.files(), before)
        self.succeed(*weights, "--resume=run", "--run-dir", "other")
        self.assertEqual(self.files(), before)

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
        self.refused("usage", *small[:-3], "--run-dir", "..", "-q", "--max-steps", "3", "--overwrite", "--resume=step-000009", "--resume-weights-only",
                     says="--overwrite would delete the checkpoint", before=lambda: os.chdir(checkpoints))
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
        before = self.files()
        traced = ["--trace", "trace.json", "--trace-steps"]
        back = ["train", "--resume=run/checkpoints/step-000003", "--run-dir", "run", "-q"]
        for more, says in ((["--patience", "3"], "--patience needs validation"), (["--lr-schedule", "step"], "needs --lr-step"),
                           (["--min-lr", "1"], "--min-lr must be between"), ([*traced, "5:10"], 'not "5:10"'), ([*traced, "5-3"], "comes after"),
                           (["--trace", "nowhere/trace.json"], '--trace: there is no folder "nowhere"'),
                           (["--metrics", "nowhere/events.jsonl"], '--metrics: there is no folder "nowhere"')):
            for command in ([*train, "--overwrite"], back):
                for end in ([], ["--dry-run"]):
                    with self.subTest(more=more, command=command, end=end):
                        self.refused("usage", *command, *more, *end, says=says)
                        self.assertEqual(self.files(), before)
        self.refused("usage", *train, "--overwrite", "--gpus", "2", "--schedule", "pipedream", *traced, "5", says="traced as a whole")
        self.assertEqual(self.files(), before)
        self.write("file", "")
        for name in ("tensorboard", "mlflow"):
            for end in ([], ["--dry-run"]):
                self.refused("resource", *train, "--overwrite", "--log-to", f"{name}:file/logs", *end,
                             says=f'--log-to {name}: cannot create the folder "file/logs": Not a directory')
                self.assertEqual(self.files(), before)
        # The run makes its own folder.
        self.succeed(*train, "--run-dir", "new", "--trace", "new/trace.json", "--metrics", "new/metrics.jsonl", "--log-to", "tensorboard:new/logs/tb")
        self.assertTrue(all((self.folder / "new" / name).exists() for name in ("trace.json", "metrics.jsonl", "logs/tb")))
        self.succeed(*train, "--run-dir", "logged", "--trace", "logs/trace.json", "--log-to", "tensorboard:logs")
        self.assertTrue((self.folder / "logs/trace.json").exists())

    def test_a_checkpoint_that_does_not_suit_leaves_an_earlier_run_as_it_is(self):
        train = ["train", "-m", MODEL, "--data", DATA, "--limit", "64", "--device", "cpu", "--max-steps", "9", "--save-every", "3", "--keep", "9", "-q"]
        self.succeed(*train, "--run-dir", "run")
        self.succeed(*train, "--run-dir", "lora", "--lora", "2")
        self.succeed("new", "mlp", "--image", "8", "-o", "mlp.onnx")
        other = [*train[:2], "mlp.onnx", *train[3:], "--run-dir", "lora", "--overwrite", "--resume=run", "--resume-weights-only"]
        for run, command, says in (("run", ["--freeze", "head*"], 'trained values of "head'), ("run", ["--train-only", "head*"], "trained values of"),
                                   ("run", ["--lora", "4"], "trained values of"), ("lora", ["--lora", "4"], "in the checkpoint, but"),
                                   ("lora", other, ["no tensor with the name and shape", "mlp.onnx"])):
            before = self.files(run)
            if command != other:
                command = ["train", f"--resume={run}/checkpoints/step-000003", "--run-dir", run, "-q", *command]
            for end in ([], ["--dry-run"]):
                with self.subTest(command=command, end=end):
                    self.refused("usage", *command, *end, says=says)
                    self.assertEqual(self.files(run), before)

    def test_too_few_samples_for_validation_leave_an_earlier_run_as_it_is(self):
        weights = onnx_file.tensor("w", [4, 3], [0.1 * i for i in range(12)])
        self.write("fixed.onnx", onnx_file.model([onnx_file.node("MatMul", ["x", "w"], ["y"])], [onnx_file.value_info("x", [8, 4])],
                                                 [onnx_file.value_info("y", [8, 3])], [weights]))
        for name, count in (("d", 16), ("few", 7)):
            self.write(f"{name}.jsonl", "".join(f'{{"x": [{i}, 1, 2, 3], "y": {i % 3}}}\n' for i in range(count)))
        train = ["train", "fixed.onnx", "--data", "d.jsonl", "-b", "8", "--device", "cpu", "--max-steps", "2", "--run-dir", "run", "-q"]
        self.succeed(*train)
        before = self.files()
        for end in ([], ["--dry-run"]):
            self.refused("data", *train, "--overwrite", "--val-data", "few.jsonl", *end, says="7 samples are fewer than the model's fixed batch of 8")
            self.assertEqual(self.files(), before)

    def test_what_a_failed_run_has_left_is_replaced(self):
        train = ["train", "-m", MODEL, "--data", DATA, "--limit", "64", "--device", "cpu", "--optimizer", "sgd", "--lr", "1e30", "--max-steps", "2",
                 "--save-every", "never", "--run-dir", "run", "-q"]
        self.refused("diverged", *train)
        self.write("run/notes.json", "mine")
        self.refused("usage", *train, says='"run" is not empty')
        (self.folder / "run/notes.json").rename(self.folder / "run/words.json")
        self.write("run/texts.txt", "sha256=0\nname=words.json\n")  # the tokenizer of the run
        for name in (".model.onnx.before", ".model.onnx.data.before"):
            self.write(f"run/{name}", "of a new head that was interrupted")
        self.refused("diverged", *train)

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

    def test_a_new_head_that_is_interrupted_leaves_the_model_of_an_earlier_run(self):
        train = ["train", "-m", MODEL, "--num-classes", "12", "--lora", "2", "--data", DATA, "--limit", "64", "--device", "cpu", "--max-steps", "2", "-q"]
        self.succeed(*train, "--run-dir", "run")
        self.succeed(*train, "--run-dir", "other", "--seed", "5")
        model, kept = (self.folder / "run" / name for name in ("model.onnx", ".model.onnx.before"))
        before, other = model.read_bytes(), (self.folder / "other/model.onnx").read_bytes()
        self.assertNotEqual(before, other)
        self.succeed("export", "run", "-o", "before.onnx")

        def replaced():
            kept.write_bytes(before)
            model.write_bytes(other)

        for interrupted in (replaced, lambda: os.link(model, kept)):
            for command in (["export", "run", "-o", "after.onnx", "--overwrite"],
                            ["eval", "--follow", "run", "--data", DATA, "--limit", "64", "--device", "cpu"],
                            ["--resume=run/checkpoints/step-000002", "--run-dir", "copy", "--overwrite", "--max-steps", "3", "-q"],
                            ["--resume=run", "-q"]):
                with self.subTest(command=command):
                    interrupted()
                    self.succeed(*command)
                    self.assertEqual(model.read_bytes(), before)
                    self.assertFalse(kept.exists())
        self.assertEqual((self.folder / "after.onnx").read_bytes(), (self.folder / "before.onnx").read_bytes())

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
        data = ["--data", DATA, "--device", "cpu"]
        for option, *command in (("--output", "predict", MODEL, *data), ("--confusion", "eval", MODEL, *data), ("--output", "plan", MODEL),
                                 ("--svg", "plan", MODEL), ("--dot", "plan", MODEL), ("--output", "profile", MODEL), ("--output", "report", "run"),
                                 *((option, *train) for option in ("--trace", "--metrics", "--status-file"))):
            with self.subTest(command=command[0], option=option):
                self.refused("usage", *command, option, "there", says=f'{option}: "there" is a folder; name a file in it')
                self.assertEqual(self.contents(), before)

    def test_a_dry_run_writes_nothing(self):
        _, err = self.succeed("train", "-m", MODEL, "--data", DATA, "--device", "cpu", "--gpus", "4", "--dry-run")
        self.assertIn("4 stages", err)
        self.assertEqual(self.contents(), [])

    def test_a_dry_run_is_refused_where_training_would_be(self):
        train = ["train", "-m", MODEL, "--data", DATA, "--limit", "64", "--device", "cpu", "--max-steps", "1", "-q"]
        self.succeed(*train, "--run-dir", "run")
        before = self.contents()
        for end in ([], ["--dry-run"]):
            self.refused("usage", *train, "--run-dir", "run", *end, says=['"run" is not empty', "--overwrite"])
            self.refused("usage", *train, "--resume=run", "--resume-weights-only", "--run-dir", "run", *end, says="another --run-dir")
            self.refused("usage", *train, "-o", "run/trained.onnx", *end, says=['"run/trained.onnx" exists', "--overwrite"])
            self.refused("usage", *train, "-o", "nowhere/out.onnx", *end, says="nowhere")
            self.assertEqual(self.contents(), before)
        for more in (["--run-dir", "run", "--overwrite"], ["--resume=run"], ["-o", "run/trained.onnx", "--overwrite"]):
            self.succeed(*train, *more, "--dry-run")
            self.assertEqual(self.contents(), before)

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
        # The events have no estimate either.
        plans = [event for event in events((self.folder / "run/events.jsonl").read_text()) if event["event"] == "plan"]
        self.assertEqual([("predicted" in plan, "fwd_ms" in plan["stages"][0], "bwd_ms" in plan["stages"][0]) for plan in plans],
                         [(False, False, False), (True, True, True)])


class Locale(Case):
    def test_numbers_do_not_depend_on_the_language(self):
        texts = {self.succeed("plan", MODEL, "--gpus", "2", "--json", environment=language)[0]
                 for language in [{"LC_ALL": "C"}, self.german()]}
        self.assertEqual(len(texts), 1)


if __name__ == "__main__":
    unittest.main()
