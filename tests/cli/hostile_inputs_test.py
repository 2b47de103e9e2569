"""More inputs that are made to harm: pipes and devices in the place of files, tables, models and options. One line each."""

import os
import pathlib
import shutil
import struct
import unittest
import zlib

from hostile import HostileCase
from onnx_file import BOOL, INT64, graph, model, node, tensor, value_info
from program import DATA, EXIT, MODEL

TRAIN = ["train", MODEL, "--data", DATA, "--limit", "64", "--device", "cpu", "--threads", "1", "--max-steps", "1", "-q"]

W = tensor("w", [4, 4], [0.1 * i for i in range(16)])
PRODUCT = node("MatMul", ["x", "w"], ["h"], "product")


def integers(name, *values):
    return tensor(name, [len(values)], values, INT64)


def floats(name, *values):
    return tensor(name, [len(values)], [float(value) for value in values])


def one(op, *inputs, initializers=(), opset=17, **attributes):
    return model([PRODUCT, node(op, ["h", *inputs], ["y"], "it", **attributes)], initializers=[W, *initializers], opset=opset)


def image(op, *inputs, initializers=(), **attributes):
    """The same for feature maps (batch, 1, 2, 2)."""
    return model([PRODUCT, node("Reshape", ["h", "shape"], ["r"]), node(op, ["r", *inputs], ["y"], "it", **attributes)],
                 initializers=[W, integers("shape", -1, 1, 2, 2), *initializers])


def sequence(*nodes, initializers=()):
    return model([PRODUCT, *nodes], initializers=[W, *initializers])


CONSTRUCT = node("SequenceConstruct", ["h", "h"], ["q"], "construct")
KERNEL = tensor("k", [1, 1, 2, 2], [1.0] * 4)
BRANCH = graph([node("Identity", ["h"], ["b"])], [], [value_info("b", [4])])


def nested_loops(depth, trips):
    """Loops in loops; each multiplies the work."""
    body, name = [node("Add", ["a0", "a0"], ["b0"], "inner")], "a0"
    for level in range(depth):
        inner = graph([*body, node("Identity", [f"c{level}"], [f"d{level}"])],
                      [value_info(f"i{level}", [], INT64), value_info(f"c{level}", [], BOOL), value_info(f"a{level}", [4])],
                      [value_info(f"d{level}", [], BOOL), value_info(f"b{level}", [4])])
        name = f"a{level + 1}" if level < depth - 1 else "h"
        out = f"b{level + 1}" if level < depth - 1 else "y"
        body = [node("Loop", ["trips", "", name], [out], f"loop{level}", body=("graph", inner))]
    return model([PRODUCT, *body], initializers=[W, tensor("trips", [], [trips], INT64)])


