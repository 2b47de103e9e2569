"""Results go to stdout in a form that scripts can read, messages to stderr."""

import contextlib
import math
import os
import pathlib
import signal
import threading
import unittest

from onnx_file import model, node, tensor, value_info
from program import DATA, MODEL, SECONDS, Case, digits, events, move_data_out, parse


class Metrics(Case):
    def test_every_line_is_json_with_a_finite_loss_for_any_number_of_stages(self):
        losses = []
        for stages in range(1, 5):
            out, err = self.succeed("train", "-m", MODEL, "--data", DATA, "--device", "cpu", "--gpus", str(stages),
                                    "--threads", "1", "--micro-batches", "4", "--epochs", "1", "--val-split", "0.2", "--seed", "3",
                                    "--metrics", "-")
            records = events(out)
            self.assertEqual(records[0]["event"], "run_start")
            self.assertEqual(records[-1]["event"], "run_end")
            self.assertEqual(records[-1]["status"], "ok")
            self.assertEqual([record["seq"] for record in records], list(range(len(records))))
            steps = [record for record in records if record["event"] == "step"]
            self.assertEqual([step["step"] for step in steps], list(range(1, 24)))  # 1,438 samples, 64 at a time
            for step in steps:
                self.assertTrue(math.isfinite(step["loss"]))
                self.assertTrue(0 < step["accuracy"] + step["loss"])
            self.assertEqual(len(records[1]["stages"]), stages)
            self.assertIn("accuracy", [record for record in records if record["event"] == "val"][-1])
            self.assertIn("saved", err)
            losses.append([step["loss"] for step in steps])
        # With the threads and micro-batches given, no bit depends on the number of stages.
        for others in losses[1:]:
            self.assertEqual(others, losses[0])

    def test_a_loss_that_is_not_finite_is_still_json(self):
        code, out, _ = self.run_program("train", "-m", MODEL, "--data", DATA, "--optimizer", "sgd", "--lr", "1e30",
                                        "--epochs", "1", "--metrics", "-")
        self.assertEqual(code, 6)
        records = events(out)
        self.assertEqual(records[-1]["event"], "run_end")
        self.assertEqual(records[-1]["exit_code"], 6)
        self.assertEqual(records[-1]["status"], "diverged")
        self.assertEqual(records[-1]["steps"], max(record["step"] for record in records if record["event"] == "step"))
        self.assertGreater(records[-1]["seconds"], 0)

    def test_a_reader_that_goes_away_does_not_stop_the_training(self):
        with self.start("-m", MODEL, "--data", DATA, "--epochs", "1", "--metrics", "-") as process:
            process.stdout.readline()
            process.stdout.close()
            err = process.stderr.read().decode()
        self.assertEqual(process.returncode, 0, err)
        self.assertTrue((self.folder / "runs" / "latest" / "trained.onnx").exists())


class Heads(Case):
    def test_a_command_whose_reader_has_enough_ends_quietly(self):
        for arguments in [["train", "--help"], ["inspect", MODEL, "--params"], ["plan", MODEL, "--gpus", "4"], ["plan", MODEL, "--json"],
                          ["simulate", MODEL], ["schedule", "list"], ["help", "--man"], ["profile", MODEL],
                          ["predict", MODEL, "--data", DATA]]:
            with self.subTest(arguments), self.start(*arguments) as process:
                process.stdout.readline()
                process.stdout.close()
                err = process.stderr.read().decode()
                self.assertIn(process.wait(SECONDS), [0, 141, -signal.SIGPIPE])
                self.assertNotRegex(err, "error|warning|mistake")


