"""More inputs that are made to harm: pipes and devices in the place of files, tables, models and options. One line each."""

import os
import pathlib
import resource
import shutil
import struct
import unittest
import zlib

from hostile import HostileCase, npy_header, npz
from onnx_file import BOOL, INT64, attribute, graph, model, node, tensor, value_info, varint
from program import DATA, EXIT, MODEL, field

TRAIN = ["train", MODEL, "--data", DATA, "--limit", "64", "--device", "cpu", "--threads", "1", "--max-steps", "1", "-q"]

W = tensor("w", [4, 4], [0.1 * i for i in range(16)])
PRODUCT = node("MatMul", ["x", "w"], ["h"], "product")


def integers(name, *values):
    return tensor(name, [len(values)], values, INT64)


def floats(name, *values):
    return tensor(name, [len(values)], [float(value) for value in values])


def one(op, *inputs, initializers=(), opset=17, **attributes):
    return model([PRODUCT, node(op, ["h", *inputs], ["y"], "it", **attributes)], initializers=[W, *initializers], opset=opset)


def image(op, *inputs, initializers=(), opset=17, **attributes):
    """The same for feature maps (batch, 1, 2, 2)."""
    return model([PRODUCT, node("Reshape", ["h", "shape"], ["r"]), node(op, ["r", *inputs], ["y"], "it", **attributes)],
                 initializers=[W, integers("shape", -1, 1, 2, 2), *initializers], opset=opset)


def sequence(*nodes, initializers=()):
    return model([PRODUCT, *nodes], initializers=[W, *initializers])


def with_functions(*functions):
    """A model that calls the last of these functions of one input and one output: name, nodes and perhaps more of its fields."""
    imports = varint(2, 17), field(1, b"me") + varint(2, 1)
    return model([PRODUCT, node(functions[-1][0], ["h"], ["y"], "it", "me")], initializers=[W]) + field(8, imports[1]) + b"".join(
        field(25, field(1, name.encode()) + field(4, b"a") + field(5, b"b") + b"".join(field(7, one) for one in nodes) +
              b"".join(field(9, one) for one in imports) + field(10, b"me") + b"".join(more)) for name, nodes, *more in functions)


def external(name, location):
    """A tensor (4, 4) in another file."""
    place = field(1, b"location") + field(2, location if isinstance(location, bytes) else location.encode())
    return varint(1, 4) + varint(1, 4) + varint(2, 1) + field(8, name.encode()) + field(13, place) + varint(14, 1)


def sequence_of_external(location):
    return model([PRODUCT, node("Relu", ["h"], ["y"])], initializers=[external("w", location)])


