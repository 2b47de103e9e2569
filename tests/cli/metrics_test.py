"""Metrics, learning rate test, logs and pages that several runs share. tests/oracle/check_tables.py compares values with scikit-learn."""

import csv
import io
import json
import os
import random
import re
import unittest

import onnx_file
import program
from program import DATA, MODEL, Case, digits, parse, steps_of

SMALL = ["-m", MODEL, "--data", DATA, "--val-split", "0.2", "--device", "cpu", "--threads", "1"]


class Metrics(Case):
    def test_details_agree_with_the_confusion_matrix(self):
        out, _ = self.succeed("eval", MODEL, "--data", DATA, "--device", "cpu", "--details", "--json", "--confusion", "matrix.csv")
        report = parse(out)
        rows = list(csv.reader(io.StringIO((self.folder / "matrix.csv").read_text())))
        counts = [[int(cell) for cell in row[1:]] for row in rows[1:]]
        f1, iou = [], []
        for i, found in enumerate(report["classes"]):
            labels, predicted = sum(counts[i]), sum(row[i] for row in counts)
            self.assertEqual((found["class"], found["samples"]), (rows[0][i + 1], labels))
            self.assertAlmostEqual(found["recall"], counts[i][i] / labels)
            self.assertAlmostEqual(found["precision"], counts[i][i] / predicted if predicted else 0)
            f1.append(2 * counts[i][i] / (labels + predicted))
            iou.append(counts[i][i] / (labels + predicted - counts[i][i]))
        self.assertAlmostEqual(report["f1"], sum(f1) / 10)
        self.assertAlmostEqual(report["miou"], sum(iou) / 10)
        text, _ = self.succeed("eval", MODEL, "--data", DATA, "--device", "cpu", "--details")
        self.assertRegex(text, r"class +precision +recall +f1 +auc +iou +samples\n0 ")

    def test_long_names_of_classes_are_cut_between_characters(self):
        rows = [row.rpartition(",") for row in digits()]
        self.write("named.csv", "".join(f"{values},{'abcdefghij'[int(label)]}{40 * 'é'}\n" for values, _, label in rows))
        out, _ = self.succeed("eval", MODEL, "--data", "named.csv", "--device", "cpu", "--details")
        self.assertRegex(out, f"\na{27 * 'é'} +[01]\\.")

    def test_pixels_of_a_label_are_scored_together(self):
        # Eight scores and labels, of two samples: 0 is the threshold.
        scores, labels = [[2, -1, 1, 0.5], [-2, 3, 4, -4]], [[1, 0, 0, 0], [1, 1, 1, 0]]

        def scored(nodes, shape, inner, *weights, given=None):
            def nested(values):
                for length in reversed(inner):
                    values = [values[i:i + length] for i in range(0, len(values), length)]
                return values[0]

            self.write("m.onnx", onnx_file.model(nodes, [onnx_file.value_info("x", ["batch", *(given or inner)])],
                                                 [onnx_file.value_info("y", ["batch", *shape])], weights))
            rows = [{"x": [nested(x)] if given else nested(x), "y": nested(y)} for x, y in zip(scores, labels)]
            self.write("d.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
            return parse(self.succeed("eval", "m.onnx", "--data", "d.jsonl", "--loss", "bce", "--device", "cpu", "--details", "--json", *more)[0])

        def check(found, classes, f1, auc, miou):
            self.assertEqual(len(found["classes"]), classes)
            for name, value in (("f1", f1), ("auc", auc), ("miou", miou)):
                self.assertAlmostEqual(found[name], value, places=6)

        def conv(channels, output="y"):
            return (onnx_file.node("Conv", ["x", "w"], [output], kernel_shape=[1, 1]),
                    onnx_file.tensor("w", [channels, channels, 1, 1], [float(i == j) for i in range(channels) for j in range(channels)]))

        # (N, 1, H, W) and (N, H, W) of images: 3 hits, 2 false ones, 1 missed, 2 rightly none.
        more = ["--confusion", "matrix.csv"]
        node, weight = conv(1)
        squeezed, _ = conv(1, "h")
        axes = onnx_file.tensor("axes", [1], [1], onnx_file.INT64)
        for found in (scored([node], [1, 2, 2], [1, 2, 2], weight),
                      scored([squeezed, onnx_file.node("Squeeze", ["h", "axes"], ["y"])], [2, 2], [2, 2], weight, axes, given=[1, 2, 2])):
            check(found, 2, (6 / 9 + 4 / 7) / 2, 13 / 16, (3 / 6 + 2 / 5) / 2)
            self.assertEqual((self.folder / "matrix.csv").read_text(), "label,0,1\n0,2,2\n1,1,3\n")
        # (N, H, W, 1), with channels last.
        last, one = onnx_file.node("MatMul", ["x", "w"], ["y"]), onnx_file.tensor("w", [1, 1], [1.0])
        check(scored([last], [2, 2, 1], [2, 2, 1], one), 2, (6 / 9 + 4 / 7) / 2, 13 / 16, (3 / 6 + 2 / 5) / 2)
        self.assertEqual((self.folder / "matrix.csv").read_text(), "label,0,1\n0,2,2\n1,1,3\n")
        # (N, C, H, W): the first label has 2 hits and 1 missed, the second 1 hit and 2 false ones.
        more = []
        node, weight = conv(2)
        check(scored([node], [2, 1, 2], [2, 1, 2], weight), 2, (4 / 5 + 2 / 4) / 2, (2 / 3 + 1) / 2, (2 / 3 + 1 / 3) / 2)
        # (N, T, C): 2 hits, 1 false and 1 missed; 1 hit and 1 false.
        node, weight = onnx_file.node("MatMul", ["x", "w"], ["y"]), onnx_file.tensor("w", [2, 2], [1.0, 0.0, 0.0, 1.0])
        check(scored([node], [2, 2], [2, 2], weight), 2, (4 / 6 + 2 / 3) / 2, (2 / 3 + 1) / 2, (2 / 4 + 1 / 2) / 2)
        # Likewise (N, H, W, C), as Keras has images.
        _, weight = conv(2)
        moved = [onnx_file.node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]), onnx_file.node("Conv", ["t", "w"], ["h"], kernel_shape=[1, 1]),
                 onnx_file.node("Transpose", ["h"], ["b"], perm=[0, 2, 3, 1]), onnx_file.node("Sigmoid", ["b"], ["y"])]
        check(scored(moved, [2, 1, 2], [2, 1, 2], weight), 2, (4 / 6 + 2 / 3) / 2, (2 / 3 + 1) / 2, (2 / 4 + 1 / 2) / 2)

    def test_a_validation_without_a_set_label_is_no_error(self):
        self.write("m.onnx", onnx_file.model([onnx_file.node("Gemm", ["x", "w", "b"], ["y"])], outputs=[onnx_file.value_info("y", ["batch", 2])],
                                             initializers=[onnx_file.tensor("w", [4, 2], [0.0] * 8), onnx_file.tensor("b", [2], [-9.0, -9.0])]))
        self.write("d.jsonl", '{"x": [0, 0, 0, 0], "y": [0, 0]}\n' * 16)
        for metric in ("f1", "miou"):
            _, err = self.succeed("train", "m.onnx", "--data", "d.jsonl", "--val-split", "0.5", "--loss", "bce", "--best-metric", metric, "--max-steps", "1",
                                  "--device", "cpu", "--run-dir", "run", "--overwrite")
            self.assertIn(f"has no {metric}: no label is set or predicted", err)

    def test_metrics_are_of_the_samples_that_a_fixed_batch_evaluates(self):
        source = random.Random(3)
        weights = onnx_file.tensor("w", [4, 3], [source.gauss(0, 1) for _ in range(12)])
        self.write("fixed.onnx", onnx_file.model([onnx_file.node("MatMul", ["x", "w"], ["y"])], [onnx_file.value_info("x", [8, 4])],
                                                 [onnx_file.value_info("y", [8, 3])], [weights]))
        self.write("d.jsonl", "".join(json.dumps({"x": [source.gauss(0, 1) for _ in range(4)], "y": i % 3}) + "\n" for i in range(23)))
        whole, two = ({**parse(self.succeed("eval", "fixed.onnx", "--data", "d.jsonl", "-b", "8", "--device", "cpu", "--details", "--json",
                                            "--top-k", "1", *limit)[0]), "seconds": 0} for limit in ([], ["--limit", "16"]))
        self.assertEqual(whole, two)
        self.assertEqual(sum(found["samples"] for found in whole["classes"]), whole["samples"])
        self.assertEqual(whole["top1"], whole["accuracy"])
        # What is left out is said.
        since = "since the model was exported with a fixed batch of 8 samples"
        _, err = self.succeed("eval", "fixed.onnx", "--data", "d.jsonl", "-b", "8", "--device", "cpu")
        self.assertIn(f"evaluations leave out 7 of 23 samples, {since}", err)
        train = ["train", "fixed.onnx", "--data", "d.jsonl", "-b", "16", "--device", "cpu", "--max-steps", "1", "--run-dir", "run", "--overwrite"]
        for more, says in (([], True), (["--drop-last"], False), (["--limit", "16"], False)):
            _, err = self.succeed(*train, *more)
            self.assertEqual(f"each epoch leaves out 7 of 23 samples, which fill no batch of 16, {since}" in err, says, more)
        self.assertIn(f"evaluations leave out 2 of 10 samples, {since}", self.succeed("train", *train[1:3], "d.jsonl", "-b", "8", *train[6:], "--val-split", "10")[1])

    def test_what_a_task_lacks_is_said_before_the_evaluation(self):
        err = self.refused("usage", "eval", MODEL, "--data", DATA, "--device", "cpu", "--assert", "mae<=1", says=["classifier", "has no mae"])
        self.assertNotIn("r2", err)
        self.refused("usage", "train", *SMALL, "--best-metric", "r2", "--max-steps", "1", says="--best-metric r2 is not available")
        self.refused("usage", "train", "-m", MODEL, "--data", DATA, "--device", "cpu", "--best-metric", "accuracy", "--max-steps", "1",
                     says=["--best-metric accuracy needs validation data", "--val-split"])
        self.refused("usage", "train", *SMALL, "--eval-every", "0", "--best-metric", "accuracy", "--max-steps", "1",
                     says=["--best-metric accuracy needs validations, which --val-every never turns off"])

    def test_top_k_needs_no_confusion_matrix(self):
        self.succeed("new", "gpt", "--depth", "1", "--width", "16", "--heads", "1", "--vocab", "17000", "--context", "8", "-o", "gpt.onnx")
        source = random.Random(4)
        self.write("t.bin", b"".join(source.randrange(17000).to_bytes(2, "little") for _ in range(400)))
        model = ["gpt.onnx", "--data", "t.bin", "--device", "cpu"]
        self.succeed("train", "-m", *model, "-b", "8", "--val-split", "0.2", "--max-steps", "2", "--val-every", "1", "--best-metric", "top5",
                              "--run-dir", "run")
        report = parse(self.succeed("eval", *model, "--top-k", "3", "--json")[0])
        self.assertTrue(0 <= report["top3"] <= 1)
        self.refused("usage", "eval", *model, "--confusion", "matrix.csv", says="17000 classes are too many for a confusion matrix")

    def test_the_best_model_may_be_the_one_of_the_best_f1(self):
        self.succeed("train", *SMALL, "--best-metric", "f1", "--epochs", "2", "--run-dir", "run", "-q")
        found = [parse(line) for line in (self.folder / "run/events.jsonl").read_text().splitlines()]
        validations = [event for event in found if event["event"] == "val"]
        self.assertEqual(len(validations), 2)
        self.assertTrue(all(0 < event["f1"] <= 1 and 0 < event["auc"] <= 1 for event in validations))