# name: content, parts of the message. Refused as models, by inspect.
MODELS = {
    "empty": (b"", []),
    "letters": (b"no model at all", []),
    "no_graph": (b"\x08\x08", ["no graph"]),
    "no_output": (model([PRODUCT], outputs=[], initializers=[W]), ["no outputs"]),
    "own_input": (model([node("Add", ["x", "y"], ["y"], "it")]), ["node 'it'", "needs its own output"]),
    "cycle": (model([node("Add", ["x", "b"], ["a"], "one"), node("Relu", ["a"], ["b"], "two"), node("Relu", ["b"], ["y"])]), ["cycle", "'one'"]),
    "made_twice": (model([node("Relu", ["x"], ["y"], "one"), node("Tanh", ["x"], ["y"], "two")]), ["produced twice", "'two'"]),
    "undefined": (model([node("Add", ["x", "nothing"], ["y"], "it")]), ["node 'it'", "'nothing'"]),
    "short_tensor": (model([PRODUCT, node("Relu", ["h"], ["y"])], initializers=[tensor("w", [4, 4], [1.0] * 15)]), ["'w'"]),
    "tensor_of_2_to_62": (model([PRODUCT, node("Relu", ["h"], ["y"])], initializers=[tensor("w", [1 << 31, 1 << 31], [1.0])]), ["'w'"]),
    "negative_tensor": (model([PRODUCT, node("Relu", ["h"], ["y"])], initializers=[tensor("w", [-4, 4], [1.0] * 16)]), ["'w'"]),
    "type_of_no_tensor": (model([PRODUCT, node("Relu", ["h"], ["y"])], initializers=[tensor("w", [4, 4], bytes(64), 77)]), ["'w'"]),
    "kernel_of_nothing": (image("Conv", "k", initializers=[tensor("k", [1, 1, 0, 0])]), ["node 'it'"]),
    "stride_0": (image("Conv", "k", initializers=[KERNEL], strides=[0, 1]), ["node 'it'"]),
    "group_0": (image("Conv", "k", initializers=[KERNEL], group=0), ["node 'it'"]),
    "dilation_of_2_to_62": (image("Conv", "k", initializers=[KERNEL], dilations=[1 << 62, 1 << 62]), ["node 'it'"]),
    "pads_of_2_to_62": (image("Conv", "k", initializers=[KERNEL], pads=[1 << 62] * 4), ["node 'it'"]),
    "pool_of_nothing": (image("MaxPool", kernel_shape=[0, 0]), ["node 'it'"]),
    "pool_of_2_to_40": (image("AveragePool", kernel_shape=[1 << 40, 1], pads=[1 << 40, 0, 1 << 40, 0]), ["node 'it'"]),
    "two_unknowns": (one("Reshape", "s", initializers=[integers("s", -1, -1)]), ["node 'it'"]),
    "squeeze_of_4": (one("Squeeze", "axes", initializers=[integers("axes", 1)]), ["node 'it'"]),
    "split_negative": (one("Split", "parts", initializers=[integers("parts", -1, 5)], axis=1), ["node 'it'"]),
    "tile_minus_1": (one("Tile", "repeats", initializers=[integers("repeats", 1, -1)]), ["node 'it'"]),
    "top_of_2_to_40": (one("TopK", "k", initializers=[integers("k", 1 << 40)]), ["node 'it'"]),
    "top_minus_1": (one("TopK", "k", initializers=[integers("k", -1)]), ["node 'it'"]),
    "resize_by_nan": (image("Resize", "", "scales", initializers=[floats("scales", 1, 1, "nan", 1)]), ["node 'it'"]),
    "resize_by_infinity": (image("Resize", "", "scales", initializers=[floats("scales", 1, 1, "inf", 1)]), ["node 'it'"]),
    "einsum_of_nonsense": (one("Einsum", equation=",->...ab..."), ["node 'it'"]),
    "einsum_of_nothing": (one("Einsum", equation=""), ["node 'it'"]),
    "product_of_unequal": (one("MatMul", "v", initializers=[tensor("v", [3, 4], [1.0] * 12)]), ["node 'it'"]),
    "norm_of_others": (image("BatchNormalization", "s", "s", "s", "s", initializers=[floats("s", *range(7))]), ["node 'it'"]),
    "hidden_size_0": (model([PRODUCT, node("Reshape", ["h", "shape"], ["r"]), node("LSTM", ["r", "k", "k"], ["", "y"], "it", hidden_size=0)],
                            initializers=[W, integers("shape", 2, -1, 2), tensor("k", [1, 0, 2])]), ["node 'it'"]),
    "at_7_of_2": (sequence(CONSTRUCT, node("SequenceAt", ["q", "seven"], ["y"], "it"), initializers=[tensor("seven", [], [7], INT64)]),
                  ["node 'it'", "index 7 is out of range"]),
    "joined_nothing": (sequence(node("SequenceEmpty", [], ["q"]), node("ConcatFromSequence", ["q"], ["y"], "it", axis=0)), ["node 'it'", "empty"]),
    "joined_along_9": (sequence(CONSTRUCT, node("ConcatFromSequence", ["q"], ["y"], "it", axis=9)), ["node 'it'", "no axis 9"]),
    "split_in_parts_of_0": (sequence(node("SplitToSequence", ["h", "none"], ["q"], "it", axis=1), node("ConcatFromSequence", ["q"], ["y"], axis=1),
                                     initializers=[tensor("none", [], [0], INT64)]), ["node 'it'", "parts of 0"]),
    "a_list_as_output": (model([PRODUCT, node("SequenceConstruct", ["h"], ["y"], "it")], initializers=[W]), ["\"y\" is a sequence"]),
    "branch_by_data": (model([PRODUCT, node("Cast", ["x"], ["c"], to=BOOL), node("If", ["c"], ["y"], "it", then_branch=("graph", BRANCH),
                                                                                else_branch=("graph", BRANCH))], initializers=[W]), ["node 'it'"]),
    "loops_in_loops": (nested_loops(12, 100), ["loop"]),
    "scan_of_nothing": (model([PRODUCT, node("Scan", ["h"], ["y"], "it", body=("graph", b""), num_scan_inputs=1)], initializers=[W]), ["node 'it'"]),
}

