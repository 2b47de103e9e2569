"""How the program ends when something is wrong: one code for each kind of mistake, and a sentence that says what to do."""

import os
import pathlib
import shlex
import unittest

from program import DATA, MODEL, Case, digits


class Usage(Case):
    def test_an_unknown_flag_is_answered_with_the_nearest_one(self):
        self.refused("usage", "--scedule", "gpipe", "-m", MODEL, says=["--scedule", "did you mean --schedule?"])

    def test_an_unknown_command_is_answered_with_the_nearest_one(self):
        self.refused("usage", "trian", says=['"trian"', "did you mean train?"])

    def test_a_model_without_a_command_is_trained(self):
        self.succeed(MODEL, "--max-steps", "1", "--device", "cpu", "-q", "-o", "out.onnx")

    def test_a_flag_of_another_command_says_whose_it_is(self):
        self.refused("usage", "train", "-m", MODEL, "--assert", "accuracy>=0.9", says=["--assert", "eval"])

    def test_a_wrong_choice_lists_the_right_ones(self):
        self.refused("usage", "-m", MODEL, "--optimizer", "adamv", says=["adamv", "adamw", "sgd", "rmsprop"])

    def test_a_wrong_number_is_quoted(self):
        self.refused("usage", "-m", MODEL, "--epochs", "ten", says=["--epochs", '"ten"'])
        self.refused("usage", "-m", MODEL, "--batch-size", "0", says=["--batch-size", "at least 1"])

    def test_a_number_too_small_for_a_normal_double_is_one_all_the_same(self):
        self.succeed("train", MODEL, "--data", DATA, "--lr", "1e-320", "--weight-decay", "1e-310", "--device", "cpu", "--dry-run")
        self.refused("usage", "train", MODEL, "--data", DATA, "--lr", "1e308k", says="--lr takes a number")

    def test_a_number_out_of_range_names_its_flag(self):
        for flag in ("--threads", "--workers"):
            self.refused("usage", "-m", MODEL, flag, "100000", says=[flag, "at most 1024", "100000"])
        for seconds in ("0", "-1", "0s", "1e300"):
            self.refused("usage", "-m", MODEL, "--comm-timeout", seconds, says=["--comm-timeout", "more than 0", seconds])

    def test_a_number_that_does_not_suit_is_refused(self):
        run = ["train", MODEL, "--data", DATA, "--limit", "64", "--device", "cpu"]
        self.refused("usage", *run, "--weight-decay", "*=-5", says=["--weight-decay", "negative", "*=-5"])
        self.refused("usage", *run, "--clip-norm", "-3", says=["--clip-norm", "negative", "-3"])
        self.refused("usage", "train", MODEL, "--data", DATA, "--device", "cpu", "--epochs", "8e15", "-b", "1", "--dry-run",
                     says=["--epochs 8000000000000000", "1797 steps"])
        for every in ("1e300", "1e30sa", "1e17ep"):
            self.refused("usage", *run, "--lr-schedule", f"exponential:every={every}", says=["--lr-step", "1e+15", every])
        self.refused("usage", *run, "--lr-schedule", "multistep:at=4,over=time", "--max-time", "1min", says=["--lr-milestones", "--lr-over", "50%"])
        self.succeed(*run, "--lr-schedule", "multistep:at=50%,over=time", "--max-time", "1min", "--dry-run")
        root = [*run, "--lr-schedule", "inverse-sqrt:over=time", "--max-time", "1min", "--dry-run"]
        self.refused("usage", *root, says="--lr-schedule inverse-sqrt with --lr-over time needs --warmup, such as 5%")
        self.succeed(*root, "--warmup", "5%")
        err = self.refused("usage", *run, "--val-every", "1.5", says='--val-every takes whole steps, not "1.5"')
        self.assertNotIn("--save-every", err)
        self.refused("usage", *run, "--lr", "find", "--dry-run", says=["--lr find", "leave out --dry-run"])

    def test_standard_output_takes_one_document(self):
        self.succeed("train", "-m", MODEL, "--device", "cpu", "--max-steps", "1", "--run-dir", "run", "-q")
        show = ["schedule", "show", "1f1b"]
        for both, *command in [("--json and --confusion -", "eval", MODEL, "--data", DATA, "--json", "--confusion", "-"),
                               ("--json and --output -", *show, "--json", "-o", "-"), ("--json and --csv -", *show, "--json", "--csv", "-"),
                               ("--json and --svg -", *show, "--json", "--svg", "-"), ("--output - and --csv -", *show, "-o", "-", "--csv", "-"),
                               ("--curves - and --output -", "report", "run", "--curves", "-", "-o", "-"),
                               ("--json and --output -", "tune", MODEL, "--device", "cpu", "--json", "-o", "-"),
                               ("--output - and --metrics -", "train", MODEL, "--device", "cpu", "-o", "-", "--metrics", "-")]:
            code, out, err = self.run_program(*command)
            self.assertEqual((code, out), (2, ""), err)
            self.assertIn(f"error: {both} cannot share standard output", err)

    def test_a_schedule_that_is_misspelled_is_answered_with_the_right_one(self):
        err = self.refused("usage", "train", MODEL, "--lr-schedule", "cosin", says=["--lr-schedule", 'did you mean "cosine"?'])
        self.assertNotIn("range", err)

    def test_a_pattern_without_a_match_says_how_to_list_tensors(self):
        self.refused("usage", "train", MODEL, "--freeze", "nothing*", "--device", "cpu", says=["nothing*", "pipetrain inspect --params"])

    def test_a_number_that_would_take_hours_is_refused(self):
        self.refused("usage", "schedule", "show", "1f1b", "--gpus", "4", "--width", "10000000", says=["--width", "10000"])
        self.refused("usage", "schedule", "show", "1f1b", "--gpus", "4", "--micro-batches", "1000000", says=["1000000 micro-batches", "at most 262144"])
        self.refused("usage", "plan", MODEL, "--gpus", "100000", says=["--gpus", "at most 4096"])

    def test_a_number_beyond_32_bits_is_no_smaller_one(self):
        run = ["train", MODEL, "--device", "cpu", "--dry-run"]
        for flag, value in [("--replicas", "4294967297,4294967297"), ("--gpu-ids", "4294967296"), ("--staleness", "4294967300"),
                            ("--replica-mode", "async:staleness=4294967300"), ("--replica-mode", "backup:4294967297")]:
            self.refused("usage", *run, flag, value, says=[flag if "staleness" not in value else "--staleness", "must be at most", "42949"])
        self.refused("usage", "schedule", "show", "1f1b", "--micro-batches", "4294967304", says="are too many to show; give at most 262144")

    def test_what_a_command_does_not_look_at_is_refused(self):
        self.refused("usage", "train", MODEL, "--val-data", DATA, says=["--val-data needs --data", "--val-split"])
        self.refused("usage", "eval", MODEL, "--data", DATA, "--bn", "train", says="--bn")
        self.refused("usage", "predict", MODEL, "--data", DATA, "--dropout", "off", says="--dropout")

    def test_an_output_that_exists_is_refused_before_anything_is_done(self):
        self.write("there.onnx", "")
        err = self.refused("usage", "train", MODEL, "--data", DATA, "--num-classes", "10", "-o", "there.onnx", says="--overwrite")
        self.assertNotIn("plan ", err)
        self.assertFalse((self.folder / "runs").exists())

    def test_a_number_that_contradicts_another_is_refused(self):
        run = ["train", MODEL, "--data", DATA, "--device", "cpu", "--max-steps", "1"]
        for split in ("1.0", "12.0", "100%"):
            self.refused("usage", *run, "--val-split", split, says=["--val-split", split, "below 1"])
        self.succeed(*run, "--val-split", "12", "--dry-run")
        self.assertEqual(self.succeed(*run, "--val-split", "25%", "--dry-run")[1], self.succeed(*run, "--val-split", "0.25", "--dry-run")[1])
        self.refused("usage", *run, "--micro-batch-size", "1000", "-b", "32",
                     says=["--micro-batch-size 1000", "--batch-size 32"])
        self.refused("usage", *run, "--warmup", "1e300", says="--warmup takes 1e+300 steps, but the run has only 1")

    def test_an_option_that_nothing_reads_is_named(self):
        run = ["train", MODEL, "--data", DATA, "--device", "cpu", "--gpus", "2", "--dry-run"]
        for options, says in ((["--staleness", "4"], "--staleness is not used by --replica-mode sync"),
                              (["--virtual-stages", "3"], "--virtual-stages is not used by --schedule 1f1b"),
                              (["--warm-up-tolerance", "0.1"], "--warm-up-tolerance is not used by --schedule 1f1b"),
                              (["--trace-steps", "3-5"], "--trace-steps has no effect without --trace FILE"),
                              (["--lr-schedule", "constant", "--min-lr", "1e-5"], "--min-lr is not used by --lr-schedule constant")):
            self.assertIn(says, self.succeed(*run, *options)[1])
        for options in (["--schedule", "interleaved-1f1b", "--virtual-stages", "3"], ["--schedule", "1f1b-auto", "--warm-up-tolerance", "0.1"],
                        ["--min-lr", "1e-5"]):
            self.assertNotIn("not used", self.succeed(*run, *options)[1])
        self.refused("usage", *run, "--schedule", "zb-v", "--replicas", "2", says="--replicas works with gpipe, 1f1b, 1f1b-eager, 1f1b-auto, pipedream, ")

    def test_settings_of_adapters_need_adapters(self):
        run = ["train", MODEL, "--data", DATA, "--device", "cpu", "--dry-run"]
        for part in (["--lora-targets", "*conv*"], ["--lora-alpha", "16"]):
            self.refused("usage", *run, *part, says="--lora-targets and --lora-alpha need --lora N")
        self.succeed(*run, "--lora", "0", "--lora-alpha", "16")

    def test_a_batch_for_no_memory_is_a_matter_of_memory(self):
        self.refused("resource", "-m", MODEL, "--batch-size", "100000000000", "--max-steps", "1", "--device", "cpu",
                     says=("12500000000 samples are too large", "TiB"))

    def test_an_unknown_schedule_is_refused(self):
        self.refused("usage", "-m", MODEL, "--device", "cpu", "--gpus", "2", "--schedule", "1f2b", says="1f2b")

    def test_without_a_model_it_says_how_to_get_one(self):
        self.refused("usage", "train", "--epochs", "1", says=["--model", "pipetrain new"])

    def test_help_is_no_mistake(self):
        for arguments in [[], ["--help"], ["train", "--help"], ["help", "plan"]]:
            out, err = self.succeed(*arguments)
            self.assertIn("pipetrain", out)
            self.assertEqual(err, "")