class Logs(Case):
    def test_mlflow_has_parameters_and_metrics(self):
        self.succeed("train", *SMALL, "--max-steps", "3", "--run-dir", "run", "--log-to", "mlflow:store", "--log-to", "tensorboard", "-q")
        self.assertEqual(len(list((self.folder / "run/tb").iterdir())), 1)
        (run,) = [path for path in (self.folder / "store/0").iterdir() if path.is_dir()]
        meta = (run / "meta.yaml").read_text()
        self.assertIn("status: 3\n", meta)
        self.assertIn(f"run_id: {run.name}\n", meta)
        lines = (run / "metrics/train/loss").read_text().splitlines()
        self.assertEqual([line.split()[2] for line in lines], ["1", "2", "3"])
        self.assertTrue((run / "params/lr").exists())
        # A resumed run goes on in its place.
        self.succeed("--resume", "run", "--max-steps", "5", "-q")
        begun = r"\nstart_time: [0-9]+\n"
        self.assertEqual(re.findall(begun, (run / "meta.yaml").read_text()), re.findall(begun, meta))
        self.assertIn("start_time: ", meta)
        self.assertEqual(len((run / "metrics/train/loss").read_text().splitlines()), 5)
        self.refused("usage", "train", *SMALL, "--log-to", "paper", says="tensorboard or mlflow:DIR")
        self.write("file", "")
        self.refused("resource", "train", *SMALL, "--max-steps", "1", "--log-to", "tensorboard:file/tb",
                     says=['cannot create the folder "file/tb": Not a directory'])

    def test_mlflow_does_not_end_the_training(self):
        train = ["train", *SMALL, "--run-dir", "run", "--log-to", "mlflow:store"]
        self.succeed(*train, "--max-steps", "2", "-q")
        (first,) = [path for path in (self.folder / "store/0").iterdir() if path.is_dir()]
        (first / "metrics/train/loss").unlink()
        (first / "metrics/train/loss").mkdir()
        _, err = self.succeed("--resume", "run", "--max-steps", "4")
        self.assertEqual(err.count("--log-to mlflow"), 1, err)
        self.assertIn("training goes on", err)
        # What replaces a run is another one.
        self.succeed(*train, "--max-steps", "2", "-q", "--overwrite")
        (second,) = [path for path in (self.folder / "store/0").iterdir() if path.is_dir() and path != first]
        self.assertEqual(len((second / "metrics/train/loss").read_text().splitlines()), 2)

    def test_the_earlier_name_still_means_tensorboard(self):
        self.write("c.toml", "tensorboard = true\n")
        for given, folder in [(["--tensorboard"], "a"), (["--config", "c.toml"], "b")]:
            self.succeed("train", *SMALL, "--max-steps", "1", "--run-dir", folder, *given, "-q")
            self.assertTrue((self.folder / folder / "tb").is_dir(), given)
        self.succeed("train", *SMALL, "--max-steps", "1", "--run-dir", "c", "--no-tensorboard", "-q")
        self.assertFalse((self.folder / "c/tb").exists())


