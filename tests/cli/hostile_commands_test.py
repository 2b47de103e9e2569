"""Small files and commands that are made to harm, or that are wrong in a way that could pass unnoticed. Each ends in time, in
little memory and without a crash, with the right exit code and a message that names the file and the node, field or option."""

import gzip
import io
import json
import pathlib
import unittest

from hostile import MOST_SECONDS, HostileCase, npy_header, npz
from onnx_file import BOOL, INT64, graph, model, node, tensor, value_info
from program import DATA, MODEL

TRAIN = ["--device", "cpu", "--threads", "1", "--max-steps", "1"]

W = tensor("w", [4, 4], [0.1 * i for i in range(16)])
PRODUCT = node("MatMul", ["x", "w"], ["h"], "product")
ONE = tensor("one", [1], [1.0])
ZEROS = tensor("zeros", [4], [0.0] * 4)


def added(nodes, *initializers):
    """A model that adds what the nodes make as "s" to a product."""
    return model([*nodes, PRODUCT, node("Add", ["h", "s"], ["y"], "sum")], initializers=[W, ONE, ZEROS, *initializers])


def summed(nodes, *initializers):
    """The same for the sum of a value "c"."""
    return added([*nodes, node("ReduceSum", ["c"], ["s"], "total", keepdims=0)], *initializers)


def integers(name, *values):
    return tensor(name, [len(values)], values, INT64)


def expanded(shape, *nodes):
    return summed([node("Expand", ["one", "shape"], ["c0" if nodes else "c"], "expand"), *nodes], integers("shape", *shape))


def one_op(op, *inputs, initializers=(), **attributes):
    return model([PRODUCT, node(op, ["h", *inputs], ["y"], "it", **attributes)], initializers=[W, *initializers])


def loop(trips, body_nodes=None):
    body = graph(body_nodes or [node("Add", ["a", "a"], ["b"], "inner"), node("Identity", ["c"], ["d"])],
                 [value_info("i", [], INT64), value_info("c", [], BOOL), value_info("a", [4])],
                 [value_info("d", [], BOOL), value_info("b", [4])])
    return added([node("Loop", ["trips", "", "zeros"], ["s"], "loop", body=("graph", body))], tensor("trips", [], [trips], INT64))


