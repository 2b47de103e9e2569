"""Which tensors are trained, as inspect and train say it."""

import math
import random
import struct
import unittest

import onnx_file
from program import DATA, MODEL, Case, events, field


def integer(number, value):
    """A field of a protobuf message that holds an integer below 128."""
    return bytes([number << 3, value])


def value_info(name, *dims):
    shape = b"".join(field(1, field(2, dim.encode()) if isinstance(dim, str) else integer(1, dim)) for dim in dims)
    return field(1, name.encode()) + field(2, field(1, integer(1, 1) + field(2, shape)))


def tensor(name, dims, numbers):
    return field(1, bytes(dims)) + integer(2, 1) + field(8, name.encode()) + field(9, struct.pack(f"<{len(numbers)}f", *numbers))


def node(operator, inputs, output):
    return b"".join(field(1, name.encode()) for name in inputs) + field(2, output.encode()) + field(4, operator.encode())


def product_with(second):
    """x (batch, 4) times the product of two tensors, "first" and one of the given name and two magnitudes."""
    numbers = random.Random(3)
    graph = field(1, node("Mul", ["first", second], "weights")) + field(1, node("MatMul", ["x", "weights"], "y")) + field(2, b"graph")
    graph += field(5, tensor("first", [4, 3], [numbers.gauss(0, 0.5) for _ in range(12)]))
    graph += field(5, tensor(second, [4, 3], [numbers.choice([0.25, -0.5]) for _ in range(12)]))
    graph += field(11, value_info("x", "batch", 4)) + field(12, value_info("y", "batch", 3))
    return integer(1, 8) + field(7, graph) + field(8, field(1, b"") + integer(2, 17))


