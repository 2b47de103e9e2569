"""Which model a run leaves behind, and that a run that goes on and an evaluation do as the first command said."""

import json
import os
import shutil
import unittest

from labels_test import linear
from onnx_file import model, node, tensor, value_info
from program import DATA, MODEL, MODELS, Case, events

SMALL = ["-m", MODEL, "--data", DATA, "--limit", "200", "--device", "cpu", "--threads", "1"]
# The loss falls, then rises: the best model is not the last one.
RISING = [*SMALL, "--val-split", "0.2", "--epochs", "20", "--lr", "0.1", "--patience", "2"]


class Results(Case):
    def content(self, name):
        return (self.folder / name).read_bytes()

    def end_of(self, run):
        return events((self.folder / run / "events.jsonl").read_text())[-1]


class BestModel(Results):
    def test_the_best_model_is_written_and_the_last_one_lies_beside_it(self):
        _, err = self.succeed("train", *RISING, "--run-dir", "run", "-o", "out.onnx")
        end = self.end_of("run")
        best = end["best"]["step"]
        self.assertLess(best, end["steps"])
        self.assertEqual(end["output_step"], best)
        self.assertIn(f"saved    out.onnx: the best model, loss {end['best']['value']:.6g} at step {best}; the last, of step {end['steps']}, is run/last.onnx", err)
        for source, name in [("run/checkpoints/best", "out.onnx"), ("run", "run/last.onnx")]:
            self.succeed("export", "--from", source, "-o", "exported.onnx", "--overwrite", "-q")
            self.assertEqual(self.content("exported.onnx"), self.content(name))
        # The other way round, and where no checkpoints are kept.
        _, err = self.succeed("train", *RISING, "--run-dir", "last", "--save", "last", "--save-every", "never")
        self.assertIn(f"saved    last/trained.onnx: the last model, of step {end['steps']}; the best, ", err)
        self.assertEqual(self.content("last/trained.onnx"), self.content("run/last.onnx"))
        self.assertEqual(self.content("last/best.onnx"), self.content("out.onnx"))
        self.assertEqual(self.end_of("last")["output_step"], end["steps"])

    def test_the_best_and_the_last_model_never_share_a_file(self):
        self.succeed("train", *RISING, "--run-dir", "run", "-q")
        before = self.content("run/last.onnx")
        for save, other in [("best", "last"), ("last", "best")]:
            self.refused("usage", "train", *RISING, "--save", save, "--run-dir", "run", "-o", f"run/{other}.onnx", "--overwrite",
                         says=f'"run/{other}.onnx" is where the run keeps its {other} model; give another --output')
        self.assertEqual(self.content("run/last.onnx"), before)
        self.assertGreater(len(list((self.folder / "run/checkpoints").iterdir())), 0)
        # Without validation there is one model.
        self.succeed("train", *SMALL, "--max-steps", "1", "--run-dir", "run", "-o", "run/last.onnx", "--overwrite", "-q")

    def test_a_model_may_be_replaced_by_its_best_form(self):
        self.succeed("train", *RISING, "--run-dir", "run", "-o", "out.onnx", "-q")
        self.write("m.onnx", (MODELS / "digits-cnn.onnx").read_bytes())
        self.succeed("train", "-m", "m.onnx", *RISING[2:], "--run-dir", "again", "-o", "m.onnx", "--overwrite", "-q")
        self.assertEqual(self.content("m.onnx"), self.content("out.onnx"))
        self.assertEqual(self.content("again/last.onnx"), self.content("run/last.onnx"))

    def test_the_last_model_of_an_earlier_end_does_not_stay(self):
        first = [*SMALL, "--val-split", "0.2", "--lr", "1e-3", "--lr-schedule", "constant"]
        self.succeed("train", *first, "--max-steps", "6", "--run-dir", "run", "-q")
        self.write("run/last.onnx", b"old")
        self.succeed("--resume", "run", "--max-steps", "12", "-q")
        end = self.end_of("run")
        self.assertEqual(end["best"]["step"], end["steps"])
        self.assertFalse((self.folder / "run/last.onnx").exists())

    def test_standard_output_gets_the_best_model_too(self):
        self.succeed("train", *RISING, "--run-dir", "run", "-o", "out.onnx", "-q")
        with self.start("train", *RISING, "--run-dir", "piped", "-o", "-") as process:
            out, err = process.communicate()
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(out, self.content("out.onnx"))
        self.assertIn(b"saved    standard output: the best model, ", err)

    def test_the_best_model_has_its_averages(self):
        self.succeed("train", *RISING, "--ema", "0.5", "--run-dir", "run", "-q")
        self.succeed("export", "--from", "run/checkpoints/best", "-o", "exported.onnx", "-q")
        self.assertEqual(self.content("exported.onnx"), self.content("run/trained.onnx"))

    def test_a_run_that_goes_on_may_have_its_best_model_behind_it(self):
        first = [*SMALL, "--val-split", "0.2", "--lr", "1e-3", "--max-steps", "6"]
        self.succeed("train", *first, "--run-dir", "run", "-q")
        best = self.end_of("run")["best"]["step"]
        before = self.content("run/trained.onnx")
        _, err = self.succeed("--resume", "run", "--max-steps", "9", "--lr", "3", "--lr-schedule", "constant")
        self.assertEqual(self.end_of("run")["output_step"], best)
        self.assertIn(f"at step {best}; the last, of step 9, is run/last.onnx", err)
        self.assertEqual(self.content("run/trained.onnx"), before)

    def test_without_validation_there_is_one_model(self):
        _, err = self.succeed("train", *SMALL, "--max-steps", "2", "--run-dir", "run")
        self.assertIn("saved    run/trained.onnx · run folder: run", err)
        self.assertFalse((self.folder / "run/last.onnx").exists())