MODELS = {
    # name: content, parts of the message; all are refused as models
    "fold_chain": (expanded([1 << 26], *[node("Add", [f"c{i}", "one"], [f"c{i + 1}" if i < 39 else "c"], f"add{i}") for i in range(40)]),
                   ["constants need more than", "node 'add"]),
    "one_hot": (summed([node("OneHot", ["at", "depth", "values"], ["c"], "hot")], integers("at", 1, 2), integers("depth", 1 << 29),
                       tensor("values", [2], [0.0, 1.0])), ["constants need more than", "node 'hot'"]),
    "one_hot_negative": (summed([node("OneHot", ["at", "depth", "values"], ["c"], "hot")], integers("at", 1, 2), integers("depth", -5),
                                tensor("values", [2], [0.0, 1.0])), ["node 'hot'"]),
    "range": (summed([node("Range", ["a", "b", "d"], ["r"], "range"), node("Cast", ["r"], ["c"], to=1)], tensor("a", [], [0], INT64),
                     tensor("b", [], [1 << 29], INT64), tensor("d", [], [1], INT64)), ["node 'range'"]),
    "constant_of_shape": (summed([node("ConstantOfShape", ["shape"], ["c"], "filled")], integers("shape", 1 << 15, 1 << 14)), ["node 'filled'"]),
    "eye_like": (summed([node("ConstantOfShape", ["shape"], ["z"], "filled"), node("EyeLike", ["z"], ["c"], "eye")],
                        integers("shape", 12000, 12000)), ["node"]),
    "pad_reflect": (one_op("Pad", "pads", initializers=[integers("pads", 0, 0, 0, 1 << 30)], mode="reflect"), ["node 'it'"]),
    "affine_grid": (added([node("Reshape", ["w", "shape"], ["t0"]), node("Slice", ["t0", "begin", "end", "axis"], ["t"]),
                           node("AffineGrid", ["t", "size"], ["g"], "grid"), node("ReduceSum", ["g"], ["s"], keepdims=0)],
                          integers("shape", 1, 2, 8), integers("begin", 0), integers("end", 3), integers("axis", 2),
                          integers("size", 1, 1, 1 << 15, 1 << 15)), ["node 'grid'"]),
    "loop_for_ever": (loop(1 << 62), ["node 'loop'"]),
    "loop_of_nothing": (loop(1 << 62, [node("Identity", ["a"], ["b"]), node("Identity", ["c"], ["d"])]), ["node 'loop'"]),
    "loop_grows": (loop(1 << 40, [node("Concat", ["a", "a"], ["b"], "inner", axis=0), node("Identity", ["c"], ["d"])]), ["node 'loop'"]),
    "dft": (summed([node("ConstantOfShape", ["shape"], ["z"], "filled"), node("DFT", ["z"], ["c"], "dft")], integers("shape", 1, 40000, 1)),
            ["node 'dft'"]),
    "unknown_attribute": (one_op("Softmax", axis=-1, tension=2), ["Softmax has no attribute \"tension\"", "node 'it'"]),
    "attribute_of_another": (model([node("MatMul", ["x", "w"], ["y"], "it", transB=1)], initializers=[W]), ["MatMul has no attribute \"transB\""]),
    "attribute_in_a_loop": (loop(2, [node("Add", ["a", "a"], ["b"], "inner", axis=1), node("Identity", ["c"], ["d"])]),
                            ["Add has no attribute \"axis\""]),
    "attribute_type": (one_op("Softmax", axis=1.5), ["axis has the wrong type", "node 'it'"]),
    "ir_of_the_future": (model([node("Relu", ["x"], ["y"])], ir=99), ["IR version is 99"]),
    "opset_of_the_future": (model([node("Relu", ["x"], ["y"])], opset=99), ["opset is 99"]),
    "controls_in_a_name": (model([node("Nonsense\x1b[2J\xc2\x9b", ["x"], ["y"], "n\u202ename\x07")]), ["Nonsense\\x1b[2J", "n\\u202ename\\x07"]),
    "c1_in_an_input": (model([node("Relu", ["x\u009bq"], ["y"], "it")]), ["x\\u009bq", "node 'it'"]),
    "bytes_in_a_name": (model([node("Relu", ["x"], ["y"], b"\xff\xfe")]), ["UTF-8"]),
    "reshape_overflow": (one_op("Reshape", "shape", initializers=[integers("shape", 1 << 40, 1 << 40)]), ["node 'it'"]),
    "expand_overflow": (one_op("Expand", "shape", initializers=[integers("shape", 1 << 40, 1 << 40, 4)]), ["node 'it'"]),
    "tile_overflow": (one_op("Tile", "repeats", initializers=[integers("repeats", 1 << 40, 1 << 40)]), ["node 'it'"]),
    "resize_overflow": (one_op("Resize", "", "", "sizes", initializers=[integers("sizes", 1 << 40, 1 << 40)]), ["node 'it'"]),
    "gather_outside": (one_op("Gather", "at", initializers=[integers("at", 1 << 40)], axis=1), ["node 'it'"]),
    "slice_by_nothing": (one_op("Slice", "a", "b", "axes", "steps", initializers=[integers("a", 0), integers("b", 2), integers("axes", 1),
                                                                                 integers("steps", 0)]), ["node 'it'"]),
    "axis_of_2_to_62": (one_op("Softmax", axis=1 << 62), ["node 'it'"]),
    "transpose_twice": (one_op("Transpose", perm=[0, 0]), ["node 'it'"]),
    "split_in_billions": (one_op("Split", num_outputs=1 << 40), ["node 'it'"]),
    "cast_to_nothing": (one_op("Cast", to=99), ["node 'it'"]),
    "einsum_of_many": (one_op("Einsum", equation="ab->" + "ab" * 200), ["node 'it'"]),
    "dimension_of_text": (model([node("Relu", ["x"], ["y"])], inputs=[value_info("x", ["batch", -7])]), ["input 'x'"]),
    "rank_of_thousands": (model([PRODUCT, node("Relu", ["h"], ["y"])], initializers=[tensor("w", [1] * 5000, [1.0])]), ["rank"]),
}


def deep(levels):
    return b"[" * levels


def gz(pieces):
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as file:
        for piece in pieces:
            file.write(piece)
    return out.getvalue()


ZEROS_OF_A_GIGABYTE = (b"0,0,0,0,1\n" * 100_000 for _ in range(1_100))
DATA_FILES = {
    # name: content, parts of the message
    "bomb.csv.gz": (lambda: gz(ZEROS_OF_A_GIGABYTE), ["bomb.csv.gz", "inflates to more than", "gunzip"]),
    "bomb.npz": (lambda: npz([("x.npy", [npy_header("<f4", (1 << 28,))] + [bytes(1 << 20)] * 1024)]), ["bomb.npz", "inflates to more than"]),
    "keys.jsonl": (lambda: b"{" + b",".join(b'"k%d":1' % i for i in range(300_000)) + b"}\n", ["keys.jsonl line 1", "more than 256 keys"]),
    "deep.jsonl": (lambda: b'{"x": ' + deep(1_000_000) + b"\n", ["deep.jsonl line 1"]),
    "open.jsonl": (lambda: b'{"x": [1, 2', ["open.jsonl line 1"]),
    "controls.jsonl": (lambda: '{"x\u202e\u009b": null}\n'.encode(), ["controls.jsonl line 1", "x\\u202e\\u009b"]),
    "huge.npy": (lambda: npy_header("<f4", (1 << 60, 1 << 60)), ["huge.npy"]),
    "negative.npy": (lambda: npy_header("<f4", (-1, 4)), ["negative.npy"]),
    "objects.npy": (lambda: npy_header("|O", (4,)) + bytes(32), ["objects.npy"]),
    "binary.csv": (lambda: bytes(range(256)) * 4000, ["binary.csv"]),
    "quote.csv": (lambda: b'"' + b"1,2\n" * 100_000, ["quote.csv"]),
    "nothing.csv": (lambda: b"", ["nothing.csv"]),
    "tail.csv.gz": (lambda: gz([b"1,2,3,4,0\n" * 50]) + b"tail", ["tail.csv.gz", "not compressed data"]),
    "cut.csv.gz": (lambda: gz([b"1,2,3,4,0\n" * 5000])[:-20], ["cut.csv.gz"]),
}

