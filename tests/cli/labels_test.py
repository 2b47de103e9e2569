"""Which loss labels choose, and what is a bad sample and what is a mistake of the whole data set."""

import json
import math
import random
import struct
import unittest

import onnx_file
from program import Case, events, field

CPU = ["--device", "cpu", "--threads", "1", "-q"]


def number(key, value):
    """A field that is a number."""
    digits = b""
    while value > 127:
        digits, value = digits + bytes([value & 127 | 128]), value >> 7
    return bytes([key << 3]) + digits + bytes([value]) if key < 16 else bytes([key << 3 & 127 | 128, key >> 4]) + digits + bytes([value])


def value(name, dims):
    shape = b"".join(field(1, number(1, dim) if isinstance(dim, int) else field(2, dim.encode())) for dim in dims)
    return field(1, name.encode()) + field(2, field(1, number(1, 1) + field(2, shape)))


def node(op, inputs, output, *attributes):
    return (b"".join(field(1, name.encode()) for name in inputs) + field(2, output.encode()) + field(4, op.encode()) +
            b"".join(field(5, field(1, name.encode()) + number(3, at) + number(20, 2)) for name, at in attributes))


def linear(inputs, outputs, own_loss=False, beside=False):
    """An ONNX file of one linear layer, with a second output "loss" and an input for the labels if it computes its loss, or with
    another layer beside it that leads to the output "z"."""
    source = random.Random(1)
    weight = struct.pack(f"<{inputs * outputs}f", *(source.gauss(0, 0.5) for _ in range(inputs * outputs)))
    nodes = [node("MatMul", ["x", "w"], "y")]
    takes, gives = [value("x", ["batch", inputs])], [value("y", ["batch", outputs])]
    if own_loss:
        nodes += [node("Sub", ["y", "labels"], "d"), node("Mul", ["d", "d"], "s"), node("ReduceMean", ["s"], "loss", ("keepdims", 0))]
        takes.append(value("labels", ["batch", outputs]))
        gives.append(value("loss", []))
    if beside:
        nodes.append(node("MatMul", ["x", "v"], "z"))
        gives.append(value("z", ["batch", outputs]))
    tensor = number(1, inputs) + number(1, outputs) + number(2, 1) + field(8, b"w") + field(9, weight)
    tensors = field(5, tensor) + (field(5, tensor.replace(field(8, b"w"), field(8, b"v"))) if beside else b"")
    graph = (b"".join(field(1, one) for one in nodes) + field(2, b"g") + tensors + b"".join(field(11, one) for one in takes) +
             b"".join(field(12, one) for one in gives))
    return number(1, 8) + field(7, graph) + field(8, number(2, 17))


