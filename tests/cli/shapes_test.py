"""Free dimensions of a model: sizes that are given must fit the file, and texts the positions that the model has."""

import random
import unittest

from onnx_file import INT64, model, node, tensor, value_info
from program import MODEL, Case

RUN = ["--device", "cpu", "--threads", "1", "--batch-size", "4", "--max-steps", "2", "--no-cache", "--run-dir", "run", "--overwrite"]
VOCABULARY, POSITIONS, WIDTH = 256, 16, 4


def table(name, *dims):
    count = 1
    for dim in dims:
        count *= dim
    made = random.Random(1)
    return tensor(name, dims, [made.uniform(-1, 1) for _ in range(count)])


def bytes_model():
    """Tokens plus as many of 16 positions as there are, as exporters write it, for next tokens."""
    nodes = [node("Gather", ["words", "input_ids"], ["embedded"], "embed"),
             node("Shape", ["input_ids"], ["shape"], start=1), node("Slice", ["positions", "zero", "shape"], ["first"]),
             node("Add", ["embedded", "first"], ["sum"], "add_positions"), node("MatMul", ["sum", "head"], ["logits"], "head")]
    return model(nodes, [value_info("input_ids", ["batch", "seq"], INT64)], [value_info("logits", ["batch", "seq", VOCABULARY])],
                 [table("words", VOCABULARY, WIDTH), table("positions", POSITIONS, WIDTH), table("head", WIDTH, VOCABULARY),
                  tensor("zero", [1], [0], INT64)])


class FreeDimensions(Case):
    def setUp(self):
        super().setUp()
        self.write("bytes.onnx", bytes_model())
        self.write("lines.txt", "the quick brown fox jumps over the lazy dog\n" * 20)

    def test_sizes_that_do_not_fit_the_file_are_refused(self):
        for command in (["train"], ["inspect"], ["predict", "--data", "lines.txt"]):
            words = [command[0], "bytes.onnx", *command[1:]]
            self.refused("usage", *words, "--dim", "sek=8", says=["--dim sek=8", "bytes.onnx", "it has seq"])
            self.refused("usage", *words, "--dim", "batch=3", says=["--dim batch=3", "--batch-size"])
            self.refused("usage", *words, "--shape", "input_ids=1x8x2", says=["--shape input_ids has 3 axes", "has 2"])
        self.refused("usage", "train", "bytes.onnx", "--dim", "seq=8", "--shape", "input_ids=1x9", says=["axis 1 is 9", "--dim seq=8"])
        self.refused("usage", "train", MODEL, "--dim", "seq=8", says="it has none")
        self.write("fixed.onnx", model([node("MatMul", ["x", "w"], ["y"], "it")], initializers=[table("w", 4, 4)]))
        self.refused("usage", "train", "fixed.onnx", "--shape", "x=2x5", says=["axis 1 is 5, but 4 in fixed.onnx"])
        self.refused("usage", "train", "fixed.onnx", "--shape", "z=2x4", says='no input "z"')
        self.succeed("train", "fixed.onnx", "--shape", "x=2x4", *RUN)

    def test_the_length_of_packed_texts_is_the_size_of_the_dimension(self):
        _, err = self.succeed("train", "bytes.onnx", "--data", "lines.txt", "--text-length", "8", *RUN)
        self.assertIn("109 training samples", err)

    def test_samples_longer_than_the_model_takes(self):
        for words in (["train", "bytes.onnx", "--text-length", "32", *RUN], ["predict", "bytes.onnx", "--text-length", "32", "--device", "cpu"],
                      ["train", "bytes.onnx", "--dim", "seq=32", *RUN]):
            self.refused("model", *words, "--data", "lines.txt", says=["32 tokens are too many for the model", "--text-length N"])


if __name__ == "__main__":
    unittest.main()