JOINS = [node("Concat", ["one"] * 2, ["c0"], "twice", axis=0),
         *[node("Concat", [f"c{i}"] * 8, [f"c{i + 1}" if i < 11 else "c"], f"join{i}", axis=0) for i in range(12)]]

# A field of plan.json and of profile.json with a value that it cannot have.
WRONG_FIELDS = {
    "--plan": [(("chain_nodes",), "17"), (("micro_batches",), -4), (("devices",), None), (("gap",), []), (("stages", 0, "first_index"), True),
               (("stages", 0, "replicas"), 1e9), (("stages", 0, "recompute"), "no"), (("stages", 1, "seconds"), -1e308)],
    "--profile": [(("threads",), "1"), (("total_seconds",), -1.0), (("update_seconds_per_byte",), None), (("nodes", 0, "flops"), -1e308),
                  (("nodes", 0, "seconds"), "fast"), (("nodes", 1, "output_bytes"), 0.5)],
}

OPTIONS = {
    # name: arguments, parts of the message; all are usage errors
    "all_validation": (["--val-split", "1.0"], ["--val-split"]),
    "large_micro_batch": (["-b", "32", "--micro-batch-size", "1000"], ["--micro-batch-size"]),
    "long_warm_up": (["--warmup", "1e300"], ["--warmup"]),
    "negative_rate": (["--lr", "-1"], ["--lr"]),
    "no_number": (["--lr", "nan"], ["--lr"]),
    "controls": (["--schedule", "1f1b\x1b[31m\u202e"], ["1f1b\\x1b[31m\\u202e"]),
    "batch_of_2_to_63": (["-b", "9223372036854775808"], ["batch-size"]),
}


class HostileCommands(HostileCase):
    def test_models(self):
        for name, (content, parts) in MODELS.items():
            with self.subTest(name):
                path = self.write(f"{name}.onnx", content)
                self.refused_as("model", [*parts, f"{name}.onnx"], "inspect", path)

    def test_data(self):
        for name, (content, parts) in DATA_FILES.items():
            with self.subTest(name):
                self.refused_as("data", parts, "data", "inspect", self.write(name, content()))

    def test_options(self):
        for name, (arguments, parts) in OPTIONS.items():
            with self.subTest(name):
                self.refused_as("usage", parts, "train", MODEL, "--data", DATA, *TRAIN, *arguments)

    def test_constants_that_are_too_large_to_fold(self):
        path = self.write("joins.onnx", summed(JOINS))
        self.refused_as("resource", ["joins.onnx"], "train", path, "--loss", "mse", *TRAIN)

    def test_fields_of_plans_and_profiles(self):
        common = [MODEL, "--device", "cpu", "--threads", "1", "-b", "32"]
        profile, plan = str(self.folder / "profile.json"), str(self.folder / "plan.json")
        self.succeed("profile", *common, "-o", profile)
        self.succeed("plan", *common, "--stages", "2", "--profile", profile, "-o", plan)
        for option, path in (("--plan", plan), ("--profile", profile)):
            for place, value in WRONG_FIELDS[option]:
                with self.subTest(f"{option} {place}"):
                    document = json.loads(pathlib.Path(path).read_text())
                    inner = document
                    for key in place[:-1]:
                        inner = inner[key]
                    inner[place[-1]] = value
                    wrong = self.write("wrong.json", json.dumps(document))
                    self.refused_as("usage", ["wrong.json", place[-1]], "train", *common, "--data", DATA, "--stages", "2", "--max-steps", "1",
                                    option, wrong)

    def test_large_graphs_are_read_in_time(self):
        fan = [node("Mul", ["h", "h"], [f"m{i}"], f"m{i}") for i in range(10_000)]
        code, text = self.finish("inspect", self.write("fan.onnx", model([PRODUCT, *fan, node("Sum", [f"m{i}" for i in range(10_000)], ["y"])],
                                                                         initializers=[W])))
        self.assertEqual(code, 0, text)
        # Ten times as many nodes take not much more than ten times as long, however fast the processor is at the moment.
        most = MOST_SECONDS
        for nodes in (99_000, 990_000):
            with self.subTest(nodes=nodes):
                chain = [node("Relu", [f"c{i}" if i else "h"], [f"c{i + 1}" if i < nodes - 1 else "y"], f"n{i}") for i in range(nodes)]
                code, text = self.finish("inspect", self.write("chain.onnx", model([PRODUCT, *chain], initializers=[W])), most_seconds=most)
                self.assertEqual(code, 0, text)
                most = max(most, 25 * self.seconds)
        code, text = self.finish("train", str(self.folder / "fan.onnx"), "--loss", "mse", *TRAIN)
        self.assertEqual(code, 0, text)


if __name__ == "__main__":
    unittest.main()