class Labelled(Case):
    def setUp(self):
        super().setUp()
        self.source = random.Random(2)

    def rows(self, label, count=60, inputs=4):
        return [{"x": [self.source.gauss(0, 1) for _ in range(inputs)], "y": label(i)} for i in range(count)]

    def task(self, model, rows, *more):
        """What train says of the loss."""
        path = self.write("m.onnx", model)
        data = self.write("d.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        _, err = self.succeed("train", path, "--data", data, "--max-steps", "2", "--run-dir", "run", "--overwrite", *CPU[:-1], *more)
        return next(line for line in err.splitlines() if line.startswith("loss "))


class Labels(Labelled):
    def test_several_labels_of_0_and_1_choose_bce(self):
        self.assertIn("(bce)", self.task(linear(4, 3), self.rows(lambda i: [i % 2, i // 2 % 2, 1])))
        self.assertIn("(bce)", self.task(linear(4, 3), self.rows(lambda i: [float(i % 2), 0.0, 1.0])))
        # One 1 in each row is a class, and other numbers are measured.
        self.assertIn("cross-entropy, 3 classes", self.task(linear(4, 3), self.rows(lambda i: [int(i % 3 == k) for k in range(3)])))
        self.assertIn("(mse)", self.task(linear(4, 3), self.rows(lambda i: [i % 2, 0.5, 1])))
        self.assertIn("cross-entropy, 2 classes", self.task(linear(4, 2), self.rows(lambda i: i % 2)))

    def test_labels_of_0_and_1_on_one_output_choose_bce_as_inspect_does(self):
        self.assertIn("(bce)", self.succeed("inspect", self.write("m.onnx", linear(4, 1)))[0])
        for label in (lambda i: i % 2, lambda i: float(i % 2), lambda i: [i % 2], lambda i: [float(i % 2)]):
            self.assertIn("(bce)", self.task(linear(4, 1), self.rows(label)))
        for label in (lambda i: i / 7, lambda i: [i / 7], lambda i: i % 5):
            self.assertIn("(mse)", self.task(linear(4, 1), self.rows(label)))

    def test_of_two_arrays_that_may_be_labels_one_chooses_the_loss_and_is_the_labels(self):
        rows = self.rows(lambda i: i % 2)
        # The one called "labels", else the first.
        self.assertIn("(bce)", self.task(linear(4, 1), [{"x": row["x"], "label": row["y"], "target": 0.37} for row in rows]))
        self.assertIn("(bce)", self.task(linear(4, 1), [{"x": row["x"], "target": 0.37, "labels": row["y"]} for row in rows]))
        self.assertIn("(mse)", self.task(linear(4, 1), [{"x": row["x"], "target": 0.37, "label": row["y"]} for row in rows]))

    def test_a_model_of_one_sample_whose_output_is_a_scalar(self):
        weights = [0.5, -1.0, 0.25, 2.0]
        nodes = [onnx_file.node("MatMul", ["x", "w"], ["h"]), onnx_file.node("Squeeze", ["h"], ["y"])]
        model = onnx_file.model(nodes, [onnx_file.value_info("x", [1, 4])], [onnx_file.value_info("y", [])], [onnx_file.tensor("w", [4, 1], weights)])
        rows = self.rows(lambda i: i / 7, count=9)
        for more, says in (([], "(mse)"), (["--loss", "l1"], "(l1)"), (["--loss", "output"], "its own loss")):
            self.assertIn(says, self.task(model, rows, "-b", "3", *more))
        predicted = events(self.succeed("predict", "m.onnx", "--data", "d.jsonl", *CPU)[0])
        self.assertEqual(len(predicted), 9)
        for row, found in zip(rows, predicted):
            self.assertAlmostEqual(found["y"], sum(x * w for x, w in zip(row["x"], weights)), places=4)

    def test_numbers_that_are_no_classes_say_which_loss_was_chosen(self):
        self.write("linear.onnx", linear(2, 3))
        self.write("half.csv", "a,b,y\n1,2,1.5\n3,4,2.5\n")
        self.refused("data", "train", "linear.onnx", "--data", "half.csv", *CPU,
                     says=["1 value per sample", "several outputs for one number", "give --loss cross-entropy"])

    def test_an_array_named_as_the_output_is_its_labels(self):
        rows = [{"x": row["x"], "z": i / 7, "w": i % 3} for i, row in enumerate(self.rows(lambda i: i))]
        model = self.write("two.onnx", linear(4, 1, beside=True))
        data = self.write("two.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        _, err = self.succeed("train", model, "--data", data, "--max-steps", "1", "--logits", "z", *CPU[:-1])
        self.assertIn('regression (mse) on output "z"', err)
        self.assertIn('array "w" int64 () is not used', err)
        self.assertIn('note     only output "z" has a loss, not "y": 1 of 2 tensors are not trained; --logits NAME', err)
        # Before and after, the other layer is the same.
        trained = max((self.folder / "runs").glob("*/trained.onnx")).read_bytes()
        weight = linear(4, 1)[linear(4, 1).index(field(8, b"w")):][5:21]
        self.assertEqual(trained.count(weight), 1)

    def test_labels_of_a_size_that_no_network_learns_have_a_note(self):
        def said(label):
            data = self.write("d.jsonl", "".join(json.dumps(row) + "\n" for row in self.rows(label)))
            return self.succeed("train", self.write("m.onnx", linear(4, 1)), "--data", data, "--max-steps", "1", *CPU[:-1])[1]

        self.assertIn("note     the labels have mean 2.03e+05 and standard deviation 1.73e+03: a network learns numbers of this size slowly",
                      said(lambda i: 200000 + 100.0 * i))
        self.assertNotIn("the labels have mean", said(lambda i: i / 7))

    def test_an_output_named_loss_is_the_loss(self):
        self.assertIn("the model computes its own loss", self.task(linear(4, 1, own_loss=True), self.rows(lambda i: i / 7)))
        rows = [{"x": row["x"], "labels": [row["y"]]} for row in self.rows(lambda i: i / 7)]
        self.assertIn("the model computes its own loss", self.task(linear(4, 1, own_loss=True), rows))
        err = self.succeed("train", "m.onnx", "--data", "d.jsonl", "--max-steps", "1", *CPU[:-1])[1]
        self.assertIn('note     output "loss" treated as the mean loss over the samples of a micro-batch', err)

    def test_probabilities_behind_a_squeeze_are_no_logits(self):
        """torch.sigmoid(fc(x)).squeeze(1) with a layer of weights 0: the loss of probabilities of one half is ln 2."""
        nodes = [onnx_file.node("MatMul", ["x", "w"], ["z"]), onnx_file.node("Sigmoid", ["z"], ["p"]),
                 onnx_file.node("Squeeze", ["p", "axes"], ["y"])]
        tensors = [onnx_file.tensor("w", [4, 1], [0.0] * 4), onnx_file.tensor("axes", [1], [1], onnx_file.INT64)]
        model = onnx_file.model(nodes, outputs=[onnx_file.value_info("y", ["batch"])], initializers=tensors)
        self.assertIn("(bce)", self.task(model, self.rows(lambda i: i % 2), "--lr", "0"))
        steps = [e["loss"] for e in events((self.folder / "run/events.jsonl").read_text()) if e["event"] == "step"]
        self.assertAlmostEqual(steps[0], math.log(2), places=5)
        out, _ = self.succeed("predict", "run/trained.onnx", "--data", "d.jsonl", *CPU)
        self.assertEqual(json.loads(out.splitlines()[0])["probabilities"], {"0": 0.5, "1": 0.5})

    def test_labels_for_validation_that_do_not_count_are_refused_before_the_first_step(self):
        model = self.write("m.onnx", linear(4, 3))
        for name, label in [("d", lambda i: i % 3), ("v", lambda i: 2)]:
            self.write(f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in self.rows(label)))
        self.refused("data", "train", model, "--data", "d.jsonl", "--val-data", "v.jsonl", "--ignore-index", "2", "--run-dir", "run", *CPU,
                     says="no label of the data for validation counts; all are --ignore-index 2")
        self.assertFalse((self.folder / "run").exists())

    def test_an_output_like_the_only_array_is_compared_with_it(self):
        rows = [{"x": row["x"]} for row in self.rows(lambda i: i)]
        self.assertIn("(mse)", self.task(linear(4, 4), rows))
        self.assertIn("cross-entropy, 4 classes", self.task(linear(4, 4), self.rows(lambda i: i % 4)))

    def test_a_target_that_is_the_input_has_its_scale(self):
        rows = [{"x": [self.source.randrange(256) for _ in range(4)]} for _ in range(60)]
        plain = self.task(linear(4, 4), rows, "--normalize", "255", "--loss", "mse")
        losses = [e["loss"] for e in events((self.folder / "run/events.jsonl").read_text()) if e["event"] == "step"]
        bound = self.task(linear(4, 4), rows, "--normalize", "255", "--bind", "labels=x")
        self.assertEqual(bound, plain)
        self.assertEqual([e["loss"] for e in events((self.folder / "run/events.jsonl").read_text()) if e["event"] == "step"], losses)

    def test_the_tokens_may_be_their_own_labels(self):
        self.succeed("new", "gpt-nano", "--vocab", "50", "--context", "8", "--width", "16", "--depth", "1", "--heads", "2", "-o", "gpt.onnx")
        model = (self.folder / "gpt.onnx").read_bytes()
        rows = [[self.source.randrange(50) for _ in range(8)] for _ in range(40)]
        losses = []
        for both, more in [(False, []), (True, []), (False, ["--bind", "labels=input_ids"])]:
            content = [{"input_ids": row, **({"labels": row} if both else {})} for row in rows]
            self.assertIn("language model", self.task(model, content, *more))
            losses.append([e["loss"] for e in events((self.folder / "run/events.jsonl").read_text()) if e["event"] == "step"])
        self.assertEqual(losses[0], losses[1])
        self.assertEqual(losses[0], losses[2])


    def test_predictions_have_classes_where_the_loss_is_said(self):
        self.write("m.onnx", linear(4, 3, beside=True))
        self.write("d.jsonl", "".join(json.dumps({"x": row["x"]}) + "\n" for row in self.rows(lambda i: 0, count=3)))
        predict = ["predict", "m.onnx", "--data", "d.jsonl", "--device", "cpu"]
        self.assertNotIn("class", events(self.succeed(*predict)[0])[0])
        for row in events(self.succeed(*predict, "--loss", "cross-entropy", "--logits", "z")[0]):
            self.assertEqual(row["class"], row["z"].index(max(row["z"])))
            self.assertAlmostEqual(sum(row["probabilities"].values()), 1, places=4)

    def test_predictions_read_the_output_that_the_loss_has_read(self):
        nodes = [onnx_file.node("MatMul", ["x", "v"], ["features"]), onnx_file.node("MatMul", ["features", "w"], ["logits"])]
        tensors = [onnx_file.tensor("v", [4, 16], [0.01 * (i % 7) for i in range(64)]), onnx_file.tensor("w", [16, 3], [0.01 * (i % 5) for i in range(48)])]
        outputs = [onnx_file.value_info("features", ["batch", 16]), onnx_file.value_info("logits", ["batch", 3])]
        self.assertIn('"logits"', self.task(onnx_file.model(nodes, outputs=outputs, initializers=tensors), self.rows(lambda i: i % 3)))
        for line in self.succeed("predict", "run/trained.onnx", "--data", "d.jsonl", "--device", "cpu")[0].splitlines():
            row = json.loads(line)
            self.assertEqual(row["class"], row["logits"].index(max(row["logits"])))
            self.assertEqual(len(row["probabilities"]), 3)

    def test_predictions_may_be_classes_alone(self):
        """A trained classifier whose scores somebody has replaced by their ArgMax."""
        weights = [0.1 * (5 * i % 7 - 3) for i in range(12)]
        nodes = [onnx_file.node("MatMul", ["x", "w"], ["scores"]), onnx_file.node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0)]
        model = onnx_file.model(nodes, outputs=[onnx_file.value_info("label", ["batch"], onnx_file.INT64)],
                                initializers=[onnx_file.tensor("w", [4, 3], weights)])
        for loss in ("cross-entropy", "bce"):
            self.write("m.onnx", model + field(14, field(1, b"pipetrain.loss") + field(2, loss.encode())))
            rows = [row["x"] for row in self.rows(lambda i: 0, count=5)]
            self.write("d.jsonl", "".join(json.dumps({"x": x}) + "\n" for x in rows))
            out, _ = self.succeed("predict", "m.onnx", "--data", "d.jsonl", "--device", "cpu")
            scores = [[sum(x[i] * weights[3 * i + c] for i in range(4)) for c in range(3)] for x in rows]
            self.assertEqual(events(out), [{"label": row.index(max(row))} for row in scores])

    def test_labels_are_no_inputs_of_predictions(self):
        nodes = [onnx_file.node("Mul", ["x", "mask"], ["h"]), onnx_file.node("MatMul", ["h", "w"], ["y"])]
        inputs = [onnx_file.value_info(name, ["batch", 2]) for name in ("x", "mask")]
        self.write("masked.onnx", onnx_file.model(nodes, inputs, [onnx_file.value_info("y", ["batch", 2])],
                                                  [onnx_file.tensor("w", [2, 2], [1.0, 2.0, 3.0, 4.0])]))
        self.write("plain.onnx", linear(1, 2))
        for model, labelled, bare in [("masked.onnx", {"x": [1, 2], "labels": [0, 1]}, {"x": [1, 2]}),
                                      ("plain.onnx", {"label": 1, "size": [0.5]}, {"size": [0.5]}),
                                      ("plain.onnx", {"label": None, "size": [0.5]}, {"size": [0.5]})]:
            found = []
            for row in (labelled, bare):
                data = self.write("d.jsonl", json.dumps(row) + "\n")
                found.append(self.succeed("predict", model, "--data", data, "--device", "cpu")[0])
            self.assertEqual(*found)
        self.write("d.jsonl", '{"x": [1, 2], "labels": [0, 1]}\n')
        (row,) = events(self.succeed("predict", "masked.onnx", "--data", "d.jsonl", "--device", "cpu")[0])
        self.assertEqual(row["y"], [7, 10])  # 1·1 + 2·3, 1·2 + 2·4

    def test_predictions_for_samples_are_none_for_positions(self):
        nodes = [onnx_file.node("MatMul", ["x", "w"], ["logits"]), onnx_file.node("Reshape", ["x", "shape"], ["hidden"])]
        tensors = [onnx_file.tensor("w", [4, 3], [0.01 * i for i in range(12)]), onnx_file.tensor("shape", [3], [-1, 2, 2], onnx_file.INT64)]
        outputs = [onnx_file.value_info("logits", ["batch", 3]), onnx_file.value_info("hidden", ["batch", 2, 2])]
        self.task(onnx_file.model(nodes, outputs=outputs, initializers=tensors), self.rows(lambda i: i % 3))
        for line in self.succeed("predict", "run/trained.onnx", "--data", "d.jsonl", "--device", "cpu")[0].splitlines():
            self.assertEqual(json.loads(line)["class"], json.loads(line)["logits"].index(max(json.loads(line)["logits"])))

    def test_a_rank_among_classes_is_of_classifiers(self):
        for outputs, label in ((1, lambda i: i % 2), (2, lambda i: [0.5 * i, 1.0])):
            self.write("d.jsonl", "".join(json.dumps(row) + "\n" for row in self.rows(label)))
            self.refused("usage", "eval", self.write("m.onnx", linear(4, outputs)), "--data", "d.jsonl", "--device", "cpu", "--top-k", "1",
                         says="no top-k accuracy")

    def test_probabilities_are_named_apart_from_outputs(self):
        nodes = [onnx_file.node("MatMul", ["x", "w"], ["logits"]), onnx_file.node("Softmax", ["logits"], ["probabilities"]),
                 onnx_file.node("Relu", ["logits"], ["probability"])]
        outputs = [onnx_file.value_info(name, ["batch", 3]) for name in ("logits", "probabilities", "probability")]
        weight = onnx_file.tensor("w", [4, 3], [0.01 * i for i in range(12)])
        self.write("m.onnx", onnx_file.model(nodes, outputs=outputs, initializers=[weight]))
        self.write("d.jsonl", "".join(json.dumps({"x": row["x"]}) + "\n" for row in self.rows(lambda i: 0, count=3)))
        predict = ["predict", "m.onnx", "--data", "d.jsonl", "--device", "cpu", "--loss", "cross-entropy", "--logits", "logits"]
        for line in self.succeed(*predict)[0].splitlines():
            row = json.loads(line, object_pairs_hook=list)
            self.assertEqual([key for key, _ in row], ["logits", "probabilities", "probability", "class", "probabilities_"])
            values = dict(row)
            for (_, mine), own in zip(values["probabilities_"], values["probabilities"]):
                self.assertAlmostEqual(mine, own, places=5)
        header = self.succeed(*predict, "--to", "csv")[0].partition("\n")[0].split(",")
        self.assertEqual(len(header), len(set(header)), header)
        self.assertEqual(header[-3:], ["probability__0", "probability__1", "probability__2"])


class BadSamples(Labelled):
    def refused_labels(self, label, *more, outputs=3, **says):
        data = self.write("d.jsonl", "".join(json.dumps(row) + "\n" for row in self.rows(label)))
        return self.refused("data", "train", self.write("m.onnx", linear(4, outputs)), "--data", data, "--max-steps", "1", *CPU, *more, **says)

    def test_classes_that_the_model_lacks_are_never_left_out(self):
        for more in [], ["--on-error", "bad-sample=skip"]:
            err = self.refused_labels(lambda i: i % 5, *more, says=["labels 3, 4 out of range 0..2 in 24 of 60 samples", "--num-classes 5"])
            self.assertNotIn("--on-error bad-sample", err)

    def test_rare_classes_are_never_left_out(self):
        # Two of 400 samples are of a fourth class; one is of a class with a name.
        self.rows = lambda label: [{"x": [i, 1, 2, 3], "y": label(i)} for i in range(400)]
        skip = ["--on-error", "bad-sample=skip"]
        self.refused_labels(lambda i: 3 if i in (7, 333) else i % 3, *skip, says=["label 3 out of range 0..2 in 2 of 400 samples", "--num-classes 4"])
        self.refused_labels(lambda i: "owl" if i == 7 else ["cat", "ant", "bee"][i % 3], *skip, says=["in 1 of 400 samples", "--num-classes 4"])

    def test_one_bad_label_is_a_bad_sample(self):
        label = lambda i: 7 if i == 30 else i % 3
        self.refused_labels(label, says=["label 7 out of range 0..2", "--on-error bad-sample=skip"])
        self.assertIn("1 bad sample skipped", "".join(self.succeed("train", "m.onnx", "--data", "d.jsonl", "--max-steps", "1", "--on-error", "bad-sample=skip", *CPU[:-1])))

    def test_a_bad_label_does_not_change_the_loss(self):
        model = self.write("m.onnx", linear(2, 3))
        data = self.write("d.csv", "".join(f"{i},{2 * i},{i % 3}\n" for i in range(30)) + "1,2,oops\n")
        _, err = self.succeed("train", model, "--data", data, "--max-steps", "1", "--on-error", "bad-sample=skip", *CPU[:-1])
        self.assertIn("cross-entropy, 3 classes", err)
        self.assertIn("1 bad sample skipped", err)

    def test_what_all_samples_have_is_no_matter_of_samples(self):
        err = self.refused_labels(lambda i: 2.5, "--loss", "bce", outputs=1, says="60 of 60 samples")
        self.assertNotIn("--on-error bad-sample", err)


    def test_a_round_of_ignored_labels_counts_for_nothing(self):
        self.write("net.onnx", linear(4, 3))
        rows = self.rows(lambda i: -100 if i < 160 else i % 3, count=200)
        self.write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        results = [json.loads(self.succeed("eval", "net.onnx", "--data", "rows.jsonl", "--batch-size", size, "--json", *CPU)[0])
                   for size in ("1", "64")]
        self.assertAlmostEqual(results[0]["loss"], results[1]["loss"], places=5)
        self.assertAlmostEqual(results[0]["accuracy"], results[1]["accuracy"])
        self.write("none.jsonl", "".join(json.dumps(row | {"y": -100}) + "\n" for row in rows))
        self.refused("data", "eval", "net.onnx", "--data", "none.jsonl", *CPU, says="no label of the data for validation counts")


if __name__ == "__main__":
    unittest.main()