class GoingOn(Results):
    def test_a_path_may_stand_behind_resume(self):
        self.succeed("train", *SMALL, "--max-steps", "2", "--run-dir", "run", "-q")
        self.succeed("--resume", "run", "--max-steps", "3", "-q")
        self.succeed("train", "--resume", "run/checkpoints/latest", "--max-steps", "4", "-q")
        self.assertEqual(self.end_of("run")["steps"], 4)
        self.refused("usage", "--resume", "nowhere", says="nowhere")

    def test_one_command_line_begins_and_goes_on_also_with_lists(self):
        self.write("m.onnx", linear(2, 2))
        self.write("t.csv", "a,b,c,y\n" + "".join(f"{i % 3},{i % 5},7,{i % 2}\n" for i in range(40)))
        run = ["train", "-m", "m.onnx", "--data", "t.csv", "--feature-columns", "a,b", "--batch-size", "8", "--lr-schedule", "multistep",
               "--lr-milestones", "3,5", "--device", "cpu", "--run-dir", "run", "--resume=auto", "-q"]
        for steps in (2, 4):
            self.succeed(*run, "--max-steps", str(steps))
            self.assertEqual(self.end_of("run")["steps"], steps)

    def test_a_run_that_goes_on_without_a_step_knows_where_it_is(self):
        def status():
            found = json.loads(self.content("status.json"))
            return [found[name] for name in ("state", "exit_code", "step", "total_steps", "loss")]

        # No epoch ends with step 50, which is validated only where it is the last one.
        self.succeed("train", "-m", MODEL, "--data", DATA, "--device", "cpu", "--val-split", "0.2", "--lr-schedule", "constant", "--max-steps", "100",
                     "--save-every", "50", "--keep", "all", "--run-dir", "run")
        self.succeed("--resume=run", "--status-file", "status.json")  # nothing left to train
        self.assertEqual(status(), ["ok", 0, 100, 100, None])
        _, err = self.succeed("--resume=run/checkpoints/step-000050", "--max-steps", "50", "--status-file", "status.json")
        self.assertRegex(err, r"(?m)^val +50/50 ")
        self.assertEqual(status(), ["ok", 0, 50, 50, None])
        self.assertEqual(json.loads(self.content("status.json"))["first_step"], 51)

    def test_results_go_where_the_first_command_said(self):
        self.succeed("train", *SMALL, "--max-steps", "2", "--run-dir", "run", "-o", "out.onnx", "--log-every", "3", "--tensorboard",
                     "--status-file", "status.json", "-q")
        before = self.content("out.onnx")
        _, err = self.succeed("--resume", "run", "--max-steps", "4")
        self.assertIn("saved    out.onnx · run folder: run", err)
        self.assertNotEqual(self.content("out.onnx"), before)
        self.assertEqual(json.loads(self.content("status.json"))["step"], 4)
        self.assertEqual(len(list((self.folder / "run/tb").iterdir())), 2)
        # What the command line says goes first, and a run of its own begins anew.
        now = self.content("out.onnx")
        self.succeed("--resume", "run", "--max-steps", "5", "-o", "other.onnx", "-q")
        self.succeed("--resume", "run/checkpoints/step-000004", "--max-steps", "6", "--run-dir", "fork", "-q")
        self.assertEqual(self.content("out.onnx"), now)
        self.assertTrue((self.folder / "fork/trained.onnx").exists())

    def test_a_model_older_than_the_last_checkpoint_is_written_again(self):
        run = ["train", *SMALL, "--run-dir", "run", "--resume=auto", "-q"]
        self.succeed(*run, "--max-steps", "2")
        older, times = self.content("run/trained.onnx"), (self.folder / "run/trained.onnx").stat()
        self.succeed(*run, "--max-steps", "4")
        newer = self.content("run/trained.onnx")
        # As if it had been killed between its last checkpoint and its model.
        (self.folder / "run/trained.onnx").write_bytes(older)
        os.utime(self.folder / "run/trained.onnx", ns=(times.st_atime_ns, times.st_mtime_ns))
        self.succeed(*run, "--max-steps", "4")
        self.assertEqual(self.content("run/trained.onnx"), newer)

    def test_fewer_steps_than_are_done_are_refused(self):
        self.succeed("train", *SMALL, "--max-steps", "4", "--run-dir", "run", "-q")
        self.refused("usage", "--resume", "run", "--max-steps", "3", says=["step 4", "3 steps", "--max-steps"])

    def test_a_folder_of_a_run_that_failed_at_once_is_free(self):
        self.refused("diverged", "train", *SMALL, "--optimizer", "sgd", "--lr", "1e30", "--run-dir", "run", "-q")
        self.succeed("train", *SMALL, "--max-steps", "1", "--run-dir", "run", "-q")
        self.assertEqual(self.end_of("run")["steps"], 1)
        self.refused("usage", "train", *SMALL, "--max-steps", "1", "--run-dir", "run", says="--overwrite")
        # One that has ended well with its model elsewhere is not.
        self.succeed("train", "-m", MODEL, "--device", "cpu", "--max-steps", "1", "--run-dir", "done", "-o", "out.onnx", "-q")
        self.refused("usage", "train", *SMALL, "--max-steps", "1", "--run-dir", "done", says="--overwrite")


