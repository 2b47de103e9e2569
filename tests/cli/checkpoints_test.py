"""Checkpoints and signals: what is saved, how a run goes on from it, and how it ends when it is told to."""

import hashlib
import json
import resource
import shutil
import signal
import struct
import unittest

from program import DATA, MODEL, SECONDS, Case, events

SMALL = ["-m", MODEL, "--data", DATA, "--limit", "320", "--batch-size", "32", "--device", "cpu", "--threads", "1"]
LONG = [*SMALL, "--epochs", "100000"]  # until somebody stops it


def safetensors(path):
    """Reads a file as the format is published: length, JSON header, data."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    data = content[8 + length:]
    end = 0
    for entry in sorted((entry for name, entry in header.items() if name != "__metadata__"),
                        key=lambda entry: entry["data_offsets"]):
        assert entry["data_offsets"][0] == end, "a gap"
        end = entry["data_offsets"][1]
    assert end == len(data), "bytes that do not belong to any tensor"
    return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items() if name != "__metadata__"}


class Checkpoints(Case):
    def sha(self, name):
        return hashlib.sha256((self.folder / name).read_bytes()).hexdigest()

    def lines_of(self, name, run="run"):
        """The events of that name so far, as they are written."""
        try:
            lines = (self.folder / run / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [line for line in lines if f'"event":"{name}"' in line and line.endswith("}")]

    def steps(self, run="run"):
        return self.lines_of("step", run)

    def wait_for_events(self, name, count, run="run"):
        self.wait_for(lambda: len(self.lines_of(name, run)) >= count)

    def wait_for_steps(self, count, run="run"):
        self.wait_for_events("step", count, run)

    def start_long(self, *more, steps=3):
        process = self.start("train", *LONG, "--run-dir", "run", *more)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.wait_for_steps(steps)
        return process

    def end(self, process):
        out, err = process.communicate(timeout=SECONDS)
        return process.returncode, err.decode()

    def names(self, run="run"):
        return sorted(path.name for path in (self.folder / run / "checkpoints").iterdir())

    def last_event(self, name, run="run"):
        return [e for e in events((self.folder / run / "events.jsonl").read_text()) if e["event"] == name][-1]


class Signals(Checkpoints):
    def test_int_term_and_hup_save_and_end_with_their_codes(self):
        for number, code in [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]:
            with self.subTest(number):
                run = f"run{code}"
                process = self.start("train", *LONG, "--run-dir", run, "--save-every", "never")
                self.wait_for_steps(2, run)
                process.send_signal(number)
                got, err = self.end(process)
                self.assertEqual(got, code, err)
                end = self.last_event("run_end", run)
                self.assertEqual((end["status"], end["exit_code"]), ("interrupted", code))
                self.assertIn(f"--resume={run}", err)
                self.assertEqual(self.names(run), ["latest", f"step-{end['steps']:06}"])
                self.assertFalse((self.folder / run / "trained.onnx").exists())

    def test_it_saves_in_its_own_folder_where_a_link_to_that_moves(self):
        for name in ("first", "second"):
            (self.folder / name).mkdir()
        link = self.folder / "run"
        link.symlink_to("first")
        process = self.start_long("--save-every", "never")
        link.unlink()
        link.symlink_to("second")
        process.send_signal(signal.SIGTERM)
        code, err = self.end(process)
        self.assertEqual(code, 143, err)
        self.assertIn("--resume=first", err)
        self.assertIn("latest", self.names("first"))
        self.assertEqual(list((self.folder / "second").iterdir()), [])

    def test_the_second_ends_it_at_once(self):
        process = self.start_long("--save-every", "never")
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        code, _ = self.end(process)
        self.assertIn(code, [130, 143])
        self.assertFalse((self.folder / "run" / "checkpoints").exists())

    def test_usr1_saves_and_usr2_says_where_it_is_and_both_go_on(self):
        process = self.start_long("--save-every", "never", "--quiet")
        process.send_signal(signal.SIGUSR1)
        process.send_signal(signal.SIGUSR2)
        self.wait_for_events("checkpoint", 1)
        saved = events(self.lines_of("checkpoint")[-1])[0]
        self.wait_for_steps(len(self.steps()) + 20)
        self.assertEqual(saved["reason"], "asked")
        self.assertEqual(self.names(), ["latest", f"step-{saved['step']:06}"])
        process.send_signal(signal.SIGTERM)
        code, err = self.end(process)
        self.assertEqual(code, 143)
        self.assertRegex(err, r"step +\d+/1000000 .*loss")

    def test_a_run_under_nohup_does_not_mind_a_hangup(self):
        process = self.start("train", *SMALL, "--epochs", "20", "--run-dir", "run",
                             before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_for_steps(1)
        process.send_signal(signal.SIGHUP)
        self.assertEqual(self.end(process)[0], 0)

    def test_max_time_saves_writes_the_model_and_ends_well(self):
        self.succeed("train", *LONG, "--run-dir", "run", "--max-time", "1s", "--status-file", "status.json")
        end = self.last_event("run_end")
        self.assertEqual((end["status"], end["exit_code"]), ("max_time", 0))
        self.assertTrue((self.folder / "run" / "trained.onnx").exists())
        self.assertIn(f"step-{end['steps']:06}", self.names())
        status = json.loads((self.folder / "status.json").read_text())
        self.assertEqual((status["schema"], status["state"], status["exit_code"]), ("pipetrain.status/1", "max_time", 0))
        self.assertEqual((status["first_step"], status["step"]), (1, end["steps"]))
        self.assertEqual(status["total_steps"], 1000000)

    def test_time_that_runs_out_in_the_last_step_cuts_nothing_off(self):
        for run, schedule in [("a", "1f1b"), ("b", "pipedream")]:
            _, err = self.succeed("train", *SMALL, "--gpus", "2", "--schedule", schedule, "--max-steps", "1", "--max-time", "0.001",
                                  "--run-dir", run)
            self.assertEqual(self.last_event("run_end", run)["status"], "ok")
            self.assertNotIn("--max-time reached", err)

    def test_max_time_counts_from_the_first_start(self):
        first = {"PIPETRAIN_SECONDS_BEFORE": "3600.125"}
        self.succeed("train", *LONG, "--run-dir", "run", "--max-time", "59min", environment=first)
        end = self.last_event("run_end")
        self.assertEqual((end["status"], end["steps"]), ("max_time", 1))
        # A new run with restarts has its own.
        self.succeed("train", *SMALL, "--epochs", "1", "--restarts", "1", "--run-dir", "other", "--max-time", "59min", environment=first)
        self.assertNotIn("max_time", (self.folder / "other/events.jsonl").read_text())

    def test_a_rate_by_time_counts_from_the_first_start_too(self):
        run = ["train", *SMALL, "--max-steps", "3", "--lr", "0.01", "--lr-schedule", "linear:over=time", "--run-dir", "run", "--overwrite"]
        first = {"PIPETRAIN_SECONDS_BEFORE": "1800"}
        _, err = self.succeed(*run, "--max-time", "29min", environment=first)
        end = self.last_event("run_end")
        self.assertEqual((end["status"], end["steps"]), ("max_time", 1))
        # Such a run has nothing left to resume.
        self.assertIn("--max-time reached after step 1 of 3\n", err)
        # A half of the time is over.
        self.succeed(*run, "--max-time", "1h", environment=first)
        rates = [event["lr"] for event in events((self.folder / "run/events.jsonl").read_text()) if event["event"] == "step"]
        self.assertEqual(len(rates), 3)
        self.assertLessEqual(max(rates), 0.005)
        self.assertGreater(min(rates), 0.004)


class Resume(Checkpoints):
    def stop_and_resume(self, *more):
        """Runs whole, and in two parts; returns what the second part said."""
        self.succeed("train", *SMALL, "--epochs", "30", "--run-dir", "whole", *more)
        process = self.start("train", *SMALL, "--epochs", "30", "--run-dir", "run", *more)
        self.wait_for_steps(5)
        process.send_signal(signal.SIGTERM)
        code, err = self.end(process)
        self.assertEqual(code, 143, err)
        return self.succeed("--resume=run")[1]

    def test_a_stopped_run_goes_on_to_the_same_bytes_by_its_folder_alone(self):
        for schedule in ["1f1b", "pipedream"]:
            with self.subTest(schedule):
                err = self.stop_and_resume("--gpus", "3", "--schedule", schedule, "--overwrite")
                self.assertIn("resume   ", err)
                self.assertNotIn("→", err)
                self.assertEqual(self.sha("run/trained.onnx"), self.sha("whole/trained.onnx"))
                steps = [json.loads(line)["step"] for line in self.steps()]
                self.assertEqual(sorted(set(steps)), list(range(1, 301)))
                for folder in ["run", "whole"]:
                    for path in sorted((self.folder / folder).rglob("*"), reverse=True):
                        path.rmdir() if path.is_dir() else path.unlink()

    def test_going_back_holds_from_the_first_step_on(self):
        self.succeed("train", *SMALL, "--max-steps", "8", "--save-every", "2", "--keep", "9", "--run-dir", "run")
        process = self.start("train", "--resume=run/checkpoints/step-000004/", "--run-dir", "run", "--max-steps", "1000000", "--save-every", "never")
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.wait_for_steps(10)
        process.kill()
        self.end(process)
        _, err = self.succeed("--resume=run", "--max-steps", "6")
        self.assertIn("step 4 of 6", err)

    def test_a_run_does_not_go_back_to_a_checkpoint_with_a_name_of_its_own(self):
        self.succeed("train", *SMALL, "--max-steps", "4", "--save-every", "2", "--keep", "9", "--run-dir", "run")
        checkpoints = self.folder / "run/checkpoints"
        (checkpoints / "step-000002").rename(checkpoints / "good")
        latest = (checkpoints / "latest").read_text()
        back = ["--resume=run/checkpoints/good", "--run-dir", "run", "--max-steps", "5"]
        for more in (["--dry-run"], []):
            self.refused("usage", *back, *more, says=["run/checkpoints/good", "a name of its own", "--run-dir"])
            self.assertEqual((checkpoints / "latest").read_text(), latest)
        shutil.rmtree(checkpoints / "step-000004")
        _, err = self.succeed(*back)
        self.assertIn("step 2 of 5", err)

    def test_the_best_model_outlives_a_stop_without_other_checkpoints(self):
        still = ["--val-split", "0.3", "--val-every", "1", "--lr", "0", "--bn", "frozen", "--lr-schedule", "constant"]
        process = self.start_long(*still, "--save-every", "never")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.end(process)[0], 143)
        self.assertIn("best.safetensors", [path.name for path in self.folder.glob("run/checkpoints/*/*")])
        steps = len(self.steps())
        for more in (2, 4):  # every checkpoint keeps it
            _, err = self.succeed("--resume=run", "--max-steps", str(steps + more), "--lr", "1", "--max-time", "1d",
                                  *(["--save-every", "1"] if more == 2 else []))
            self.assertIn("the best model, loss", err)
            self.assertIn("at step 1;", err)
            best = self.last_event("run_end")["best"]
            out, _ = self.succeed("eval", "--json", "-m", MODEL, "--data", DATA, "--limit", "320", "--device", "cpu")
            trained, _ = self.succeed("eval", "--json", "-m", "run/trained.onnx", "--data", DATA, "--limit", "320", "--device", "cpu")
            self.assertEqual((json.loads(trained)["loss"], best["step"]), (json.loads(out)["loss"], 1))

    def test_it_goes_on_with_other_stages_and_options_that_are_listed(self):
        self.succeed("train", *SMALL, "--epochs", "2", "--run-dir", "run", "--gpus", "2", "--micro-batches", "4")
        _, err = self.succeed("--resume=run", "--epochs", "3", "--gpus", "3", "--schedule", "gpipe", "--lr", "0.0005")
        self.assertIn("lr 0.001 → 0.0005", err)
        self.assertIn("steps 20 → 30", err)
        self.assertRegex(err, r"done     10 steps in [0-9.]+ s \(30 in all\)")
        self.assertNotIn("schedule", "".join(line for line in err.splitlines() if "→" in line))
        self.assertEqual(len(self.steps()), 30)

    def test_auto_starts_afresh_and_later_has_nothing_to_do(self):
        command = ["train", *SMALL, "--epochs", "1", "--run-dir", "run", "--resume=auto"]
        self.succeed(*command)
        before = self.sha("run/trained.onnx")
        _, err = self.succeed(*command)
        self.assertIn("nothing left to train", err)
        self.assertEqual(self.sha("run/trained.onnx"), before)

    def test_without_a_checkpoint_it_says_so(self):
        self.refused("usage", "train", *SMALL, "--resume", says=["no checkpoint", "--resume=auto"])
        self.refused("usage", "train", *SMALL, "--resume=nowhere", says="nowhere")

    def test_a_damaged_checkpoint_is_passed_over_or_refused(self):
        self.succeed("train", *SMALL, "--epochs", "3", "--run-dir", "run", "--save-every", "1ep")
        self.assertEqual(self.names(), ["latest", "step-000010", "step-000020", "step-000030"])
        weights = self.folder / "run/checkpoints/step-000030/weights.safetensors"
        content = bytearray(weights.read_bytes())
        content[-5] ^= 16
        weights.write_bytes(content)
        self.refused("data", "--resume=run/checkpoints/step-000030", says=["weights.safetensors", "tensor", "CRC-32C"])
        before = self.sha("run/trained.onnx")
        (self.folder / "run/trained.onnx").unlink()
        _, err = self.succeed("--resume=auto", "--run-dir", "run")
        self.assertIn("step-000030/weights.safetensors is damaged", err)
        self.assertIn("step-000020", err)
        self.assertEqual(self.sha("run/trained.onnx"), before)

    def test_conflicts_are_one_sentence(self):
        self.succeed("train", *SMALL, "--epochs", "1", "--run-dir", "run")
        self.refused("usage", "--resume=run", "--epochs", "2", "--optimizer", "sgd", says=["adamw", "--resume-weights-only"])
        self.refused("data", "--resume=run", "--epochs", "2", "--limit", "640", says=["320 samples", "640 samples"])
        self.succeed("new", "mlp", "--image", "8", "-o", "mlp.onnx")
        self.refused("usage", "--resume=run", "--epochs", "2", "-m", "mlp.onnx", says="another network")
        self.refused("usage", "train", *SMALL, "--resume-weights-only", says="--resume")
        self.refused("usage", "--resume=run", "--resume-weights-only", "--max-steps", "5", says=["give --model, --data"])
        self.succeed("train", *SMALL, "--epochs", "1", "--resume=run", "--resume-weights-only", "--optimizer", "sgd",
                     "--run-dir", "other")

    def test_a_new_run_begins_with_the_weights_that_match(self):
        def weights(run, step):
            return safetensors(self.folder / run / f"checkpoints/step-{step:06}/weights.safetensors")

        self.succeed("train", *SMALL, "--epochs", "1", "--run-dir", "run")
        self.succeed("train", *SMALL, "--num-classes", "12", "--max-steps", "1", "--run-dir", "twelve")
        other = ["train", "-m", "twelve/model.onnx", *SMALL[2:], "--resume=run", "--max-steps", "20"]
        self.refused("usage", *other, says=["another network", "from the weights that match with --resume-weights-only"])
        _, err = self.succeed(*other, "--resume-weights-only", "--lr", "0", "--max-steps", "1", "--run-dir", "other")
        self.assertRegex(err, r'note     2 of \d+ tensors begin as in a new run.*: "head\.\w+", "head\.\w+"\n')
        before, after = weights("run", 10), weights("other", 1)
        self.assertEqual(len(before), len(after))
        for name, value in before.items():
            if not name.startswith("head") and "running" not in name:
                self.assertEqual(after[name], value, name)
        # First the head alone, then everything.
        self.succeed("train", *SMALL, "--train-only", "head*", "--max-steps", "3", "--run-dir", "head")
        _, err = self.succeed("train", *SMALL, "--resume=head", "--resume-weights-only", "--lr", "0", "--max-steps", "1", "--run-dir", "all")
        self.assertIn(", …", err)
        for name, value in weights("head", 3).items():
            if "running" not in name:
                self.assertEqual(weights("all", 1)[name], value, name)
        self.succeed("new", "mlp", "--image", "8", "-o", "mlp.onnx")
        self.refused("usage", "train", "-m", "mlp.onnx", *SMALL[2:], "--resume=run", "--resume-weights-only", "--max-steps", "1",
                     says=["no tensor with the name and shape", "mlp.onnx"])

    def test_batches_in_flight_restart_where_the_run_ends_earlier(self):
        self.succeed("train", *SMALL, "--gpus", "2", "--schedule", "pipedream", "--epochs", "1", "--save-every", "3", "--keep", "all",
                     "--run-dir", "run")
        _, err = self.succeed("--resume=run/checkpoints/step-000003", "--max-steps", "7", "--run-dir", "rest")
        self.assertIn("or the number of steps changed: mini-batches in flight restart", err)

    def test_a_trace_has_whole_rounds(self):
        self.succeed("train", *SMALL, "--gpus", "2", "--schedule", "pipedream", "--epochs", "2", "--save-every", "3", "--keep", "all",
                     "--run-dir", "run")
        self.succeed("--resume=run/checkpoints/step-000003", "--run-dir", "rest", "--trace", "rest.json")
        steps = json.loads((self.folder / "rest.json").read_text())["otherData"]["steps"]
        self.assertEqual([step["step"] for step in steps if step["side"] == "measured"], [11])
        self.refused("usage", "trace", "diff", "rest.json", says="rest.json has rounds of an asynchronous schedule")
        _, err = self.succeed("--resume=run/checkpoints/step-000012", "--run-dir", "last", "--trace", "last.json")
        self.assertIn("no trace was written: no epoch was run", err)
        self.assertFalse((self.folder / "last.json").exists())

    def test_a_run_that_goes_on_behind_the_traced_steps_keeps_their_trace(self):
        trace = ["--trace", "t.json", "--trace-steps", "2-3"]
        self.succeed("train", *SMALL, "--max-steps", "4", "--run-dir", "run", *trace)
        before = (self.folder / "t.json").read_bytes()
        _, err = self.succeed("--resume=run", "--max-steps", "6", *trace)
        self.assertIn("no trace was written: none of the steps 2 to 3 was run", err)
        self.assertEqual((self.folder / "t.json").read_bytes(), before)
        self.assertIn("A step, predicted and measured", self.succeed("report", "run", "-o", "-")[0])

    def test_a_folder_is_trained_in_by_one_process(self):
        process = self.start_long("--save-every", "never")
        self.refused("usage", "train", *SMALL, "--run-dir", "run", "--overwrite", says="another process")
        self.write("run/model.onnx", "of the run that goes on")
        self.refused("usage", "train", *SMALL, "--num-classes", "12", "--run-dir", "run", "--overwrite", says="another process")
        self.assertEqual((self.folder / "run/model.onnx").read_text(), "of the run that goes on")
        process.kill()
        self.end(process)
        self.succeed("train", *SMALL, "--epochs", "1", "--run-dir", "run", "--overwrite")


class Saving(Checkpoints):
    def test_it_keeps_as_many_as_it_is_told_and_the_best(self):
        self.succeed("train", *SMALL, "--epochs", "4", "--run-dir", "run", "--save-every", "3", "--keep", "2")
        self.assertEqual(self.names(), ["latest", "step-000039", "step-000040"])
        self.succeed("train", *SMALL, "--epochs", "4", "--run-dir", "all", "--save-every", "0.5ep", "--keep", "all")
        self.assertEqual(len(self.names("all")), 9)
        self.succeed("train", *SMALL, "--epochs", "2", "--run-dir", "none", "--save-every", "never")
        self.assertFalse((self.folder / "none" / "checkpoints").exists())
        self.refused("usage", "train", *SMALL, "--keep", "1", says="at least 2")
        self.refused("usage", "train", *SMALL, "--save-every", "3weeks", says="weeks")

    def test_short_epochs_are_not_saved_each_unless_that_is_asked_for(self):
        one = [*SMALL, "--batch-size", "320", "--epochs", "12"]
        _, err = self.succeed("train", *one, "--run-dir", "run", "-v")
        self.assertEqual(self.names(), ["latest", "step-000012"])
        self.assertRegex(err, r"(?m)saves    1 checkpoint · blocked training \d+\.\d\d % of the time")
        self.succeed("train", *one, "--run-dir", "each", "--save-every", "1ep", "--keep", "all")
        self.assertEqual(len(self.names("each")), 13)
        self.assertEqual(self.last_event("run_end", "each")["checkpoints"], 12)
        self.assertEqual(self.sha("run/trained.onnx"), self.sha("each/trained.onnx"))
        # The best model waits in memory, and is there in the end.
        best = [*SMALL, "--val-split", "0.2", "--batch-size", "256", "--epochs", "12", "--lr", "0.01", "--lr-schedule", "constant",
                "--patience", "3"]
        self.succeed("train", *best, "--run-dir", "best")
        self.succeed("train", *best, "--run-dir", "asked", "--save-every", "1ep")
        for run in ["best", "asked"]:
            name = f"step-{self.last_event('run_end', run)['best']['step']:06}"
            self.assertEqual((self.folder / run / "checkpoints/best").read_text().split()[0], name)
        step = (self.folder / "best/checkpoints/best").read_text().split()[0]
        self.assertEqual(self.sha(f"best/checkpoints/{step}/weights.safetensors"),
                         self.sha(f"asked/checkpoints/{step}/weights.safetensors"))

    def test_any_tool_reads_the_weights(self):
        self.succeed("train", *SMALL, "--epochs", "1", "--run-dir", "run")
        model = (self.folder / "run" / "trained.onnx").read_bytes()
        folder = self.folder / "run/checkpoints/step-000010"
        weights = safetensors(folder / "weights.safetensors")
        self.assertGreater(len(weights), 4)
        for name, (dtype, shape, data) in weights.items():
            self.assertEqual(dtype, "F32")
            self.assertIn(name.encode(), model)
            self.assertIn(data, model, name)  # the file has the very bytes of the trained model
        states = safetensors(folder / "optimizer.safetensors")
        self.assertTrue(all(name.split("/", 1)[1] in weights for name in states))
        for record in json.loads((folder / "manifest.json").read_text())["files"]:
            self.assertEqual(record["sha256"], hashlib.sha256((folder / record["name"]).read_bytes()).hexdigest())

    def test_export_writes_the_model_also_while_it_is_trained(self):
        process = self.start_long("--save-every", "1", steps=5)
        for attempt in range(5):
            self.succeed("export", "--from", "run", "-o", f"live{attempt}.onnx")
            self.succeed("inspect", f"live{attempt}.onnx")
        process.send_signal(signal.SIGTERM)
        self.end(process)
        self.succeed("train", *SMALL, "--epochs", "1", "--run-dir", "short")
        for source in ["short", "short/checkpoints/latest", "short/checkpoints/step-000010"]:
            self.succeed("export", "--from", source, "-o", "out.onnx", "--overwrite")
            self.assertEqual(self.sha("out.onnx"), self.sha("short/trained.onnx"))
        self.refused("usage", "export", "--from", "short", "-o", "out.onnx", says="--overwrite")
        self.refused("usage", "export", "--from", "nowhere", "-o", "new.onnx", says="nowhere")

    def test_training_goes_on_without_checkpoints_until_the_third_fails(self):
        (self.folder / "run").mkdir()
        self.write("run/checkpoints", "in the way of the folder")
        _, err = self.succeed("train", *SMALL, "--epochs", "2", "--save-every", "1ep", "--run-dir", "run", "--overwrite")
        self.assertIn("warning: checkpoint not saved", err)
        code, _, err = self.run_program("train", *SMALL, "--epochs", "9", "--save-every", "1ep", "--run-dir", "run", "--overwrite")
        self.assertEqual(code, 5, err)
        self.assertIn("3 checkpoints in a row", err)
        code, _, err = self.run_program("train", *SMALL, "--epochs", "2", "--run-dir", "run", "--overwrite",
                                        "--on-checkpoint-error", "fail", "--save-every", "1")
        self.assertEqual(code, 5, err)

    def test_what_was_trained_to_the_end_is_written_even_if_no_checkpoint_was(self):
        (self.folder / "run").mkdir()
        self.write("run/checkpoints", "in the way of the folder")
        self.succeed("train", *SMALL, "--epochs", "3", "--run-dir", "whole")
        code, _, err = self.run_program("train", *SMALL, "--epochs", "3", "--run-dir", "run", "--overwrite", "--save-every", "1ep")
        self.assertEqual(code, 5, err)
        self.assertIn("3 checkpoints in a row", err.splitlines()[-1])
        self.assertEqual(self.sha("run/trained.onnx"), self.sha("whole/trained.onnx"))

    def test_a_file_that_cannot_grow_leaves_no_half_line_and_no_half_file(self):
        limit = 30000  # bytes: room for some events, for no checkpoint and for no model
        err = self.refused("resource", "train", *SMALL, "--epochs", "20", "--run-dir", "run", "--save-every", "100",
                           says=["checkpoint not saved", "events will be missing", "trained.onnx"],
                           before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        self.assertEqual(err.count("events.jsonl"), 1)
        records = events((self.folder / "run/events.jsonl").read_text())
        numbers = [record["seq"] for record in records]
        self.assertEqual(numbers[:20], list(range(20)))
        self.assertEqual(numbers, sorted(numbers))
        left = [path.name for path in (self.folder / "run").rglob("*") if path.name.startswith(".")]
        self.assertEqual(left, [])


if __name__ == "__main__":
    unittest.main()