CONSTRUCT = node("SequenceConstruct", ["h", "h"], ["q"], "construct")
KERNEL = tensor("k", [1, 1, 2, 2], [1.0] * 4)
BRANCH = graph([node("Identity", ["h"], ["b"])], [], [value_info("b", [4])])
FAR_BRANCH = graph([], [], [value_info("b", [4])], [external("b", "b.bin")])


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
    "frames_of_2_to_61": (model([node("STFT", ["x", "step", "", "length"], ["y"], "it")], [value_info("x", ["batch", 3 * (1 << 30) - 1, 1])],
                                initializers=[tensor("step", [], [1], INT64), tensor("length", [], [1 << 30], INT64)]), ["node 'it'"]),
    "columns_of_2_to_62": (model([node("Col2Im", ["x", "two", "two"], ["y"], "it")], [value_info("x", ["batch", 1 << 62, 1])],
                                 initializers=[integers("two", 2, 2)], opset=18), ["\"x\""]),
    "einsum_of_2_to_61": (model([node("Einsum", ["x"], ["y"], "it", equation="bii->bi")], [value_info("x", ["batch", 1 << 61, 1 << 61])]), ["\"x\""]),
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
    "a_list_20000_times": (sequence(node("SequenceConstruct", ["h"] * 50_000, ["q0"], "q"),
                                    *[node("Identity", [f"q{i}"], [f"q{i + 1}"], f"n{i}") for i in range(20_000)],
                                    node("ConcatFromSequence", ["q20000"], ["y"], "it", axis=1)), ["node 'n", "constants need more than"]),
    "a_list_as_output": (model([PRODUCT, node("SequenceConstruct", ["h"], ["y"], "it")], initializers=[W]), ["\"y\" is a sequence"]),
    "branch_by_data": (model([PRODUCT, node("Cast", ["x"], ["c"], to=BOOL), node("If", ["c"], ["y"], "it", then_branch=("graph", BRANCH),
                                                                                else_branch=("graph", BRANCH))], initializers=[W]), ["node 'it'"]),
    "loops_in_loops": (nested_loops(12, 100), ["loop"]),
    "blocks_of_2_to_62": (image("DepthToSpace", blocksize=1 << 62), ["node 'it'", "blocks of"]),
    "blocks_of_2_to_32": (image("SpaceToDepth", blocksize=1 << 32), ["node 'it'", "blocks of"]),
    "batch_dims_of_2_to_40": (one("GatherND", "i", initializers=[tensor("i", [1, 1], [0], INT64)], batch_dims=1 << 40), ["node 'it'"]),
    "sums_along_2_to_62": (one("CumSum", "a", initializers=[tensor("a", [], [1 << 62], INT64)]), ["node 'it'"]),
    "norm_along_minus_2_to_63": (one("LayerNormalization", "g", initializers=[floats("g", 1, 1, 1, 1)], axis=-(1 << 63)), ["node 'it'"]),
    "groups_of_nothing": (image("GroupNormalization", "s", "s", initializers=[floats("s", 1)], opset=21, num_groups=0), ["node 'it'"]),
    "dropout_of_nan": (one("Dropout", "r", initializers=[tensor("r", [], [float("nan")])]), ["node 'it'"]),
    "heads_of_nothing": (model([PRODUCT, node("Reshape", ["h", "shape"], ["r"]), node("Attention", ["r", "r", "r"], ["y"], "it", q_num_heads=0,
                                                                                      kv_num_heads=0)],
                               initializers=[W, integers("shape", -1, 1, 4)], opset=23), ["node 'it'"]),
    "output_of_2_to_80": (image("ConvTranspose", "k", initializers=[KERNEL], output_shape=[1 << 40, 1 << 40]), ["node 'it'"]),
    "hidden_size_2_to_62": (model([PRODUCT, node("Reshape", ["h", "shape"], ["r"]), node("RNN", ["r", "k", "l"], ["", "y"], "it", hidden_size=1 << 62)],
                                  initializers=[W, integers("shape", 2, -1, 2), tensor("k", [1, 1, 2], [0.0] * 2), tensor("l", [1, 1, 1], [0.0])]),
                            ["node 'it'"]),
    "scan_of_minus_1": (sequence(node("Scan", ["h"], ["y"], "it", body=("graph", BRANCH), num_scan_inputs=-1)), ["node 'it'"]),
    "random_of_2_to_40": (sequence(node("RandomNormal", [], ["n"], "it", shape=[1 << 20, 1 << 20]), node("Add", ["h", "n"], ["y"])), ["node 'it'"]),
    "a_constant_graph": (sequence(node("Constant", [], ["c"], "it", value=("graph", b"")), node("Add", ["h", "c"], ["y"])), ["node 'it'", "'value'"]),
    "slice_of_everything": (one("Slice", "a", "b", "axes", "steps", initializers=[integers("a", -(1 << 63)), integers("b", (1 << 63) - 1),
                                                                                 integers("axes", 1), integers("steps", -(1 << 63))]),
                            ["\"y\" has no classes"]),
    "functions_in_a_ring": (with_functions(*[("f%d" % i, [node("f%d" % ((i + 1) % 3), ["a"], ["b"], domain="me")]) for i in range(3)]), ["me::f"]),
    "functions_that_double": (with_functions(("f0", [node("Relu", ["a"], ["b"])]), *[
        ("f%d" % i, [node("f%d" % (i - 1), ["a"], ["t"], domain="me"), node("f%d" % (i - 1), ["t"], ["b"], domain="me")]) for i in range(1, 40)]), ["me::f"]),
    "functions_of_many_inputs": (with_functions(("f0", [node("Relu", ["a"], ["b"])], b"".join(field(4, b"a%d" % i) for i in range(100_000))), (
        "f1", [node("f0", ["a"], [f"b{i}" if i else "b"], domain="me") for i in range(1000)])), ["local functions expanded"]),
    "functions_of_many_attributes": (with_functions(("f", [node("Relu", ["a"], ["b"]) + b"".join(
        field(5, field(1, b"a%d" % i) + varint(20, 2) + field(21, b"d%d" % i)) for i in range(100_000))], b"".join(
            field(11, attribute(f"d{i}", i)) for i in range(100_000)))), ["Relu has no attribute \"a0\""]),
    "name_of_megabytes": (sequence(node("Relu", ["h"], ["y"], "n" * 5_000_000)), ["longer than the 4096 allowed"]),
    "norm_of_60_outputs": (model([PRODUCT, node("LayerNormalization", ["h", "g"], ["y", *(f"o{i}" for i in range(59))], "it")],
                                 initializers=[W, floats("g", 1, 1, 1, 1)]), ["node 'it'", "at most 3 outputs, not 60"]),
    "unique_of_8_outputs": (model([PRODUCT, node("Unique", ["w"], ["u", *(f"o{i}" for i in range(7))], "it"), node("Relu", ["h"], ["y"])],
                                  outputs=[value_info("y", ["batch", 4]), value_info("o6", [4], INT64)], initializers=[W]),
                            ["node 'it'", "at most 4 outputs, not 8"]),
    "split_in_2_to_40": (one("Split", opset=18, num_outputs=1 << 40), ["node 'it'"]),
    "split_in_2_to_30": (one("Split", opset=18, num_outputs=1 << 30), ["node 'it'"]),
    "split_in_one_of_2": (one("Split", "parts", initializers=[integers("parts", 2)], axis=1), ["node 'it'"]),
    "reversed_2_to_33": (model([node("Expand", ["w", "shape"], ["e"]), node("ReverseSequence", ["e", "n"], ["r"], "it", batch_axis=0, time_axis=1),
                                node("ReduceMax", ["r"], ["m"]), node("Add", ["x", "m"], ["y"])],
                               initializers=[tensor("w", [1, 1], [1.0]), integers("shape", 1, 1 << 33), integers("n", 1)]), ["node 'it'"]),
    "listed_2_to_33": (model([node("Expand", ["w", "shape"], ["e"]), node("SplitToSequence", ["e"], ["q"], "it", axis=1),
                              node("ConcatFromSequence", ["q"], ["r"], axis=1), node("ReduceMax", ["r"], ["m"]), node("Add", ["x", "m"], ["y"])],
                             initializers=[tensor("w", [1, 1], [1.0]), integers("shape", 1, 1 << 33)]), ["node 'it'"]),
    "cropped_to_2_to_33": (image("Resize", "roi", "", "sizes", initializers=[floats("roi", 0, 0, 0, 0, 1, 1, 1, 0.5), integers("sizes", 1, 1, 2, 1 << 33)],
                                 coordinate_transformation_mode="tf_crop_and_resize"), ["node 'it'"]),
    "cropped_from_afar": (one("Resize", "roi", "scales", initializers=[floats("roi", 0, -5e14, 1, 5e14), floats("scales", 1, 3e-16)], opset=18,
                              mode="linear", antialias=1, coordinate_transformation_mode="tf_crop_and_resize"), ["node 'it'", "reads too many"]),
    "resized_in_no_way": (one("Resize", "", "scales", initializers=[floats("scales", 1, 2)], mode="fair"), ["node 'it'", "no mode \"fair\""]),
    "rank_of_300000": (one("Unsqueeze", "axes", initializers=[integers("axes", *range(2, 300_000))]), ["node 'it'", "to rank 300000"]),
    "rank_of_1000": (one("Reshape", "shape", initializers=[integers("shape", 0, 4, *[1] * 998)]), ["node 'it'", "rank 1000"]),
    "top_of_no_number": (one("TopK", "k", initializers=[integers("k")]), ["node 'it'", "one number"]),
    "one_hot_of_2_to_61": (model([PRODUCT, node("Cast", ["h"], ["c"], to=INT64), node("OneHot", ["c", "d", "v"], ["y"], "it")],
                                 initializers=[W, tensor("d", [], [1 << 61], INT64), floats("v", 0, 1)]), ["node 'it'"]),
    "pool_that_wraps": (image("MaxPool", kernel_shape=[7, 7905747460161236407], dilations=[1, 7], pads=[3, 0, 3, 0]), ["node 'it'"]),
    "external_nul": (sequence_of_external(b"a\0b"), ["'w'"]),
    "external_deep": (sequence_of_external("a/" * 3_000 + "b"), ["'w'"]),
    "scan_of_nothing": (model([PRODUCT, node("Scan", ["h"], ["y"], "it", body=("graph", b""), num_scan_inputs=1)], initializers=[W]), ["node 'it'"]),
}