class Diverged(Case):
    def test_a_run_that_skipped_most_of_its_steps_has_diverged(self):
        run = ["train", MODEL, "--data", DATA, "--device", "cpu", "-b", "16", "--max-steps", "20", "--on-nan", "skip", "-q"]
        self.refused("diverged", *run, "--lr", "1e30", "--run-dir", "run",
                     says=["of 20 steps were skipped", "a smaller --lr than 1e+30"])
        self.assertIn('"exit_code":6', (self.folder / "run/events.jsonl").read_text().splitlines()[-1])
        self.succeed(*run)

    def test_in_float16_only_the_search_for_a_loss_scale_may_skip_most_steps(self):
        run = ["train", MODEL, "--data", DATA, "--device", "cpu", "-b", "16", "--precision", "fp16", "--lr", "1e30", "--on-error", "nan=skip", "-q"]
        # The scale begins with 2 to the power of 16, so it is 1 after 16 skipped steps and still above that after 10.
        self.refused("diverged", *run, "--max-steps", "40", says=["of 40 steps were skipped", "a smaller --lr than 1e+30"])
        self.succeed(*run, "--max-steps", "10")
        self.refused("diverged", *run, "--max-steps", "10", "--loss-scale", "128", says="of 10 steps were skipped")


class Model(Case):
    def test_every_unsupported_operator_is_listed_at_once(self):
        # The five Relu and the one MaxPool are renamed to operators that nobody knows.
        content = pathlib.Path(MODEL).read_bytes().replace(b"Relu", b"Rolu").replace(b"MaxPool", b"MixPool")
        for command in ["inspect", "train", "plan"]:
            self.refused("model", command, self.write("odd.onnx", content),
                         says=["2 operators", "Rolu", "5 nodes", "MixPool", "1 node"])

    def test_a_missing_file_is_named(self):
        self.refused("model", "inspect", "nowhere.onnx", says="nowhere.onnx")

    def test_a_damaged_file_trains_nothing(self):
        half = self.write("half.onnx", pathlib.Path(MODEL).read_bytes()[:70000])
        self.refused("model", "train", half, says="half.onnx")
        self.assertEqual([path.name for path in self.folder.iterdir()], ["half.onnx"])