class Rates(Case):
    def test_a_rate_is_found(self):
        out, _ = self.succeed("train", *SMALL[:4], "--device", "cpu", "--lr", "find", "-o", "curve.svg", "-q")
        rate = float(re.search(r"^lr ([0-9.e-]+):", out, re.MULTILINE)[1])
        self.assertTrue(1e-6 < rate < 1, out)
        self.assertGreater(out.count("*"), 20)
        self.assertTrue(all(len(line) <= 80 for line in out.splitlines()), out)
        self.assertIn("<svg", (self.folder / "curve.svg").read_text())
        self.assertFalse((self.folder / "runs").exists())
        self.refused("usage", "train", *SMALL, "--lr", "find", "-o", "m.onnx", says=".svg")

    def test_a_rate_is_found_under_a_schedule_that_is_chosen(self):
        out, _ = self.succeed("train", *SMALL[:4], "--device", "cpu", "--threads", "1", "--gpus", "2", "--schedule", "auto", "--lr", "find", "-q")
        self.assertRegex(out, r"(?m)^lr [0-9.e-]+: the loss falls fastest there")


class Pages(Case):
    def test_runs_stand_side_by_side(self):
        for name, rate in [("one", "1e-3"), ("two", "5e-3")]:
            self.succeed("train", *SMALL, "--max-steps", "30", "--lr", rate, "--run-dir", name, "-q")
        out, _ = self.succeed("report", "one", "two", "-o", "-")
        for part in ["<td>one", "<td>two", "--lr<td>0.001<td>0.005", "best validation loss"]:
            self.assertIn(part, out)
        self.succeed("eval", "one/trained.onnx", "--data", DATA, "--device", "cpu", "--confusion", "one/confusion.csv")
        out, _ = self.succeed("report", "one", "-o", "-")
        self.assertIn("Confusion matrix", out)

    def test_steps_of_fewer_samples_than_a_batch_have_no_prediction(self):
        for batch, has in (("64", False), ("32", True)):
            self.succeed("train", *SMALL[:4], "--limit", "40", "--batch-size", batch, "--device", "cpu", "--threads", "1", "--max-steps", "2",
                         "--run-dir", batch, "-q")
            (plan,) = [event for event in map(parse, (self.folder / batch / "events.jsonl").read_text().splitlines()) if event["event"] == "plan"]
            self.assertEqual("predicted" in plan, has)
            missing = '<span class="soft">predicted step</span><b>–</b>'
            (self.assertNotIn if has else self.assertIn)(missing, self.succeed("report", batch, "-o", "-")[0])

    def test_why_a_step_differs_is_in_lines(self):
        self.succeed("train", *SMALL, "--gpus", "2", "--max-steps", "12", "--trace", "trace.json", "--run-dir", "run", "-q")
        out, _ = self.succeed("report", "run", "-o", "-")
        self.assertRegex(out, r"<pre>predicted step [^\n]+\nbubble [^\n]+\n")

    def test_a_trace_is_found_from_another_folder_or_missed(self):
        self.succeed("train", *SMALL, "--gpus", "2", "--max-steps", "12", "--trace", "trace.json", "--run-dir", "run", "-q")
        (self.folder / "other").mkdir()
        report = ["report", "../run", "-o", "-"]
        out, err = self.succeed(*report, before=lambda: os.chdir(self.folder / "other"))
        self.assertIn("A step, predicted and measured", out)
        self.assertEqual(err, "")
        (self.folder / "trace.json").unlink()
        out, err = self.succeed(*report, before=lambda: os.chdir(self.folder / "other"))
        self.assertNotIn("A step, predicted and measured", out)
        self.assertRegex(err, 'without its trace: there is no file "/[^"]*trace.json"')

    def test_a_trace_that_a_later_run_has_replaced_is_missed(self):
        for run in ("one", "two"):
            self.succeed("train", *SMALL, "--gpus", "2", "--max-steps", "12", "--trace", "trace.json", "--run-dir", run, "-q")
        out, err = self.succeed("report", "one", "-o", "-")
        self.assertNotIn("A step, predicted and measured", out)
        self.assertRegex(err, 'without its trace: "/[^"]*trace.json" is of run two')
        out, err = self.succeed("report", "two", "-o", "-")
        self.assertIn("A step, predicted and measured", out)
        self.assertEqual(err, "")

    def test_busy_times_are_those_of_devices_where_stages_share_one(self):
        self.succeed("train", *SMALL, "--gpus", "2", "--schedule", "interleaved-1f1b", "--max-steps", "3", "--run-dir", "run", "-q")
        (plan,) = [event for event in map(parse, (self.folder / "run/events.jsonl").read_text().splitlines()) if event["event"] == "plan"]
        self.assertEqual([stage["devices"] for stage in plan["stages"]], [[0], [1], [0], [1]])
        out, _ = self.succeed("report", "run", "-o", "-")
        self.assertRegex(out, r"Busy: device 0 [\d.]+ %, device 1 [\d.]+ %<")

    def test_a_trace_that_is_still_written_is_not_missed(self):
        self.succeed("train", *SMALL, "--max-steps", "8", "--trace", "trace.json", "--run-dir", "one", "-q")
        run = self.start("train", *SMALL, "--max-steps", "1000000", "--trace", "trace.json", "--run-dir", "run", "-q")
        self.addCleanup(run.communicate)
        self.addCleanup(run.kill)
        self.wait_for(lambda: steps_of(self.folder / "run") or run.poll() is not None)
        self.assertEqual(self.succeed("report", "run", "-o", "-")[1], "")
        run.kill()
        run.wait()
        self.assertRegex(self.succeed("report", "run", "-o", "-")[1], 'without its trace: "/[^"]*trace.json" is of run one')


if __name__ == "__main__":
    unittest.main()