class TrainedTensors(Case):
    def setUp(self):
        super().setUp()
        (self.folder / "product.onnx").write_bytes(product_with("table"))

    def test_a_constant_in_the_place_of_a_weight_has_one_line(self):
        line = "1 tensor that may be a parameter is taken for a constant and not trained: table; to train it"
        train = ["train", "product.onnx", "--data", "synthetic", "--max-steps", "1", "--overwrite", "--run-dir", "run", "--device", "cpu"]
        out, _ = self.succeed("inspect", "product.onnx")
        self.assertEqual(out.count(line), 1)
        _, err = self.succeed(*train)
        self.assertEqual(err.count(line), 1)
        for arguments in (["--train-only", "first", "--train-only", "table"], ["--freeze", "table"]):
            self.assertNotIn("taken for a constant", self.succeed("inspect", "product.onnx", *arguments)[0])
            self.assertNotIn("taken for a constant", self.succeed(*train, *arguments)[1])
        out, _ = self.succeed("inspect", "product.onnx", "--params", "--train-only", "first", "--train-only", "table")
        self.assertRegex(out, "trained +table +--train-only")

    def test_a_stage_of_frozen_weights_computes_with_them(self):
        """Also in bfloat16, of which it has copies although no update makes any."""
        run = ["train", MODEL, "--data", DATA, "--limit", "96", "--batch-size", "32", "--micro-batches", "4", "--max-steps", "2", "--precision", "bf16",
               "--train-only", "last.*", "--train-only", "head.*", "--device", "cpu", "--threads", "1", "--run-dir", "run", "--overwrite", "-q"]
        trained = []
        for stages in (["--gpus", "1"], ["--split", "last.conv"]):
            self.succeed(*run, *stages)
            trained.append((self.folder / "run/trained.onnx").read_bytes())
        self.assertTrue(trained[0] == trained[1], "the cut changes what is trained")

    def test_the_gradient_goes_through_statistics_that_the_file_computes(self):
        numbers = random.Random(4)
        table = lambda name, *dims: onnx_file.tensor(name, dims, [numbers.gauss(0, 0.5) for _ in range(dims[0] * (dims[1] if len(dims) > 1 else 1))])
        nodes = [onnx_file.node("MatMul", ["x", "w"], ["h"]), onnx_file.node("ReduceMean", ["h"], ["mean"], axes=[0], keepdims=0),
                 onnx_file.node("Sub", ["h", "mean"], ["centered"]), onnx_file.node("Mul", ["centered", "centered"], ["squares"]),
                 onnx_file.node("ReduceMean", ["squares"], ["variance"], axes=[0], keepdims=0),
                 onnx_file.node("BatchNormalization", ["h", "gain", "bias", "mean", "variance"], ["n"]), onnx_file.node("MatMul", ["n", "head"], ["y"])]
        self.write("net.onnx", onnx_file.model(nodes, outputs=[onnx_file.value_info("y", ["batch", 3])],
                                               initializers=[table("w", 4, 5), table("gain", 5), table("bias", 5), table("head", 5, 3)]))
        losses = []
        for mode in ("train", "frozen"):
            self.succeed("train", "net.onnx", "--data", "synthetic", "--max-steps", "8", "--batch-size", "16", "--micro-batches", "1", "--lr", "0.5",
                         "--optimizer", "sgd", "--bn", mode, "--device", "cpu", "--run-dir", "run", "--overwrite")
            losses.append([event["loss"] for event in events((self.folder / "run/events.jsonl").read_text()) if event["event"] == "step"])
        for one, other in zip(*losses):
            self.assertAlmostEqual(one, other, delta=1e-4)

    def test_statistics_of_other_values_are_read_in_every_mode(self):
        rows = [(0.5, -1.0, 0), (1.5, 0.25, 1), (-0.75, 2.0, 0), (0.25, 1.0, 1)]
        self.write("rows.csv", "".join(f"{a},{b},{label}\n" for a, b, label in rows))
        tensors = {"w": [0.5, -0.25, 0.125, 1.0], "w2": [1.0, 0.5, -0.5, 0.75], "gain": [1.25, 0.5], "bias": [0.25, -0.75], "head": [0.5, -1.0, 0.75, 0.25]}
        nodes = [onnx_file.node("MatMul", ["x", "w"], ["h"]), onnx_file.node("MatMul", ["x", "w2"], ["other"]),
                 onnx_file.node("ReduceMean", ["other"], ["mean"], axes=[0], keepdims=0), onnx_file.node("Mul", ["other", "other"], ["squares"]),
                 onnx_file.node("ReduceMean", ["squares"], ["variance"], axes=[0], keepdims=0),
                 onnx_file.node("BatchNormalization", ["h", "gain", "bias", "mean", "variance"], ["n"]), onnx_file.node("MatMul", ["n", "head"], ["y"])]
        self.write("net.onnx", onnx_file.model(nodes, [onnx_file.value_info("x", ["batch", 2])], [onnx_file.value_info("y", ["batch", 2])],
                                               [onnx_file.tensor(name, [2] * (len(numbers) // 2), numbers) for name, numbers in tensors.items()]))

        # The loss of the first step by hand.
        product = lambda row, matrix: [row[0] * matrix[k] + row[1] * matrix[2 + k] for k in range(2)]
        others = [product(row, tensors["w2"]) for row in rows]
        mean = [sum(row[k] for row in others) / len(rows) for k in range(2)]
        variance = [sum(row[k] ** 2 for row in others) / len(rows) for k in range(2)]
        expected = 0
        for row in rows:
            h = product(row, tensors["w"])
            normal = [(h[k] - mean[k]) / math.sqrt(variance[k] + 1e-5) * tensors["gain"][k] + tensors["bias"][k] for k in range(2)]
            logits = product(normal, tensors["head"])
            expected += (math.log(sum(map(math.exp, logits))) - logits[row[2]]) / len(rows)

        losses = []
        for mode in ("train", "as-file", "frozen"):
            self.succeed("train", "net.onnx", "--data", "rows.csv", "--max-steps", "3", "-b", "4", "--micro-batches", "1", "--lr", "0.25", "--optimizer", "sgd",
                         "--loss", "cross-entropy", "--normalize", "none", "--bn", mode, "--device", "cpu", "--run-dir", "run", "--overwrite")
            losses.append([event["loss"] for event in events((self.folder / "run/events.jsonl").read_text()) if event["event"] == "step"])
            self.assertAlmostEqual(losses[-1][0], expected, delta=1e-5, msg=mode)
            for one, other in zip(losses[0], losses[-1]):
                self.assertAlmostEqual(one, other, delta=1e-6, msg=mode)
            self.assertNotIn(struct.pack("<4f", *tensors["w2"]), (self.folder / "run/trained.onnx").read_bytes(), "it is trained")

    def test_further_outputs_of_a_batch_norm_are_read_in_its_stage_alone(self):
        tensors = [onnx_file.tensor(name, dims, [0.1 * (i % 7) - 0.2 for i in range(math.prod(dims))])
                   for name, dims in (("w", [4, 4]), ("gain", [4]), ("bias", [4]), ("mean", [4]), ("head", [4, 4]))]
        tensors.append(onnx_file.tensor("variance", [4], [1.0] * 4))
        for opset, outputs, mode in ((17, ["n", "running", "deviation"], {"training_mode": 1}), (9, ["n", "m", "v", "running", "deviation"], {})):
            nodes = [onnx_file.node("MatMul", ["x", "w"], ["h"], "first"),
                     onnx_file.node("BatchNormalization", ["h", "gain", "bias", "mean", "variance"], outputs, "norm", **mode),
                     onnx_file.node("MatMul", ["n", "head"], ["k"], "second"), onnx_file.node("Mul", ["k", "running"], ["y"], "scaled")]
            self.write(f"{opset}.onnx", onnx_file.model(nodes, initializers=tensors, opset=opset))
        train = ["--data", "synthetic", "--device", "cpu", "--max-steps", "2", "-b", "16", "--run-dir", "run", "--overwrite"]
        self.succeed("train", "17.onnx", *train)
        self.refused("usage", "train", "17.onnx", *train, "--split", "second",
                     says=['"norm" updates running statistics that a node of another stage reads', "--gpus 1"])
        self.refused("model", "train", "9.onnx", *train, says="no gradient passes through the saved mean and variance")


if __name__ == "__main__":
    unittest.main()