class Data(Case):
    def refused_data(self, lines, says):
        data = self.write("digits.csv", "\n".join(lines) + "\n")
        self.refused("data", "train", "-m", MODEL, "--data", data, "--epochs", "1", says=["digits.csv", *says])
        self.assertFalse((self.folder / "runs").exists())

    def test_a_label_out_of_range_names_file_and_line(self):
        lines = digits()[:100]
        lines[41] = lines[41].rpartition(",")[0] + ",10"
        self.refused_data(lines, ["label 10", "0..9", "line 42"])

    def test_a_cell_that_is_no_number_names_file_line_and_column(self):
        lines = digits()[:100]
        lines[6] = "many," + lines[6].partition(",")[2]
        self.refused_data(lines, ["line 7", "column 1", '"many"'])

    def test_a_row_that_is_too_short_names_file_and_line(self):
        lines = digits()[:100]
        lines[8] = lines[8].partition(",")[2]
        self.refused_data(lines, ["line 9"])

    def test_an_infinite_value_names_file_and_line(self):
        lines = digits()[:100]
        lines[3] = "inf," + lines[3].partition(",")[2]
        self.refused_data(lines, ["line 4"])

    def test_data_of_another_width_name_both_shapes(self):
        self.refused_data([line.partition(",")[2] for line in digits()[:100]], ["63", "(1, 8, 8)"])

    def test_a_missing_file_is_named(self):
        self.refused("data", "train", "-m", MODEL, "--data", "nowhere.csv", says="nowhere.csv")