# Read in time: what is asked for is large, but not wrong.
LARGE = {
    "concat": sequence(node("SequenceConstruct", ["h"] * 50_000, ["q"], "q"), node("ConcatFromSequence", ["q"], ["y"], "it", axis=1)),
    "dropouts": model([PRODUCT, *[node("Dropout", [f"c{i}" if i else "h"], [f"c{i + 1}" if i < 99_999 else "y"], f"n{i}") for i in range(100_000)]],
                      initializers=[W]),
}


def png(width, height, body):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(body)) + \
        chunk(b"IEND", b"")


ROW = "1,2,3,4"
DATA_FILES = {
    # name: content, parts of the message; refused as data
    "no_label.csv": ("a,b,c,d,label\n" + f"{ROW},cat\n{ROW},dog\n{ROW},\n" * 3, ["no_label.csv line 4", "no label"]),
    "no_number.csv": ("a,b,c,d,label\n" + f"{ROW},1\n{ROW},\n" * 3, ["no_number.csv line 3"]),
    "first_without.csv": ("a,b,c,d,label\n" + f"{ROW},\n{ROW},cat\n" * 3, ["first_without.csv line 2", "no label"]),
    "junk.csv.xz": (b"\xfd7zXZ\x00" + bytes(range(200)), ["junk.csv.xz"]),
    "ragged.csv": (f"{ROW},0\n1,2,3\n", ["ragged.csv line 2"]),
    "minus_5.libsvm": ("1 -5:1\n0 1:1\n", ["minus_5.libsvm line 1"]),
    "other.jsonl": ('{"x": [1, 2], "y": 0}\n{"z": [1, 2], "y": 1}\n', ["other.jsonl line 2"]),
    "nothing.npz": (b"PK\x05\x06" + bytes(18), ["nothing.npz"]),
    "zero_bytes.csv": (b"1,2,3,4,0\n" * 3 + bytes(100_000), ["zero_bytes.csv"]),
    "wide.npy": (b"\x93NUMPY\x01\x00" + struct.pack("<H", 60) + b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 9, ["wide.npy"]),
    "images.idx3-ubyte": (struct.pack(">IIII", 0x803, 1 << 31, 1 << 15, 1 << 15), ["images.idx3-ubyte"]),
    "long.tfrecord": (struct.pack("<QI", 1 << 62, 0) + bytes(20), ["long.tfrecord"]),
    "index.libsvm": ("1 4611686018427387904:1\n0 1:1\n", ["index.libsvm"]),
    "cut.png": (png(65_535, 65_535, bytes(100)), ["cut.png"]),
}

# A pipe that nothing writes to, and /dev/zero, as the value of an option: the kind of error.
OPTIONS_WITH_FILES = {"--sample-weights": "data", "--plan": "usage", "--profile": "usage", "--topology": "usage", "--config": "usage", "--val-data": "data"}

OPTIONS = {
    # name: arguments, parts of the message; all are usage errors
    "rank_of_10_to_9": (["--lora", "1000000000"], ["--lora", "highest rank"]),
    "rank_of_100": (["--lora", "100000"], ["--lora", "highest rank"]),
    "stages_of_10_to_9": (["--gpus", "1000000000"], ["stages", "1000000000"]),
    "threads_of_10_to_9": (["--threads", "1000000000"], ["--threads"]),
    "micro_batches_of_10_to_9": (["--micro-batches", "1000000000"], ["micro-batches"]),
}


