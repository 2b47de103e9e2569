"""Classifiers of pixels whose classes are the last axis, as converters of Keras' models write them."""

import json
import random
import unittest

import onnx_file
from program import Case, events, parse

CPU = ["--device", "cpu", "--threads", "1"]


class ChannelsLast(Case):
    def test_classes_are_the_last_axis_in_training_evaluation_and_predictions(self):
        source = random.Random(1)
        weights = [source.gauss(0, 0.5) for _ in range(12)]
        nodes = [onnx_file.node("MatMul", ["x", "w"], ["s"]), onnx_file.node("Softmax", ["s"], ["y"], axis=3)]
        self.write("m.onnx", onnx_file.model(nodes, inputs=[onnx_file.value_info("x", ["batch", 2, 2, 4])], outputs=[onnx_file.value_info("y", ["batch", 2, 2, 3])],
                                             initializers=[onnx_file.tensor("w", [4, 3], weights)]))
        rows = [{"x": [[[source.gauss(0, 1) for _ in range(4)] for _ in range(2)] for _ in range(2)], "y": [[(i + a + b) % 3 for b in range(2)] for a in range(2)]}
                for i in range(24)]
        self.write("d.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        train = ["train", "m.onnx", "--data", "d.jsonl", *CPU, "--max-steps", "2", "--batch-size", "8", "--normalize", "none", "--run-dir", "run"]
        self.assertIn("pixel classifier (cross-entropy, 3 classes)", self.succeed(*train)[1])
        predicted = events(self.succeed("predict", "run/trained.onnx", "--data", "d.jsonl", *CPU)[0])
        hits = 0
        for row, prediction in zip(rows, predicted):
            for a in range(2):
                for b in range(2):
                    scores = prediction["y"][a][b]
                    self.assertEqual(prediction["class"][a][b], scores.index(max(scores)))
                    hits += prediction["class"][a][b] == row["y"][a][b]
        report = parse(self.succeed("eval", "run/trained.onnx", "--data", "d.jsonl", *CPU, "--details", "--json", "--top-k", "1")[0])
        self.assertEqual(report["top1"], report["accuracy"])
        self.assertAlmostEqual(report["accuracy"], hits / 96, places=5)


if __name__ == "__main__":
    unittest.main()