class Resources(Case):
    def test_missing_gpus_are_answered_with_commands_that_work(self):
        arguments = ["train", "--model", MODEL, "--data", DATA, "--gpus", "4", "--max-steps", "2"]
        for environment in [{}, {"PIPETRAIN_BACKEND_PATH": "."}]:  # as built, and as built without a CUDA toolkit
            # What else was given stays as it is.
            err = self.refused("resource", *arguments, says=["--gpus 4", "CPU:   add --device cpu\n"], environment=environment)
            (offer,) = [shlex.split(line.partition(": ")[2]) for line in err.splitlines() if line.startswith("  ") and "pipetrain" in line]
            self.assertEqual(offer[:2], ["pipetrain", "plan"])
            self.succeed(*offer[1:])
        self.succeed(*arguments, "--device", "cpu")
        self.refused("resource", *arguments, "--device", "cuda", says="give --device cpu instead of --device cuda")

    def test_the_same_command_runs_where_the_environment_says_cpu(self):
        _, err = self.succeed("train", "--model", MODEL, "--data", DATA, "--gpus", "4", "--max-steps", "2",
                              environment={"PIPETRAIN_DEVICE": "cpu"})
        self.assertIn("4 stages", err)

    def test_an_unknown_device_in_the_environment_is_named(self):
        self.refused("usage", "train", "--model", MODEL, environment={"PIPETRAIN_DEVICE": "tpu"},
                     says=["PIPETRAIN_DEVICE", '"tpu"'])

    def test_a_plan_that_does_not_fit_says_what_is_needed(self):
        self.refused("resource", "plan", "--model", MODEL, "--device", "cpu", "--gpus", "2", "--gpu-memory", "10KiB",
                     says="10.0 KiB")


    def test_a_path_that_cannot_be_is_no_bug(self):
        os.symlink("loop", self.folder / "loop")
        long = 300 * "a" + ".onnx"
        run = ["train", "-m", MODEL, "--device", "cpu", "--max-steps", "1"]
        for name in (long, "loop"):
            for command in (["new", "mlp", "-o", name], [*run, "-o", name], [*run, "--run-dir", name], ["export", "--from", "run", "-o", name],
                            ["data", "make", "glyphs", "-o", name], ["tune", MODEL, "--device", "cpu", "-o", name]):
                code, _, err = self.run_program(*command)
                self.assertIn(code, (2, 5), err)
                self.assertIn(name[:100], err)
                self.assertNotIn("bug", err)
            self.refused("data", *run, "--data", name, says=f'cannot read "{name[:100]}')
        # An empty name is none.
        self.succeed(*run, "-o", "", "--metrics", "", "--run-dir", "run", "-q")
        self.assertTrue((self.folder / "run/trained.onnx").exists())