# Read in time: what is asked for is large, but not wrong.
LARGE = {
    "concat": sequence(node("SequenceConstruct", ["h"] * 50_000, ["q"], "q"), node("ConcatFromSequence", ["q"], ["y"], "it", axis=1)),
    "parameters": model([PRODUCT, *[node("Add", [f"c{i}" if i else "h", f"p{i}"], [f"c{i + 1}" if i < 99_999 else "y"], f"n{i}") for i in range(100_000)]],
                        initializers=[W, *[tensor(f"p{i}", [4], bytes(16)) for i in range(100_000)]]),
    "inputs": model([PRODUCT, node("Relu", ["h"], ["y"])], inputs=[value_info("x", ["batch", 4]), *[value_info(f"i{i}", ["batch", 1])
                                                                                                  for i in range(200_000)]], initializers=[W]),
    "folded_name": model([PRODUCT, node("MatMul", ["h", "v"], ["y"])], initializers=[
        W, tensor("v", [4, 4], [0.1 * i for i in range(16)]) + field(16, field(1, b"pkg.onnxscript.optimizer.folded_from") + field(2, b"['" + b"a" * 1_000_000 + b"']"))]),
    "slice_of_nothing": sequence(node("Slice", ["h", "zero", "zero", "one"], ["e"]), node("Slice", ["e", "last", "before", "one", "last"], ["r"], "it"),
                                 node("Concat", ["h", "r"], ["y"], axis=1),
                                 initializers=[integers("zero", 0), integers("one", 1), integers("last", -1), integers("before", -(1 << 63))]),
    "outputs_of_nothing": sequence(node("Relu", ["h"], ["y"]), node("Identity", ["v"], []), node("Identity", ["w"], []), node("Identity", ["v"], [""]),
                                   node("Identity", [""], [""]), initializers=[tensor("v", [4, 4], bytes(64))]),
    "identities": sequence(*[node("Identity", [f"i{i}" if i else "v"], [f"i{i + 1}"]) for i in range(100_000)], node("Relu", ["h"], ["y"]),
                           initializers=[tensor("v", [4, 4], bytes(64))]),
    "concat_of_parameters": sequence(node("Concat", [f"p{i}" for i in range(50_000)], ["c"], axis=0),
                                     *[node("Identity", ["c"], [f"i{i}"]) for i in range(50_000)], node("Relu", ["h"], ["y"]),
                                     initializers=[tensor(f"p{i}", [2], [0.1, 0.2]) for i in range(50_000)]),
    "gathers": model([PRODUCT, *[node("Transpose", [f"i{i}"], [f"i{i + 1}"]) for i in range(20_000)],
                      *[node("Gather", ["w", "i20000"], [f"g{i}"]) for i in range(20_000)], node("Sum", [f"g{i}" for i in range(20_000)], ["s"]),
                      node("Squeeze", ["s", "axes"], ["f"]), node("Add", ["h", "f"], ["y"])],
                     inputs=[value_info("x", ["batch", 4]), value_info("i0", ["batch", 1], INT64)], initializers=[W, integers("axes", 1)]),
    "attributes_of_the_exporter": model([PRODUCT, node("Relu", ["h"], ["y"], "it", **{f"__{i}": i for i in range(300_000)})], initializers=[W]),
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

PLAIN = '{"x": [1, 2, 3, 4], "y": [1, 2, 3, 4]}\n'
# name: content, parts of the message; numbers that no float holds, refused when a model is trained on them
LARGE_NUMBERS = {
    "label.jsonl": (PLAIN + PLAIN.replace('"y": [1', '"y": [1e308'), ["label.jsonl line 2", "label"]),
    "label_999.jsonl": (PLAIN + PLAIN.replace('"y": [1', '"y": [1e999'), ["label_999.jsonl line 2", '"y" has 1e999']),
    "input.jsonl": (PLAIN + PLAIN.replace('"x": [1', '"x": [-4e38'), ["input.jsonl line 2", '"x"']),
    "digits.jsonl": (PLAIN + PLAIN.replace('"x": [1', '"x": [' + "9" * 1_000_000), ["digits.jsonl line 2", '"x"']),
    "label.csv": (f"{ROW},0.5\n{ROW},1e308\n{ROW},2\n", ["label.csv line 2", "label"]),
    "label_999.csv": (f"{ROW},0.5\n{ROW},-1e999\n{ROW},2\n", ["label_999.csv line 2", "label"]),
    "input.csv": (f"{ROW},0.5\n1,3.5e38,3,4,1\n{ROW},2\n", ["input.csv line 2", '"x"']),
    "label.libsvm": ("0.5 1:1 4:1\n1e39 1:2 4:1\n", ["label.libsvm line 2", "1e39"]),
    "input.libsvm": ("0.5 1:1 4:1\n1 1:1e39 4:1\n", ["input.libsvm line 2", "1e39"]),
    "input.npz": (npz([("x.npy", [npy_header("<f8", (2, 4)), struct.pack("<8d", 1, 2, 3, 4, 5, 6, -1e300, 8)]),
                       ("y.npy", [npy_header("<f4", (2, 4)), bytes(32)])]), ["input.npz[x] item 1", "-1e+300", '"x"']),
    "label.npz": (npz([("x.npy", [npy_header("<f4", (2, 4)), bytes(32)]),
                       ("y.npy", [npy_header("<f8", (2, 4)), struct.pack("<8d", 1, 2, 3, 4e38, 5, 6, 7, 8)])]), ["label.npz[y] item 0", "4e+38"]),
}

# A pipe that nothing writes to, and /dev/zero, as the value of an option: the kind of error.
OPTIONS_WITH_FILES = {"--sample-weights": "data", "--plan": "usage", "--profile": "usage", "--topology": "usage", "--config": "usage", "--val-data": "data"}

OPTIONS = {
    # name: arguments, parts of the message; all are usage errors
    "rank_of_10_to_9": (["--lora", "1000000000"], ["--lora", "highest rank"]),
    "rank_of_100": (["--lora", "100000"], ["--lora", "highest rank"]),
    "stages_of_10_to_9": (["--gpus", "1000000000"], ["stages", "1000000000"]),
    "threads_of_10_to_9": (["--threads", "1000000000"], ["--threads"]),
    "virtual_stages_of_10_to_9": (["--gpus", "2", "--schedule", "interleaved-1f1b", "--virtual-stages", "1000000000"], ["4096 stages"]),
    "alpha_of_10_to_300": (["--lora", "1", "--lora-alpha", "1e300"], ["--lora-alpha"]),
    "adapter_in_the_place_of_the_model": (["--lora", "1", "--adapter", "./same", "-o", "same"], ["--adapter and --output", "same"]),
    "an_adapter_that_exists": (["--lora", "1", "--adapter", "/proc/version"], ["/proc/version", "another --adapter"]),
    "deviation_of_nothing": (["--normalize", "1/1e-46"], ["--normalize"]),
    "loss_scale_of_10_to_308": (["--precision", "fp16", "--loss-scale", "1e308"], ["--loss-scale"]),
    "validation_of_10_to_308": (["--val-split", "1e308"], ["--val-split takes"]),
    "crop_of_10_to_13": (["--augment", "crop:9999999999999"], ["--augment"]),
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

    def test_external_data_in_a_branch(self):
        path = self.write("far.onnx", sequence(node("If", ["c"], ["y"], "it", then_branch=("graph", FAR_BRANCH), else_branch=("graph", FAR_BRANCH)),
                                               initializers=[tensor("c", [], b"\1", BOOL)]))
        self.refused_as("model", ["node 'it'", "'b'", "outside sub-graphs"], "inspect", path)

    def test_large_models_are_read_in_time(self):
        for name, content in LARGE.items():
            with self.subTest(name):
                code, text = self.finish("inspect", self.write(f"{name}.onnx", content))
                self.assertEqual(code, 0, text)

    def test_more_data_files_than_a_shell_lets_a_program_open(self):
        products = [node("MatMul", [f"h{i}" if i else "x", f"w{i}"], [f"h{i + 1}" if i < 99 else "y"], f"n{i}") for i in range(100)]
        for i in range(100):
            (self.folder / f"w{i}.bin").write_bytes(struct.pack("<16f", *(float(k % 5 == 0) for k in range(16))))
        path = self.write("many.onnx", model(products, initializers=[external(f"w{i}", f"w{i}.bin") for i in range(100)]))
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
        code, text = self.finish("train", path, "--loss", "mse", "--data", self.write("few.jsonl", 4 * PLAIN), "-b", "1", "-o", "out.onnx", *TRAIN[6:])
        self.assertEqual(code, 0, text)

    def test_data(self):
        for name, (content, parts) in DATA_FILES.items():
            with self.subTest(name):
                self.refused_as("data", parts, "data", "inspect", self.write(name, content))

    def test_links_in_the_place_of_folders(self):
        path = self.folder / "images"
        (path / "cats").mkdir(parents=True)
        (path / "cats" / "1.png").write_bytes(png(1, 1, bytes(4)))
        (path / "loop").symlink_to("loop")
        (path / "cats" / "again").symlink_to("again")
        code, text = self.finish("data", "inspect", str(path))
        self.assertEqual(code, 0, text)
        self.refused_as("data", ["n" * 100], "data", "inspect", "--format", "csv", "n" * 300)

    @unittest.skipIf(os.getuid() == 0, "root reads every folder")
    def test_folders_without_permission(self):
        for name in ("train", "val"):
            (self.folder / "parts" / name / "cats").mkdir(parents=True)
            (self.folder / "parts" / name / "cats" / "1.png").write_bytes(png(1, 1, bytes(4)))
        train = self.folder / "parts" / "train"
        train.chmod(0)
        self.addCleanup(train.chmod, 0o755)
        self.refused_as("data", [str(train)], "data", "inspect", str(self.folder / "parts"))

    def test_numbers_that_no_float_holds(self):
        path = self.write("net.onnx", model([PRODUCT, node("Relu", ["h"], ["y"])], initializers=[W]))
        one = self.write("one.onnx", model([PRODUCT, node("MatMul", ["h", "v"], ["y"])], outputs=[value_info("y", ["batch", 1])],
                                           initializers=[W, tensor("v", [4, 1], [0.1] * 4)]))
        for name, (content, parts) in LARGE_NUMBERS.items():
            with self.subTest(name):
                net = one if name.endswith((".csv", ".libsvm")) else path
                self.refused_as("data", parts, "train", net, "--loss", "mse", "--data", self.write(name, content), "-b", "1", *TRAIN[6:])

    def test_samples_with_such_numbers_can_be_left_out(self):
        path = self.write("net.onnx", model([PRODUCT, node("Relu", ["h"], ["y"])], initializers=[W]))
        data = self.write("net.jsonl", 3 * PLAIN + PLAIN.replace('"y": [1', '"y": [1e308'))
        code, text = self.finish("train", path, "--loss", "mse", "--data", data, "--on-bad-sample", "skip", "-b", "1", *TRAIN[6:])
        self.assertEqual(code, 0, text)

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