class Exported(Results):
    def setUp(self):
        super().setUp()
        rows = "".join(f"{'red' if i % 3 else 'blue'},{i % 7},{i % 2}\n" for i in range(40))
        self.write("m.onnx", linear(3, 2))
        self.write("t.csv", "color,size,y\n" + rows)
        self.succeed("train", "-m", "m.onnx", "--data", "t.csv", "--categories", "one-hot", "--scale", "standard", "--device", "cpu",
                     "--batch-size", "8", "--max-steps", "2", "--run-dir", "run", "-q")
        self.succeed("export", "--from", "run", "-o", "whole.onnx")

    def test_a_checkpoint_named_inside_its_folder_keeps_its_table(self):
        whole = self.content("whole.onnx")
        self.assertIn(b"blue", whole)
        checkpoints = self.folder / "run/checkpoints"
        for folder, name in ((checkpoints, "step-000002"), (checkpoints, "step-000002/"), (checkpoints, "latest"), (checkpoints, "."),
                             (checkpoints / "step-000002", "."), (checkpoints / "step-000002", "../step-000002")):
            with self.subTest(folder=folder.name, name=name):
                _, err = self.succeed("export", "--from", name, "-o", self.folder / "out.onnx", "--overwrite", before=lambda: os.chdir(folder))
                self.assertEqual(self.content("out.onnx"), whole)
                self.assertNotIn("warning", err)

    def test_a_checkpoint_copied_out_of_its_run_lacks_its_table(self):
        copied = self.folder / "backup/step-000002"
        shutil.copytree(self.folder / "run/checkpoints/step-000002", copied)
        _, err = self.succeed("export", "--from", "backup/step-000002", "-o", "out.onnx")
        self.assertIn("backup/step-000002 is not in the folder of its run", err)
        self.assertIn(f'copy columns.json of that folder to "{copied.resolve()}"', err)
        shutil.copy(self.folder / "run/columns.json", copied)
        _, err = self.succeed("export", "--from", "backup/step-000002", "-o", "out.onnx", "--overwrite")
        self.assertNotIn("is not in the folder of its run", err)
        self.assertEqual(self.content("out.onnx"), self.content("whole.onnx"))


