"""Fine-tuning: parts of a network at their own rates, new heads, averages of weights, early stopping; and what of it a run that is resumed keeps."""

import ast
import hashlib
import json
import pathlib
import random
import resource
import struct
import subprocess
import unittest
import zipfile

from program import DATA, MODEL, PROGRAM, Case, digits, events, move_data_out

SMALL = ["-m", MODEL, "--data", DATA, "--limit", "320", "--batch-size", "32", "--device", "cpu", "--threads", "1", "--lr-schedule", "constant"]
SGD = [*SMALL, "--optimizer", "sgd", "--momentum", "0", "--lr", "0.125"]


class Numbers(tuple):
    """The numbers of a tensor. In the message of a failed test they are one short line: unittest would compare the texts of thousands of
    numbers for minutes."""

    def __repr__(self):
        digest = hashlib.sha256(struct.pack(f"<{len(self)}f", *self)).hexdigest()[:12]
        return f"<{len(self)} numbers from {', '.join(f'{number:g}' for number in self[:4])}, SHA-256 {digest}>"


def floats(path):
    """Tensors of a safetensors file by name, as tuples of numbers."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    data = content[8 + length:]
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = Numbers(struct.unpack(f"<{(end - begin) // 4}f", data[begin:end]))
    return tensors


class FineTuning(Case):
    def sha(self, name):
        return hashlib.sha256((self.folder / name).read_bytes()).hexdigest()

    def weights(self, step, run="run", file="weights"):
        return floats(self.folder / run / "checkpoints" / f"step-{step:06}" / f"{file}.safetensors")

    def train(self, *arguments, run="run"):
        return self.succeed("train", *arguments, "--run-dir", run, "--save-every", "1", "--keep", "all", "-q")

    def close(self, a, b, tolerance=1e-6):
        self.assertEqual(len(a), len(b))
        for x, y in zip(a, b):
            self.assertAlmostEqual(x, y, delta=tolerance * max(1, abs(y)))

    def test_adapters_are_merged_written_alone_and_resumed(self):
        lora = [*SGD, "--lora", "rank=3,alpha=6", "--max-steps", "4"]
        self.train(*lora, "--adapter", "whole.safetensors", "-o", "whole.onnx", run="whole")
        self.train(*lora, "--gpus", "2", "-o", "cut.onnx", run="cut")
        self.assertEqual(self.sha("whole.onnx"), self.sha("cut.onnx"))
        # The checkpoint holds adapters and no weight; on resume they go on to the same model.
        trained = self.weights(4, "whole")
        self.assertEqual({name for name in trained if name.endswith("weight") and ".lora_" not in name}, set())
        adapters = floats(self.folder / "whole.safetensors")
        self.assertEqual(set(adapters), {f"base_model.model.{name}" for name in trained if ".lora_" in name})
        self.succeed("train", *lora, "--run-dir", "stopped", "--save-every", "2", "--max-steps", "2", "-q")
        self.succeed("train", "--resume=stopped", "--max-steps", "4", "-o", "resumed.onnx", "-q")
        self.assertEqual(self.sha("whole.onnx"), self.sha("resumed.onnx"))
        self.succeed("export", "whole", "-o", "exported.onnx", "--adapter", "exported.safetensors")
        self.assertEqual(self.sha("whole.onnx"), self.sha("exported.onnx"))
        self.assertEqual(self.sha("whole.safetensors"), self.sha("exported.safetensors"))
        self.succeed("verify", *lora[:-2], "--gpus", "2")
        # Merged weights compute what the adapters did: the validation of the run is that of its model.
        self.train(*lora, "--val-data", DATA, "--save", "last", "-o", "validated.onnx", run="validated")
        loss = [event["loss"] for event in events((self.folder / "validated/events.jsonl").read_text()) if event["event"] == "val"][-1]
        out, _ = self.succeed("eval", "validated.onnx", "--data", DATA, "--limit", "320", "--json", "--device", "cpu")
        self.assertAlmostEqual(json.loads(out)["loss"], loss, delta=2e-5)
        # Also of a checkpoint. Adapters may be written without a model, but no model over the one that they belong to.
        out, err = self.succeed("eval", "--follow", "validated", "--data", DATA, "--limit", "320", "--json", "--device", "cpu")
        self.assertAlmostEqual(json.loads(out.splitlines()[-1])["loss"], loss, delta=2e-5)
        self.assertNotIn("is not part of the model", err)
        self.succeed("export", "whole", "--adapter", "alone.safetensors")
        self.assertEqual(self.sha("whole.safetensors"), self.sha("alone.safetensors"))
        self.refused("usage", "train", "-m", "whole.onnx", *lora[2:], "-o", "whole.onnx", "--overwrite", says="--lora")

    def test_adapters_that_cannot_be(self):
        self.refused("usage", "train", *SGD, "--lora", "4:targets=none*", says=["none*", "inspect --params"])
        self.refused("usage", "train", *SGD, "--lora", "rank=x", says="--lora")
        self.refused("usage", "train", *SGD, "--lora", "rank=2,beta=3", says=["beta", "alpha"])
        self.refused("usage", "train", *SGD, "--adapter", "a.safetensors", says="--lora")

    def test_rates_by_pattern_scale_the_step(self):
        self.train(*SGD, "--max-steps", "1", run="plain")
        self.train(*SGD, "--max-steps", "1", "--lr-scale", "*=0", "--lr-scale", "*weight=0.5", run="scaled")
        self.train(*SGD, "--max-steps", "1", "--lr", "0", run="none")
        before, plain, scaled = self.weights(1, "none"), self.weights(1, "plain"), self.weights(1, "scaled")
        moved = 0
        for name, start in before.items():
            if "running" in name:
                continue
            if name.endswith("weight"):
                self.close(scaled[name], [w + 0.5 * (p - w) for w, p in zip(start, plain[name])])
                moved += scaled[name] != start
            else:
                self.assertEqual(scaled[name], start)
        self.assertGreater(moved, 1)
        self.refused("usage", "train", *SGD, "--lr-scale", "nothing*=1", says=["--lr-scale", "nothing*"])

    def test_adamw_leaves_biases_and_norms_alone_unless_told(self):
        # With a learning rate of 1 / 2 and a decay of 1, the decay alone halves a weight.
        adamw = [*SMALL, "--optimizer", "adamw", "--lr", "0.5", "--max-steps", "1"]
        self.train(*adamw, "--weight-decay", "0", run="none")
        self.train(*adamw, "--weight-decay", "1", run="usual")
        self.train(*adamw, "--weight-decay", "*=1", run="all")
        self.train(*SMALL, "--lr", "0", "--max-steps", "1", run="start")
        start, none = self.weights(1, "start"), self.weights(1, "none")
        for name, w in start.items():
            if "running" in name:
                continue
            norm_or_bias = name.endswith("bias") or "norm" in name
            halved = [n - 0.5 * x for n, x in zip(none[name], w)]
            self.close(self.weights(1, "all")[name], halved)
            self.close(self.weights(1, "usual")[name], none[name] if norm_or_bias else halved)

    def test_an_average_is_what_its_formula_says(self):
        self.train(*SGD, "--max-steps", "4", "--ema", "0.75", "--val-split", "0.1", "-o", "average.onnx")
        average = self.weights(1)
        for step in range(2, 5):
            for name, w in self.weights(step).items():
                average[name] = [a + 0.25 * (x - a) for a, x in zip(average[name], w)]
        kept = self.weights(4, file="optimizer")
        names = [name for name in kept if name.startswith("average/")]
        self.assertGreater(len(names), 3)
        for name in names:
            self.close(kept[name], average[name.removeprefix("average/")])
        # What is written and evaluated is the average; what is trained is not.
        self.succeed("export", "--from", "run", "-o", "exported.onnx")
        self.assertEqual(self.sha("exported.onnx"), self.sha("average.onnx"))
        self.train(*SGD, "--max-steps", "4", "--val-split", "0.1", run="plain")
        self.assertEqual(self.weights(4), self.weights(4, "plain"))
        losses = [[e["loss"] for e in events((self.folder / run / "events.jsonl").read_text()) if e["event"] == "val"]
                  for run in ["run", "plain"]]
        self.assertNotEqual(losses[0], losses[1])

    def test_averages_follow_every_schedule(self):
        for run, words in [("stream", ["--gpus", "2", "--schedule", "pipedream"]),
                           ("double", ["--gpus", "2", "--schedule", "pipedream-2bw"]),
                           ("replicas", ["--replicas", "2,1"]), ("split", ["--gpus", "2", "--schedule", "zb-h1"])]:
            with self.subTest(run):
                self.train(*SGD, "--max-steps", "6", "--ema", "0.75", *words, "-o", f"{run}.onnx", run=run)
                steps = sorted(int(path.name[5:]) for path in (self.folder / run / "checkpoints").glob("step-*"))
                self.assertEqual(steps, list(range(1, 7)))
                average = self.weights(1, run)
                for step in steps[1:]:
                    for name, w in self.weights(step, run).items():
                        average[name] = [a + 0.25 * (x - a) for a, x in zip(average[name], w)]
                kept = self.weights(6, run, file="optimizer")
                names = [name for name in kept if name.startswith("average/")]
                self.assertGreater(len(names), 3)
                for name in names:
                    self.close(kept[name], average[name.removeprefix("average/")])
                self.succeed("export", "--from", run, "-o", f"{run}-exported.onnx")
                self.assertEqual(self.sha(f"{run}-exported.onnx"), self.sha(f"{run}.onnx"))

    def test_samples_are_drawn_by_their_weights(self):
        settings = [*SGD, "--max-steps", "6", "--run-dir", "run", "--overwrite"]
        self.write("one.txt", "0\n" * 6 + "1\n" + "0\n" * 313)
        self.succeed("train", *settings, "--sample-weights", "one.txt")
        steps = [e for e in events((self.folder / "run/events.jsonl").read_text()) if e["event"] == "step"]
        self.assertEqual({step["accuracy"] for step in steps} - {0, 1}, set())  # 32 times the same sample
        self.refused("data", "train", *settings, "--sample-weights", self.write("few.txt", "1\n2\n"), says=["2 weights", "320"])
        self.refused("data", "train", *settings, "--sample-weights", self.write("bad.txt", "1\nmany\n"), says=["line 2", '"many"'])
        self.refused("data", "train", *settings, "--sample-weights", "nowhere.txt", says="nowhere.txt")
        balanced = [*SGD, "--max-steps", "6", "--sample-weights", "balanced"]
        self.train(*balanced, run="whole")
        self.succeed("train", "--resume=whole/checkpoints/step-000004", "--run-dir", "rest", "-q")
        self.assertEqual(self.sha("rest/trained.onnx"), self.sha("whole/trained.onnx"))

    def test_a_warm_up_may_be_in_samples(self):
        rates = []
        for warmup in ["96sa", "3"]:  # of 32 samples a step
            self.train(*SGD, "--max-steps", "5", "--warmup", warmup, "--overwrite")
            rates.append([e["lr"] for e in events((self.folder / "run/events.jsonl").read_text()) if e["event"] == "step"])
        self.assertEqual(rates[0], rates[1])
        self.assertEqual(len(set(rates[0])), 4)

    def test_a_learning_rate_may_go_by_time(self):
        run = [*SMALL, "--epochs", "1000000", "--lr", "0.01", "--lr-schedule", "linear:over=time", "--warmup", "10%", "--val-split", "0.2", "--val-every", "500000ep"]
        # On a busy machine the start alone may take most of a short time.
        for seconds in [2, 10, 50]:
            self.assertIn("--max-time reached", self.succeed("train", *run, "--max-time", f"{seconds}s", "--run-dir", "run", "--overwrite")[1])
            written = events((self.folder / "run/events.jsonl").read_text())
            rates = [e["lr"] for e in written if e["event"] == "step"]
            top = rates.index(max(rates))
            if rates[top] > 0.005:
                break
        self.assertEqual(rates, sorted(rates[:top]) + sorted(rates[top:], reverse=True))
        self.assertTrue(rates[-1] < 0.005 < max(rates), rates)
        # The time is the end of the run, where the model is validated.
        self.assertEqual([e["step"] for e in written if e["event"] == "val"], [len(rates)])
        # That time is over at least, so half of twice as much is.
        self.succeed("train", "--resume=run", "--max-time", f"{2 * seconds}s", "--run-dir", "rest")
        rest = [e["lr"] for e in events((self.folder / "rest/events.jsonl").read_text()) if e["event"] == "step"]
        self.assertLess(max(rest), 0.006)
        self.refused("usage", "train", *run, says="--max-time")
        self.refused("usage", "train", *run, "--max-time", "2s", "--warmup", "100", says=["--warmup", "5%"])

    def test_the_best_may_be_by_the_likeliest_classes(self):
        rows = digits()
        self.write("a.csv", "\n".join(rows[:320]) + "\n")
        self.write("b.csv", "\n".join(rows[320:480]) + "\n")
        self.succeed("train", "-m", MODEL, "--data", "a.csv", "--val-data", "b.csv", "--batch-size", "32", "--device", "cpu", "--epochs",
                     "2", "--best-metric", "top3", "--run-dir", "run", "-o", "t.onnx")
        lines = events((self.folder / "run/events.jsonl").read_text())
        vals = [e for e in lines if e["event"] == "val"]
        self.assertEqual(lines[-1]["best"]["metric"], "val_top3")
        self.assertEqual(lines[-1]["best"]["value"], max(e["top3"] for e in vals))
        out, _ = self.succeed("eval", "t.onnx", "--data", "b.csv", "--device", "cpu", "--top-k", "3", "--json")
        self.assertAlmostEqual(json.loads(out)["top3"], vals[-1]["top3"], places=9)
        self.assertGreaterEqual(vals[-1]["top3"], vals[-1]["accuracy"])

    def test_everything_goes_on_to_the_bit(self):
        settings = [*SMALL, "--optimizer", "adamw", "--ema", "0.9", "--lr-scale", "*bias=3", "--weight-decay", "*weight=0.1",
                    "--label-smoothing", "0.1", "--class-weights", "1,2,1,1,0.5,1,1,1,3,1", "--val-split", "0.2",
                    "--best-metric", "accuracy", "--patience", "30", "--freeze", "block.conv1*", "--gpus", "2"]
        self.train(*settings, "--max-steps", "12", run="whole")
        self.train(*settings, "--max-steps", "12", "--max-time", "1000", run="other")
        self.succeed("train", "--resume=other/checkpoints/step-000005", "--run-dir", "rest", "-q")
        self.assertEqual(self.sha("rest/trained.onnx"), self.sha("whole/trained.onnx"))
        ends = [events((self.folder / run / "events.jsonl").read_text())[-1] for run in ["whole", "rest"]]
        self.assertEqual(ends[0]["best"], ends[1]["best"])
        self.assertEqual(ends[0]["best"]["metric"], "val_accuracy")

    def test_smoothing_and_class_weights_change_training_and_not_what_is_measured(self):
        for words in [["--label-smoothing", "0.2"], ["--class-weights", "5,1,1,1,1,1,1,1,1,1"],
                      ["--loss", "cross-entropy:smoothing=0.2"]]:
            with self.subTest(words):
                self.train(*SGD, "--lr", "0", "--max-steps", "1", "--val-split", "0.2", "--overwrite", *words)
                self.train(*SGD, "--lr", "0", "--max-steps", "1", "--val-split", "0.2", "--overwrite", run="plain")
                kinds = [{e["event"]: e.get("loss") for e in events((self.folder / run / "events.jsonl").read_text())}
                         for run in ["run", "plain"]]
                self.assertNotEqual(kinds[0]["step"], kinds[1]["step"])
                self.assertEqual(kinds[0]["val"], kinds[1]["val"])
        self.refused("usage", "train", *SGD, "--class-weights", "1,2", says=["--class-weights", "2 numbers", "10 classes"])
        self.refused("usage", "train", *SGD, "--label-smoothing", "1", says="--label-smoothing")

    def test_r2_is_the_share_of_the_variance_of_all_outputs(self):
        source = random.Random(4)
        rows = [{"x": [source.random() for _ in range(64)], "y": [source.gauss(c, 1 + c) for c in range(10)]} for _ in range(40)]
        data = self.write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        self.succeed("train", "-m", MODEL, "--data", data, "--epochs", "5", "--lr", "0.01", "--device", "cpu", "--run-dir", "run",
                     "--val-split", "0.2", "--best-metric", "r2", "-q", "-o", "t.onnx")
        self.assertEqual(events((self.folder / "run/events.jsonl").read_text())[-1]["best"]["metric"], "val_r2")
        out, _ = self.succeed("predict", "t.onnx", "--data", data)
        guesses = [row["logits"] for row in events(out)]
        apart = spread = 0
        for c in range(10):
            mean = sum(row["y"][c] for row in rows) / 40
            spread += sum((row["y"][c] - mean) ** 2 for row in rows)
            apart += sum((row["y"][c] - guess[c]) ** 2 for row, guess in zip(rows, guesses))
        out, _ = self.succeed("eval", "t.onnx", "--data", data, "--device", "cpu", "--json")
        self.assertAlmostEqual(json.loads(out)["r2"], 1 - apart / spread, places=5)

    def test_patience_ends_a_run_that_gets_no_better(self):
        out, err = self.succeed("train", *SGD, "--lr", "0", "--epochs", "50", "--val-split", "0.2", "--patience", "2", "--bn", "frozen",
                                "--run-dir", "run")
        end = events((self.folder / "run/events.jsonl").read_text())[-1]
        self.assertEqual((end["status"], end["exit_code"], end["best"]["step"]), ("early_stop", 0, 8))
        self.assertEqual(end["steps"], 24)  # one epoch of 8 steps to be the best, two without a better one
        self.refused("usage", "train", *SGD, "--patience", "2", says=["--patience", "--val-split"])
        self.refused("usage", "train", *SGD, "--val-split", "0.2", "--best-metric", "r2", says=["--best-metric r2", "classifier"])
        self.assertIn("no improvement of loss for 2 validations", err)
        self.assertTrue((self.folder / "run/checkpoints/best").exists())

    def test_validation_may_come_in_steps(self):
        self.train(*SGD, "--max-steps", "7", "--val-split", "0.2", "--val-every", "3")
        steps = [e["step"] for e in events((self.folder / "run/events.jsonl").read_text()) if e["event"] == "val"]
        self.assertEqual(steps, [3, 6, 7])

    def test_a_new_head_keeps_the_rest(self):
        five = [row for row in digits() if int(row.rpartition(",")[2]) < 5]
        data = self.write("five.csv", "\n".join(five) + "\n")
        self.succeed("train", "-m", MODEL, "--data", data, "--num-classes", "5", "--epochs", "6", "--lr", "3e-3",
                     "--val-split", "0.2", "--device", "cpu", "--gpus", "2", "--threads", "1", "--run-dir", "run", "-q",
                     "-o", "five.onnx")
        out, _ = self.succeed("inspect", "five.onnx")
        self.assertIn("5", out)
        self.succeed("eval", "five.onnx", "--data", data, "--device", "cpu", "--assert", "accuracy>=0.95")
        # Without a step the file has fresh numbers in the head and the old ones elsewhere.
        self.train("-m", MODEL, "--data", data, "--num-classes", "5", "--max-steps", "1", "--lr", "0", "--device", "cpu",
                   run="none")
        self.train(*SMALL, "--max-steps", "1", "--lr", "0", run="ten")
        new, old = self.weights(1, "none"), self.weights(1, "ten")
        changed = sorted(name for name in new if len(new[name]) != len(old[name]))
        self.assertEqual(len(changed), 2)  # weight and bias
        for name in new:
            if name not in changed and "running" not in name:
                self.assertEqual(new[name], old[name])
        # The run goes on like any other.
        self.succeed("--resume=none", "--max-steps", "2", "-q")
        self.train("-m", MODEL, "--data", data, "--num-classes", "5", "--max-steps", "3", "--device", "cpu", "--resume=auto",
                   run="none")
        self.refused("usage", "train", "-m", MODEL, "--num-classes", "1", says="--num-classes")

    def test_weights_in_another_file_change_nothing(self):
        (self.folder / "in").mkdir()
        outside = self.folder / "in/net.onnx"
        move_data_out(MODEL, outside)
        small = [*SMALL, "--num-classes", "12", "--gpus", "2", "--max-steps", "3"]
        small[1] = str(outside)
        self.succeed("train", *small, "--dry-run")
        self.assertEqual([p.name for p in self.folder.iterdir()], ["in"])
        self.train(*SMALL, "--num-classes", "12", "--gpus", "2", "--max-steps", "3", run="one")
        self.train(*small, "-o", "trained.onnx", run="two")
        self.assertEqual(self.weights(3, "two"), self.weights(3, "one"))
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["in", "one", "trained.onnx", "trained.onnx.data", "two"])
        # The rest goes on with both files of the run: the original is not needed any more.
        self.succeed("export", "--from", "two", "-o", "exported.onnx")
        outside.unlink()
        self.succeed("--resume=two/checkpoints/step-000002", "--run-dir", "three", "-q")
        for name in ["exported.onnx", "three/trained.onnx"]:
            self.assertEqual(self.sha(f"{name}.data"), self.sha("trained.onnx.data"))
        outs = [self.succeed("eval", name, "--data", DATA, "--device", "cpu", "--json")[0] for name in ["trained.onnx", "one/trained.onnx"]]
        self.assertEqual(json.loads(outs[0])["loss"], json.loads(outs[1])["loss"])
        self.refused("usage", "export", "--from", "two", "-o", "-", says=["--output -", "external weights"])
        self.refused("usage", "train", "-m", "trained.onnx", "--data", DATA, "--max-steps", "1", "--device", "cpu", "-o", "-", says="external weights")

    def test_new_weights_leave_new_adapters_alone(self):
        for run, more in [("drawn", ["--init", "random"]), ("as-new", [])]:
            self.train(*SMALL, "--max-steps", "1", "--lr", "0", "--lora", "2", *more, run=run)
        self.assertEqual(self.weights(1, "drawn"), self.weights(1, "as-new"))

    def test_new_weights_are_a_function_of_the_seed(self):
        for run, seed in [("a", 1), ("b", 1), ("c", 2)]:
            self.train(*SMALL, "--max-steps", "1", "--lr", "0", "--init", "random", "--seed", str(seed), run=run)
        self.train(*SMALL, "--max-steps", "1", "--lr", "0", run="file")
        a, b, c, file = (self.weights(1, run) for run in ["a", "b", "c", "file"])
        self.assertEqual(a, b)
        for name, values in a.items():
            if name.endswith("weight") and len(values) > 100:
                self.assertNotEqual(values, c[name])
                self.assertNotEqual(values, file[name])
                spread = max(abs(v) for v in values)
                self.assertLess(abs(sum(values) / len(values)), spread / 5)  # uniform about zero


class Measuring(Case):
    def setUp(self):
        super().setUp()
        self.rows = digits()[:200]
        self.data = self.write("rows.csv", "\n".join(self.rows) + "\n")
        self.succeed("train", "-m", MODEL, "--data", self.data, "--epochs", "5", "--lr", "3e-3", "--device", "cpu", "-q",
                     "-o", "m.onnx", "--run-dir", "run", "--tensorboard", "--save-every", "1ep")

    def predicted(self):
        out, _ = self.succeed("predict", "m.onnx", "--data", self.data)
        return [next(iter(row.values())) for row in map(json.loads, out.splitlines())]

    def test_predictions_are_what_eval_counts(self):
        rows = self.predicted()
        labels = [int(row.rpartition(",")[2]) for row in self.rows]
        self.assertEqual(len(rows), 200)
        ranks = [sorted(range(10), key=lambda c: (-row[c], c)) for row in rows]
        out, _ = self.succeed("eval", "m.onnx", "--data", self.data, "--device", "cpu", "--json", "--top-k", "3",
                              "--confusion", "confusion.csv")
        report = json.loads(out)
        self.assertAlmostEqual(report["accuracy"], sum(r[0] == y for r, y in zip(ranks, labels)) / 200)
        self.assertAlmostEqual(report["top3"], sum(y in r[:3] for r, y in zip(ranks, labels)) / 200)
        table = [[int(x) for x in line.split(",")[1:]] for line in (self.folder / "confusion.csv").read_text().splitlines()[1:]]
        for label in range(10):
            for guess in range(10):
                self.assertEqual(table[label][guess], sum(r[0] == guess and y == label for r, y in zip(ranks, labels)))
        self.succeed("eval", "m.onnx", "--data", self.data, "--device", "cpu", "--top-k", "3", "--assert", "top3>=0.1")
        self.refused("assertion", "eval", "m.onnx", "--data", self.data, "--device", "cpu", "--assert", "loss<=0")
        exactly = repr(report["accuracy"])
        self.succeed("eval", "m.onnx", "--data", self.data, "--device", "cpu", "--assert", f"accuracy>={exactly}")
        self.refused("assertion", "eval", "m.onnx", "--data", self.data, "--device", "cpu", "--assert", f"accuracy>{exactly}")
        self.refused("usage", "eval", "m.onnx", "--data", self.data, "--device", "cpu", "--assert", "acuracy>=1", says="acuracy")

    def test_predictions_in_every_form(self):
        rows = self.predicted()
        left = pathlib.Path(self.write(".p.csv.999999999-1.tmp", "of a process that was killed"))
        self.succeed("predict", "m.onnx", "--data", self.data, "-o", "p.csv", "--batch-size", "7")
        self.assertFalse(left.exists())
        lines = (self.folder / "p.csv").read_text().splitlines()
        self.assertEqual(len(lines), 201)
        for row, line in zip(rows, lines[1:]):
            for a, b in zip(row, line.split(",")):
                self.assertAlmostEqual(a, float(b), places=4)
        self.succeed("predict", "m.onnx", "--data", self.data, "-o", "p.npz")
        with zipfile.ZipFile(self.folder / "p.npz") as archive:
            self.assertIsNone(archive.testzip())
            content = archive.read(archive.namelist()[0])
        (length,) = struct.unpack("<H", content[8:10])
        self.assertEqual((10 + length) % 64, 0)
        self.assertIn("'shape': (200, 10, )", content[10:10 + length].decode())
        values = struct.unpack("<2000f", content[10 + length:])
        self.assertEqual(list(values[:10]), list(struct.unpack("<10f", struct.pack("<10f", *rows[0]))))

    def test_an_archive_has_what_rows_have_beside_the_outputs(self):
        # Two images and the rows that predict writes of them, then the same as arrays.
        for name, value in (("a/red.ppm", b"\xff\0\0"), ("ü/blau.ppm", b"\0\0\xff")):
            (self.folder / "colors" / name).parent.mkdir(parents=True)
            self.write(f"colors/{name}", b"P6 4 4 255\n" + 16 * value)
        self.succeed("new", "mlp", "--image", "4", "--channels", "3", "--classes", "2", "-o", "net.onnx")
        self.succeed("train", "net.onnx", "--data", "colors", "--device", "cpu", "--max-steps", "2", "-o", "colors.onnx", "-q")
        rows = [json.loads(line) for line in self.succeed("predict", "colors.onnx", "--data", "colors")[0].splitlines()]
        self.succeed("predict", "colors.onnx", "--data", "colors", "-o", "p.npz")
        arrays = {}
        with zipfile.ZipFile(self.folder / "p.npz") as archive:
            for name in archive.namelist():
                content = archive.read(name)
                (length,) = struct.unpack("<H", content[8:10])
                arrays[name.removesuffix(".npy")] = (ast.literal_eval(content[10:10 + length].decode()), content[10 + length:])

        def texts(name):
            header, data = arrays[name]
            width = 4 * int(header["descr"].removeprefix("<U"))
            return [data[i:i + width].decode("utf-32-le").rstrip("\0") for i in range(0, len(data), width)]

        self.assertEqual(texts("file"), [row["file"] for row in rows])
        self.assertEqual(texts("class_name"), [row["class_name"] for row in rows])
        self.assertEqual(list(struct.unpack("<2q", arrays["class"][1])), [row["class"] for row in rows])
        self.assertEqual(arrays["probabilities"][0]["shape"], (2, 2))
        for value, known in zip(struct.unpack("<4f", arrays["probabilities"][1]), [p for row in rows for p in row["probabilities"].values()]):
            self.assertAlmostEqual(value, known, places=5)

    def test_a_batch_is_no_larger_than_the_data(self):
        rows = self.predicted()[:2]
        out, _ = self.succeed("predict", "m.onnx", "--data", self.data, "--limit", "2", "--batch-size", "1000000", "--threads", "2",
                              before=lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)))
        self.assertEqual(len(out.splitlines()), 2)
        for row, line in zip(rows, out.splitlines()):
            for a, b in zip(row, next(iter(json.loads(line).values()))):
                self.assertAlmostEqual(a, b, places=4)

    def test_standard_input_and_output(self):
        def predicted(content, *more):
            return subprocess.run([PROGRAM, "predict", str(self.folder / "m.onnx"), "--data", "-", "--to", "csv", *more],
                                  input=content.encode(), capture_output=True)
        for form in ([], ["--format", "csv"]):
            done = predicted("\n".join(self.rows[:3]), *form)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(done.stdout.decode().splitlines()), 4)
        done = predicted("no table, by no means")
        self.assertEqual(done.returncode, 4)
        self.assertIn(b'"standard input" is a stream of tokens', done.stderr)
        self.assertIn(b"--format", done.stderr)

    def test_every_checkpoint_is_evaluated(self):
        out, _ = self.succeed("eval", "--follow", "run", "--data", self.data, "--device", "cpu", "--json")
        steps = [json.loads(line)["step"] for line in out.splitlines()]
        kept = sorted(int(path.name[5:]) for path in (self.folder / "run/checkpoints").glob("step-*"))
        self.assertEqual(steps, kept)
        self.assertGreaterEqual(len(steps), 3)
        # With all that is asked for, as of a model.
        asked = ["--data", self.data, "--device", "cpu", "--json", "--details", "--top-k", "3"]
        out, _ = self.succeed("eval", "--follow", "run", *asked, "--assert", "f1>=0.01", "--confusion", "followed.csv")
        last = json.loads(out.splitlines()[-1])
        whole = json.loads(self.succeed("eval", "m.onnx", *asked, "--confusion", "whole.csv")[0])
        for key in ("loss", "top3", "f1", "auc", "miou", "classes"):
            self.assertEqual(last[key], whole[key], key)
        self.assertEqual((self.folder / "followed.csv").read_text(), (self.folder / "whole.csv").read_text())
        self.refused("assertion", "eval", "--follow", "run", *asked, "--assert", "f1>=1")

    def test_event_files_are_records_with_sums(self):
        (path,) = (self.folder / "run/tb").iterdir()
        self.assertRegex(path.name, r"^events\.out\.tfevents\.\d+\.")
        content = path.read_bytes()
        table = []
        for n in range(256):
            for _ in range(8):
                n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
            table.append(n)

        def masked(data):
            crc = 0xFFFFFFFF
            for byte in data:
                crc = crc >> 8 ^ table[(crc ^ byte) & 255]
            crc ^= 0xFFFFFFFF
            return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

        at, count = 0, 0
        while at < len(content):
            (length,) = struct.unpack("<Q", content[at:at + 8])
            data = content[at + 12:at + 12 + length]
            self.assertEqual(struct.unpack("<I", content[at + 8:at + 12])[0], masked(content[at:at + 8]))
            self.assertEqual(struct.unpack("<I", content[at + 12 + length:at + 16 + length])[0], masked(data))
            at += 16 + length
            count += 1
        steps = [e for e in events((self.folder / "run/events.jsonl").read_text()) if e["event"] == "step"]
        self.assertEqual(count, len(steps) + 1)
        self.assertIn(b"brain.Event:2", content[:64])
        self.assertIn(b"train/loss", content)


if __name__ == "__main__":
    unittest.main()