class Documents(Case):
    def document(self, *arguments):
        out, _ = self.succeed(*arguments, "--json")
        return parse(out)

    def test_inspect(self):
        document = self.document("inspect", MODEL)
        self.assertEqual(document["schema"], "pipetrain.inspect/1")
        self.assertEqual(document["trained_numbers"], 35418)
        self.assertEqual(document["operators"]["BatchNormalization"], 5)
        self.assertEqual(sum(parameter["use"] == "running" for parameter in document["parameters"]), 10)

    def test_profile(self):
        document = self.document("profile", MODEL)
        self.assertEqual(document["schema"], "pipetrain.profile/1")

    def test_plan(self):
        for stages in (1, 2, 4):
            document = self.document("plan", MODEL, "--gpus", str(stages))
            self.assertEqual(document["schema"], "pipetrain.plan/1")
            self.assertEqual(len(document["stages"]), stages)
            self.assertEqual(sum(stage["nodes"] for stage in document["stages"]), document["chain_nodes"])

    def test_drawings_and_schedules_on_standard_output_are_printed_alone(self):
        plan = ["plan", "-m", MODEL, "--gpus", "2"]
        for drawing, begins in (("--svg", "<svg"), ("--dot", "digraph")):
            out, _ = self.succeed(*plan, drawing, "-")
            self.assertTrue(out.startswith(begins), out[:100])
            self.assertNotIn("peak  ", out)
        self.refused("usage", *plan, "--svg", "-", "--output", "-", says="--output - and --svg - cannot share standard output")
        out, _ = self.succeed("schedule", "check", "1f1b", "--gpus", "2", "-o", "-")
        self.assertNotIn("valid, ", out)
        self.refused("usage", "train", "-m", MODEL, "--data", DATA, "--lora", "rank=2", "--adapter", "-", says="--adapter -")

    def test_a_file_that_standard_output_leads_to_has_one_document(self):
        plan = ["plan", "-m", MODEL, "--gpus", "2"]
        file = self.folder / "out"
        into_file = lambda: os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
            for schema, command in (("plan", plan), ("profile", ["profile", MODEL])):
                with self.subTest(name, command=schema):
                    self.succeed(*command, "-o", name, before=into_file)
                    self.assertEqual(parse(file.read_text())["schema"], f"pipetrain.{schema}/1")
        for drawing, begins in (("--svg", "<svg"), ("--dot", "digraph")):
            self.succeed(*plan, drawing, "/dev/stdout", before=into_file)
            self.assertTrue(file.read_text().startswith(begins), file.read_text()[:100])
            self.assertNotIn("peak  ", file.read_text())
        self.refused("usage", *plan, "--svg", "/dev/stdout", "-o", "/dev/fd/1", says="--output - and --svg - cannot share standard output")

    def test_simulate(self):
        document = self.document("simulate", MODEL, "--gpus", "3")
        self.assertEqual(document["schema"], "pipetrain.simulation/1")
        self.assertEqual({row["schedule"] for row in document["rows"]}, {"gpipe", "1f1b", "pipedream"})
        document = self.document("simulate", MODEL, "--gpus", "2", "--schedule", "zb-h1", "--micro-batch-size", "8")
        self.assertEqual([(row["schedule"], row["micro_batches"]) for row in document["rows"]], [("zb-h1", 8)])
        self.refused("usage", "simulate", MODEL, "--gpus", "2", "--schedule", "auto", says="--schedules")
        # Schedules that send whole mini-batches are simulated beside those that split them.
        document = self.document("simulate", MODEL, "--gpus", "2", "-b", "64", "--micro-batch-size", "16")
        self.assertEqual([(row["schedule"], row["micro_batches"]) for row in document["rows"]], [("gpipe", 4), ("1f1b", 4), ("pipedream", 1)])
        document = self.document("simulate", MODEL, "--gpus", "2", "--schedules", "pipedream-2bw", "--micro-batches", "4")
        self.assertEqual([row["micro_batches"] for row in document["rows"]], [4])
        # One sample is one micro-batch.
        document = self.document("simulate", MODEL, "--gpus", "2", "-b", "1")
        self.assertEqual([(row["schedule"], row["micro_batches"]) for row in document["rows"]], [("gpipe", 1), ("1f1b", 1), ("pipedream", 1)])
        # Bubbles are those of the steady state.
        for more in ([], ["--replicas", "2,1"]):
            for row in self.document("simulate", MODEL, "--gpus", str(2 + len(more) // 2), *more, "--schedules", "pipedream,pipedream-2bw")["rows"]:
                self.assertTrue(0 <= row["bubble"] < 0.8, row)
        self.refused("usage", "simulate", MODEL, "--gpus", "2", "-b", "64", "--micro-batches", "100", says="--micro-batches 100")
        self.refused("usage", "plan", MODEL, "--gpus", "2", "--schedule", "pipedream", "--micro-batch-size", "8",
                     says="does not split mini-batches; leave out --micro-batch-size")

    def test_a_comparison_leaves_out_what_cannot_train_the_run(self):
        def rows(*arguments):
            out, err = self.succeed("simulate", *arguments, "--json")
            return [(row["schedule"], row["micro_batches"]) for row in parse(out)["rows"]], err

        given = [MODEL, "--gpus", "2", "-b", "64", "--micro-batches", "4"]
        for more, reason in ((["--precision", "fp16"], "float16 overflows"), (["--on-error", "nan=skip"], "nan=skip")):
            with self.subTest(more):
                found, err = rows(*given, *more)
                self.assertEqual(found, [("gpipe", 4), ("1f1b", 4)])
                self.assertEqual(err.count("pipedream is left out: "), 1, err)
                self.assertIn(reason, err)
                self.refused("usage", "simulate", *given, *more, "--schedules", "gpipe,pipedream", says=reason)
        err = self.refused("usage", "simulate", MODEL, "--split", "nowhere", says="nowhere")
        self.assertNotIn("left out", err)
        # A fixed batch of 4 has two micro-batches, whatever numbers are compared, and does not go through at once.
        layers = [node("MatMul", ["x", "w"], ["h"], "first"), node("Relu", ["h"], ["r"], "relu"), node("MatMul", ["r", "v"], ["y"], "second")]
        weights = [tensor(name, [8, 8], [(i % 7 - 3) / 10 for i in range(64)]) for name in "wv"]
        self.write("fixed.onnx", model(layers, [value_info("x", [4, 8])], [value_info("y", [4, 8])], weights))
        found, err = rows("fixed.onnx", "--gpus", "2", "-b", "8")
        self.assertEqual(found, [("gpipe", 2), ("1f1b", 2)])
        self.assertIn("the model has a fixed batch of 4", err)

    def test_drawings_have_the_limit_of_a_topology(self):
        plan = ["plan", MODEL, "--gpus", "2", "--schedule", "1f1b", "--svg", "-"]
        for more, has in (([], False), (["--gpu-memory", "1GB"], True), (["--topology", "laptop"], True)):
            self.assertEqual('<line class="limit"' in self.succeed(*plan, *more)[0], has, more)

    def test_eval(self):
        document = self.document("eval", MODEL, "--data", DATA)
        self.assertEqual(document["samples"], 1797)
        self.assertTrue(0 <= document["accuracy"] <= 1)

    def test_names_that_are_not_utf8_are_replaced(self):
        odd, shown = os.fsdecode(b"caf\xe9.schedule"), "caf\ufffd.schedule"
        self.succeed("schedule", "export", "gpipe", "--gpus", "2", "--micro-batches", "2", "-o", odd)
        run = ["--model", MODEL, "--device", "cpu", "--schedule", odd, "--batch-size", "8"]
        self.assertEqual([row["schedule"] for row in self.document("simulate", *run)["rows"]], [shown])
        self.assertEqual(self.document("verify", *run)["schedule"], shown)
        self.assertIn("bit-identical", self.succeed("verify", *run)[0])
        out, _ = self.succeed("doctor", "--json", environment={"PIPETRAIN_CACHE_DIR": os.fsdecode(b"/nowhere/\xff")})
        self.assertEqual(parse(out)["cache"], "/nowhere/\ufffd")

    def test_doctor(self):
        self.assertGreaterEqual(self.document("doctor")["cores"], 1)


class Inputs(Case):
    def test_an_output_never_replaces_an_input(self):
        rows = "\n".join(digits()[:64]) + "\n"
        model = pathlib.Path(MODEL).read_bytes()
        self.write("d.csv", rows)
        self.write("m.onnx", model)
        os.symlink("d.csv", self.folder / "other.csv")
        self.succeed("profile", "m.onnx", "-o", "p.json")
        profile = (self.folder / "p.json").read_bytes()
        for flag, name, *command in [("--output", "d.csv", "predict", "m.onnx", "--data", "d.csv"), ("--output", "other.csv", "predict", "m.onnx", "--data", "d.csv"),
                                     ("--confusion", "d.csv", "eval", "m.onnx", "--data", "d.csv"), ("--confusion", "m.onnx", "eval", "--model", "m.onnx", "--data", "d.csv"),
                                     ("--output", "m.onnx", "plan", "m.onnx"), ("--svg", "m.onnx", "plan", "m.onnx"), ("--output", "m.onnx", "profile", "m.onnx"),
                                     ("--output", "p.json", "plan", "m.onnx", "--profile", "p.json"),
                                     ("--metrics", "d.csv", "train", "m.onnx", "--data", "d.csv", "--max-steps", "1")]:
            self.refused("usage", *command, flag, name, says=f'{flag} "{name}" is an input of this command')
            self.assertEqual((self.folder / "d.csv").read_text(), rows)
            self.assertEqual((self.folder / "m.onnx").read_bytes(), model)
            self.assertEqual((self.folder / "p.json").read_bytes(), profile)
        # What is only written may be written again.
        for _ in range(2):
            self.succeed("predict", "m.onnx", "--data", "d.csv", "-o", "p.csv")

    def test_two_outputs_have_two_files(self):
        train = ["train", MODEL, "--device", "cpu", "--max-steps", "1"]
        for command, one, other in [(train, "--output", "--status-file"), (train, "--output", "--trace"), (train, "--metrics", "--trace"),
                                    ([*train, "--lora", "2"], "--adapter", "--metrics"), (["plan", MODEL], "--svg", "--dot"),
                                    (["plan", MODEL], "--output", "--svg"), (["schedule", "show", "1f1b"], "--svg", "--csv")]:
            for file in ("new.onnx", "./new.onnx", self.folder / "new.onnx"):
                self.refused("usage", *command, one, "new.onnx", other, file, says=[one, other, "both name", "give two files"])
        self.assertEqual(os.listdir(self.folder), [])
        self.succeed("plan", MODEL, "--svg", "/dev/null", "--dot", "/dev/null")

    def test_nor_one_that_a_checkpoint_names(self):
        rows = "\n".join(digits()[:64]) + "\n"
        self.write("d.csv", rows)
        self.succeed("-m", MODEL, "--data", "d.csv", "--max-steps", "1", "--run-dir", "r", "-q")
        for flag in ("--trace", "--metrics", "--status-file"):
            self.refused("usage", "--resume=r", "--max-steps", "2", flag, "d.csv", says=f'{flag} "d.csv" is an input of this command')
            self.assertEqual((self.folder / "d.csv").read_text(), rows)

    def test_nor_one_in_a_folder_or_a_glob(self):
        rows = "\n".join(digits()[:64]) + "\n"
        (self.folder / "data").mkdir()
        self.write("data/train.csv", rows)
        for data in ("data", "data/*.csv"):
            self.refused("usage", "predict", MODEL, "--data", data, "-o", "data/train.csv", says='--output "data/train.csv" is an input of this command')
            self.assertEqual((self.folder / "data/train.csv").read_text(), rows)
        # In a folder of images there may be results.
        for name in ("cats", "dogs"):
            (self.folder / "images" / name).mkdir(parents=True)
            self.write(f"images/{name}/1.png", "no image")
        self.write("images/status.json", "{}")
        self.refused("data", "train", MODEL, "--data", "images", "--status-file", "images/status.json", says="1.png")
        # Beside the tables of a folder there may be results.
        for _ in range(2):
            self.succeed("predict", MODEL, "--data", "data", "-o", "data/results.csv")

    def test_adapters_never_replace_a_model_of_the_run(self):
        for name, *more in [("trained.onnx",), ("trained.onnx", "-o", "other.onnx"), ("last.onnx", "--val-split", "0.2"), ("best.onnx", "--val-split", "0.2", "--save", "last")]:
            self.refused("usage", "-m", MODEL, "--data", DATA, "--limit", "64", "--max-steps", "1", "--lora", "4", "--run-dir", "r", "--overwrite",
                         "--adapter", f"r/{name}", *more, says=[f'r/{name}" is where the run keeps a model', "--adapter"])


class Streams(Case):
    def test_training_prints_nothing_to_stdout(self):
        out, err = self.succeed("train", "-m", MODEL, "--max-steps", "2")
        self.assertEqual(out, "")
        self.assertIn("step", err)

    def test_quiet_training_prints_nothing_at_all(self):
        self.assertEqual(self.succeed("train", "-m", MODEL, "--max-steps", "2", "--quiet"), ("", ""))

    def test_progress_in_a_log_has_no_control_characters(self):
        _, err = self.succeed("train", "-m", MODEL, "--max-steps", "12")
        self.assertTrue(all(ord(character) >= 32 or character == "\n" for character in err))

    def test_the_model_can_go_to_stdout(self):
        with self.start("-m", MODEL, "--max-steps", "0", "-o", "-") as process:
            out, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 0, err.decode())
        self.assertEqual(out, pathlib.Path(MODEL).read_bytes())

    def test_the_model_can_go_to_a_pipe_with_a_name(self):
        os.mkfifo(self.folder / "pipe")
        read = []
        reader = threading.Thread(target=lambda: read.append((self.folder / "pipe").read_bytes()), daemon=True)
        reader.start()
        self.succeed("-m", MODEL, "--max-steps", "0", "-o", "pipe", "-q")
        reader.join(SECONDS)
        self.assertEqual(read, [pathlib.Path(MODEL).read_bytes()])
        move_data_out(MODEL, self.folder / "outside.onnx")
        self.refused("usage", "-m", "outside.onnx", "--max-steps", "0", "-o", "pipe",
                     says=["--output pipe: outside.onnx has external weights", "cannot go to a pipe or a device"])

    def through_pipe(self, name, *arguments):
        """What a command writes to a pipe of that name."""
        os.mkfifo(self.folder / name)
        read = []
        reader = threading.Thread(target=lambda: read.append((self.folder / name).read_bytes()), daemon=True)
        reader.start()
        self.succeed(*arguments, "-o", name, "-q")
        with contextlib.suppress(OSError):  # for a reader that still waits
            os.close(os.open(self.folder / name, os.O_WRONLY | os.O_NONBLOCK))
        reader.join(SECONDS)
        return read[0]

    def test_models_and_data_can_go_to_a_pipe_as_to_a_file(self):
        self.succeed("-m", MODEL, "--data", DATA, "--limit", "64", "--max-steps", "1", "--run-dir", "run", "-q")
        for name, *command in [("m.onnx", "export", "--from", "run"), ("n.onnx", "new", "mlp"), ("d.csv", "data", "make", "spirals"),
                               ("d.npz", "data", "make", "spirals")]:
            with self.subTest(command):
                self.succeed(*command, "-o", f"file-{name}", "-q")
                self.assertEqual(self.through_pipe(name, *command), (self.folder / f"file-{name}").read_bytes())
        os.mkfifo(self.folder / "pipe")
        self.refused("usage", "new", "mlp", "--weights", "none", "-o", "pipe", says="cannot go to a pipe or a device; give a file with --output")

    def test_a_finished_run_writes_its_model_to_a_pipe_each_time(self):
        self.succeed("-m", MODEL, "--data", DATA, "--limit", "64", "--max-steps", "1", "--run-dir", "run", "-q")
        trained = (self.folder / "run/trained.onnx").read_bytes()
        for name in ("one", "two"):
            self.assertEqual(self.through_pipe(name, "--resume=run"), trained)
            with self.start("--resume=run", "-o", "-", "-q") as process:
                self.assertEqual(process.communicate(timeout=SECONDS)[0], trained)

    def test_a_resumed_run_does_not_write_to_the_pipe_of_the_run_before(self):
        with self.start("-m", MODEL, "--data", DATA, "--limit", "64", "--max-steps", "1", "--run-dir", "run", "-o", "/dev/stdout", "-q") as process:
            model, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 0, err)
        self.assertTrue(model)
        out, _ = self.succeed("--resume=run", "--max-steps", "2", "-q")
        self.assertEqual(out, "")
        self.assertTrue((self.folder / "run/trained.onnx").exists())

    def test_a_model_that_cannot_be_written_is_kept_in_its_folder(self):
        full = lambda: os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        self.refused("resource", "-m", MODEL, "--max-steps", "0", "-o", "-", "--run-dir", "run", before=full, says="run/trained.onnx")
        self.assertEqual((self.folder / "run/trained.onnx").read_bytes(), pathlib.Path(MODEL).read_bytes())
        self.succeed("-m", MODEL, "--data", DATA, "--limit", "64", "--max-steps", "1", "--save-every", "1", "--run-dir", "saved", "-q")
        self.refused("resource", "export", "--from", "saved", "-o", "-", before=full, says="standard output")
        self.refused("resource", "-m", MODEL, "--max-steps", "1", "-o", "/proc/x.onnx", says="trained.onnx instead")
        averaged = ["-m", MODEL, "--data", DATA, "--limit", "64", "--max-steps", "3", "--lr", "0.5", "--ema", "0.5"]
        self.succeed(*averaged, "--run-dir", "written")
        self.refused("resource", *averaged, "-o", "-", "--run-dir", "kept", before=full, says="kept/trained.onnx")
        self.assertEqual((self.folder / "kept/trained.onnx").read_bytes(), (self.folder / "written/trained.onnx").read_bytes())


if __name__ == "__main__":
    unittest.main()