class Evaluation(Results):
    def test_it_knows_loss_labels_and_scale_from_the_model(self):
        rows = "\n".join(f"{i % 2},{i / 100:.2f},{(i * 7) % 100 / 100:.2f},{(i * 3) % 100 / 100:.2f},{(i * 9) % 50 / 50:.2f}" for i in range(100))
        data = self.write("t.csv", "kind,a,b,c,d\n" + rows + "\n")
        self.succeed("new", "mlp", "--image", "2", "--channels", "1", "--classes", "2", "-o", "mlp.onnx")
        given = ["--label-column", "kind", "--normalize", "max"]
        self.succeed("train", "mlp.onnx", "--data", data, *given, "--device", "cpu", "--max-steps", "3", "-o", "out.onnx", "--run-dir", "run", "-q")
        asked, _ = self.succeed("eval", "out.onnx", "--data", data, *given, "--device", "cpu")
        known, err = self.succeed("eval", "out.onnx", "--data", data, "--device", "cpu")
        self.assertEqual(known, asked)
        self.assertIn("--label-column kind, --normalize 0.99", err)
        # A table to predict for need not have the label.
        bare = self.write("bare.csv", "a,b,c,d\n" + "\n".join(row.partition(",")[2] for row in rows.splitlines()) + "\n")
        with_labels, _ = self.succeed("predict", "out.onnx", "--data", data)
        without, _ = self.succeed("predict", "out.onnx", "--data", bare)
        self.assertEqual(without, with_labels)
        # Nor any cell of it.
        for name, labels in (("none", [""] * 100), ("few", ["1", "", "NA", "?"] * 25)):
            cells = (f"{label},{row.partition(',')[2]}\n" for label, row in zip(labels, rows.splitlines()))
            gaps = self.write("gaps.csv", "kind,a,b,c,d\n" + "".join(cells))
            for more in ([], ["--label-column", "kind"], ["--label-column", "0"]):
                self.assertEqual(self.succeed("predict", "out.onnx", "--data", gaps, *more)[0], with_labels, (name, more))
        # A column that is asked for has to be there.
        self.refused("data", "predict", "out.onnx", "--data", bare, "--label-column", "kind", says='no column "kind"')
        # What is given goes first.
        other, _ = self.succeed("eval", "out.onnx", "--data", data, "--label-column", "kind", "--normalize", "none", "--device", "cpu")
        self.assertNotEqual(other, asked)

    def test_it_knows_the_scale_of_each_input(self):
        sum_of_two = [node("MatMul", ["a", "w"], ["p"]), node("MatMul", ["b", "v"], ["q"]), node("Add", ["p", "q"], ["y"])]
        masked = [node("Mul", ["a", "mask"], ["h"]), node("MatMul", ["h", "w"], ["p"]), node("MatMul", ["a", "v"], ["q"]), node("Add", ["p", "q"], ["y"])]
        weights = [tensor("w", [2, 2], [1.0, 0.5, -1.0, 2.0]), tensor("v", [2, 2], [0.5, 1.0, 2.0, -1.0])]
        rows = [{"a": [i % 10 + 1, 3], "b": [100 * (i % 10 + 1), 7], "y": i % 2} for i in range(40)]
        for nodes, inputs in ((sum_of_two, ["a", "b"]), (masked, ["a", "mask"])):
            self.write("m.onnx", model(nodes, [value_info(name, ["batch", 2]) for name in inputs], [value_info("y", ["batch", 2])], weights))
            kept = [{name: value for name, value in row.items() if name in (*inputs, "y")} for row in rows]
            data = self.write("d.jsonl", "".join(json.dumps(row) + "\n" for row in kept))
            self.succeed("train", "m.onnx", "--data", data, "--normalize", "max", "--device", "cpu", "--max-steps", "2", "--run-dir", "run",
                         "--overwrite", "-q")
            self.succeed("export", "--from", "run", "-o", "exported.onnx", "--overwrite", "-q")
            one = self.write("one.jsonl", json.dumps(kept[0]) + "\n")  # has the largest values of no input
            for trained in ("run/trained.onnx", "exported.onnx"):
                every, err = self.succeed("predict", trained, "--data", data, "--device", "cpu")
                alone, _ = self.succeed("predict", trained, "--data", one, "--device", "cpu")
                for expected, found in zip(events(every)[0]["y"], events(alone)[0]["y"]):
                    self.assertAlmostEqual(expected, found, places=5)
                self.assertIn("--normalize max:", err)

    def test_it_knows_what_became_of_pixels(self):
        # In the order of the folders.
        pixels = [[(37 * i + 61 * k) % 256 for k in range(4)] for i in range(20)]
        for i, row in enumerate(pixels):
            folder = self.folder / "images" / "ab"[i // 10]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{i:02}.pgm").write_bytes(b"P5\n2 2\n255\n" + bytes(row))
        for name, divisor in (("numbers", 1), ("fractions", 255)):
            self.write(f"{name}.csv", "".join(",".join(repr(p / divisor) for p in row) + f",{i // 10}\n" for i, row in enumerate(pixels)))
        self.write("m.onnx", model([node("Flatten", ["x"], ["f"], axis=1), node("MatMul", ["f", "w"], ["y"])], [value_info("x", ["batch", 1, 2, 2])],
                                   [value_info("y", ["batch", 2])], [tensor("w", [4, 2], [0.5, -1.0, 0.25, 2.0, 1.0, -0.5, -0.25, 1.5])]))
        for trained_on, other, given in (("numbers.csv", "images", []), ("images", "numbers.csv", []), ("fractions.csv", "images", []),
                                         ("images", "numbers.csv", ["--normalize", "0.5/0.25"])):
            self.succeed("train", "m.onnx", "--data", trained_on, *given, "--device", "cpu", "--max-steps", "2", "--run-dir", "run", "--overwrite", "-q")
            self.succeed("export", "--from", "run", "-o", "exported.onnx", "--overwrite", "-q")
            self.assertEqual(self.content("run/trained.onnx"), self.content("exported.onnx"))
            own, others = (events(self.succeed("predict", "run/trained.onnx", "--data", data, "--device", "cpu")[0]) for data in (trained_on, other))
            self.assertEqual(len(own), 20)
            for one, two in zip(own, others):
                for expected, found in zip(one["y"], two["y"]):
                    self.assertAlmostEqual(expected, found, delta=1e-4 * max(1, abs(expected)))

    def test_it_knows_the_size_of_images(self):
        def write_images(folder, width, height):
            for i in range(8):
                (self.folder / folder / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
                image = bytes((40 * i + k) % 256 for k in range(width * height))
                (self.folder / folder / "ab"[i % 2] / f"{i}.pgm").write_bytes(b"P5\n%d %d\n255\n" % (width, height) + image)

        write_images("small", 4, 3)
        write_images("large", 10, 8)
        nodes = [node("Relu", ["x"], ["map"]), node("GlobalAveragePool", ["x"], ["mean"]), node("Flatten", ["mean"], ["f"], axis=1),
                 node("MatMul", ["f", "w"], ["logits"])]
        self.write("m.onnx", model(nodes, [value_info("x", ["batch", 1, "height", "width"])],
                                   [value_info("logits", ["batch", 2]), value_info("map", ["batch", 1, "height", "width"])],
                                   [tensor("w", [1, 2], [0.5, -1.0])]))
        self.succeed("train", "m.onnx", "--data", "small", "--device", "cpu", "--max-steps", "2", "--run-dir", "run", "-q")
        self.succeed("export", "--from", "run", "-o", "exported.onnx", "-q")
        self.assertEqual(self.content("run/trained.onnx"), self.content("exported.onnx"))
        for given, height, width in (([], 3, 4), (["--shape", "x=1x1x8x10"], 8, 10)):
            out, err = self.succeed("predict", "run/trained.onnx", "--data", "large", *given, "--device", "cpu")
            self.assertEqual([len(events(out)[0]["map"][0]), len(events(out)[0]["map"][0][0])], [height, width])
            self.assertIn('images of {"x":[1,3,4]}', err)
        known, _ = self.succeed("eval", "run/trained.onnx", "--data", "large", "--device", "cpu")
        asked, _ = self.succeed("eval", "run/trained.onnx", "--data", "large", "--shape", "x=1x1x3x4", "--device", "cpu")
        self.assertEqual(known, asked)
        self.assertEqual(self.succeed("eval", "--follow", "run", "--data", "large", "--device", "cpu")[0], "step 2  " + asked)

    def test_it_knows_the_loss(self):
        data = self.write("t.csv", "".join(f"{i / 60:.2f},{i * 7 % 60 / 60:.2f},0.5,0.25,{i / 7:.3f}\n" for i in range(60)))
        self.write("mlp.onnx", linear(4, 1))
        self.succeed("train", "mlp.onnx", "--data", data, "--loss", "l1", "--device", "cpu", "--max-steps", "3", "-o", "out.onnx", "--run-dir", "run", "-q")
        losses = [self.succeed("eval", "out.onnx", "--data", data, "--device", "cpu", *loss)[0] for loss in ([], ["--loss", "l1"], ["--loss", "mse"])]
        self.assertEqual(losses[0], losses[1])
        self.assertNotEqual(losses[0], losses[2])
        followed, _ = self.succeed("eval", "--follow", "run", "--data", data, "--device", "cpu")
        self.assertEqual(followed, "step 3  " + losses[1])

    def test_it_waits_for_a_run_that_has_not_begun(self):
        process = self.start("eval", "--follow", "later", "--data", DATA, "--device", "cpu")
        self.addCleanup(process.kill)
        line = process.stderr.readline()
        self.assertIn(b"waiting for a run in later", line)
        self.succeed("train", *SMALL, "--max-steps", "2", "--run-dir", "later", "-q")
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)
        self.assertIn(b"step 2", out)


if __name__ == "__main__":
    unittest.main()