class HostileInputs(HostileCase):
    def pipe(self, path):
        os.mkfifo(path)
        return str(path)

    def test_models(self):
        for name, (content, parts) in MODELS.items():
            with self.subTest(name):
                self.refused_as("model", [*parts, f"{name}.onnx"], "inspect", self.write(f"{name}.onnx", content))

    def test_large_models_are_read_in_time(self):
        for name, content in LARGE.items():
            with self.subTest(name):
                code, text = self.finish("inspect", self.write(f"{name}.onnx", content))
                self.assertEqual(code, 0, text)

    def test_data(self):
        for name, (content, parts) in DATA_FILES.items():
            with self.subTest(name):
                self.refused_as("data", parts, "data", "inspect", self.write(name, content))

    def test_a_column_of_many_words(self):
        path = self.write("words.csv", "word,more,label\n" + "".join(f"w{i % 9_000},{i % 7},{i % 3}\n" for i in range(20_000)))
        self.refused_as("data", ["words.csv", "9001 numbers in each of 20000 rows", "--categories"], "data", "inspect", path, "--categories", "one-hot")

    def test_options(self):
        for name, (arguments, parts) in OPTIONS.items():
            with self.subTest(name):
                self.refused_as("usage", parts, *TRAIN, *arguments)

    def test_pipes_and_devices_in_the_place_of_files(self):
        pipe = self.pipe(self.folder / "pipe")
        for option, kind in OPTIONS_WITH_FILES.items():
            for path in (pipe, "/dev/zero"):
                with self.subTest(option, path=path):
                    self.refused_as(kind, [path], *TRAIN, option, path)
        for path in (pipe, "/dev/zero"):
            with self.subTest("report", path=path):
                self.refused_as("data", [path], "report", path, "-o", "page.html")
        for option in ("--metrics", "--trace", "-o"):
            with self.subTest(option):
                self.refused_as("resource", [pipe, "nothing reads from"], *TRAIN, "--overwrite", option, pipe)

    def test_weights_of_samples(self):
        for name, line, said in (("large", "1e308", "too large to be added"), ("negative", "-1", "line 1"), ("word", "much", "line 1"),
                                 ("none", "0", "--sample-weights")):
            with self.subTest(name):
                self.refused_as("data", [said], *TRAIN, "--sample-weights", self.write(f"{name}.txt", f"{line}\n" * 64))

    def test_pipes_in_a_run_folder(self):
        self.succeed(*TRAIN, "--run-dir", "whole", "--overwrite", "--log-to", "mlflow:store")
        for name in ("events.jsonl", "events.1.jsonl", "journal.txt", "stderr.log", "plan.json", "config.toml", "instructions.txt", "classes.txt",
                     "mlflow-run.txt", "status.json"):
            for more in (["--overwrite"], ["--resume=auto"], []):
                with self.subTest(name, more=more):
                    shutil.rmtree(self.folder / "run", ignore_errors=True)
                    shutil.copytree(self.folder / "whole", self.folder / "run")
                    (self.folder / "run" / name).unlink(missing_ok=True)
                    self.pipe(self.folder / "run" / name)
                    code, text = self.finish(*TRAIN, "--run-dir", "run", "--log-to", "mlflow:store", *more)
                    self.assertIn(code, {0, EXIT["usage"], EXIT["data"], EXIT["resource"]}, text)
                    if code:
                        self.assertIn("run", text)

    def test_pipes_beside_what_is_reported(self):
        self.succeed(*TRAIN, "--run-dir", "run")
        for name, codes in (("confusion.csv", {0}), ("plan.json", {EXIT["usage"]}), ("profile.json", {EXIT["usage"]}), ("events.1.jsonl", {0})):
            with self.subTest(name):
                (self.folder / "run" / name).unlink(missing_ok=True)
                self.pipe(self.folder / "run" / name)
                code, text = self.finish("report", "run", "-o", "page.html")
                self.assertIn(code, codes, text)
                (self.folder / "run" / name).unlink()

    def test_pipes_in_the_cache(self):
        plan = [*TRAIN, "--gpus", "2", "--schedule", "auto"]
        self.succeed(*plan)
        files = [path for path in pathlib.Path(self.cache).rglob("*") if path.is_file()]
        self.assertGreater(len(files), 1)
        self.addCleanup(lambda: [path.unlink() for path in files])
        for path in files:
            path.unlink()
            self.pipe(path)
        code, text = self.finish(*plan)
        self.assertEqual(code, 0, text)


if __name__ == "__main__":
    unittest.main()