class Divergence(Case):
    def test_an_absurd_learning_rate_ends_the_run_and_names_the_step(self):
        err = self.refused("diverged", "train", "-m", MODEL, "--data", DATA, "--device", "cpu", "--gpus", "2",
                           "--optimizer", "sgd", "--lr", "1e30", "--epochs", "1", says=["not finite", "--lr"])
        self.assertRegex(err, r"step \d+")
        # The rate as it was given, not as a schedule scales it.
        self.refused("diverged", "train", "-m", MODEL, "--data", DATA, "--device", "cpu", "--optimizer", "sgd", "--lr", "1e30",
                     "--lr-schedule", "linear", "--warmup", "2", "--max-steps", "9", says=["a smaller --lr than 1e+30"])


    def test_the_last_update_is_looked_at_too(self):
        run = ["train", "-m", MODEL, "--data", DATA, "--device", "cpu", "--precision", "fp16", "--loss-scale", "1e30", "--max-steps", "1"]
        self.refused("diverged", *run, "--run-dir", "run", says=["is not finite after step 1, the last one", "try: a smaller --lr"])
        self.assertFalse((self.folder / "run/trained.onnx").exists())
        self.succeed(*run, "--on-error", "nan=ignore", "--run-dir", "ignored")


class ClassWeights(Case):
    def test_weights_that_train_nothing_are_refused(self):
        for weights in (["0"] * 10, ["1e-50"] * 10, ["1e39"] + ["1"] * 9):
            self.refused("usage", "train", "-m", MODEL, "--class-weights", ",".join(weights), says="--class-weights")


class Assertion(Case):
    def test_an_untrained_network_does_not_pass(self):
        self.refused("assertion", "eval", MODEL, "--data", DATA, "--assert", "accuracy>=0.97",
                     says=["accuracy>=0.97", "does not hold"])

    def test_what_holds_passes(self):
        self.succeed("eval", MODEL, "--data", DATA, "--assert", "accuracy<0.5")
        self.succeed("eval", MODEL, "--data", DATA, "--assert", "loss>1")
        self.succeed("eval", MODEL, "--data", DATA, "--assert", " accuracy >= 0 ")

    def test_an_unknown_metric_is_a_mistake_in_usage(self):
        self.refused("usage", "eval", MODEL, "--data", DATA, "--assert", "speed>=1", says=["speed", "accuracy"])
        self.refused("usage", "eval", MODEL, "--data", DATA, "--assert", "accuracy", says="--assert")


if __name__ == "__main__":
    unittest.main()
