"""What inspect says of layers, and what exporters leave of a module's layers and names."""

import struct
import unittest

from labels_test import node, number, value
from program import MODEL, Case, field, fields, parse

CPU = ["--device", "cpu", "--threads", "1"]


def from_module(written, module, kind):
    """A node with what PyTorch writes beside it."""
    def entry(key, text):
        return field(9, field(1, f"pkg.torch.onnx.{key}".encode()) + field(2, text.encode()))

    return written + entry("name_scopes", f"['', '{module}', 'call']") + entry("class_hierarchy", f"['Net', 'torch.nn.modules.{kind}', 'aten']")


def tensor(name, dims, values):
    return b"".join(number(1, dim) for dim in dims) + number(2, 1) + field(8, name.encode()) + field(9, struct.pack(f"<{len(values)}f", *values))


def merged():
    """Two normalizations whose equal gains and shifts the exporter has merged, and a convolution that was a batch normalization."""
    weight = [0.1 * (i % 7) - 0.3 for i in range(4 * 4)]
    nodes = [from_module(node("Conv", ["x", "c1.weight"], "c"), "b1", "batchnorm.BatchNorm2d"), node("Flatten", ["c"], "f"),
             from_module(node("LayerNormalization", ["f", "n1.weight", "n1.bias"], "a"), "n1", "normalization.LayerNorm"),
             from_module(node("MatMul", ["a", "fc.weight"], "m"), "fc", "linear.Linear"),
             from_module(node("LayerNormalization", ["m", "n1.weight", "n1.bias"], "y"), "n2", "normalization.LayerNorm")]
    tensors = [tensor("c1.weight", [4, 1, 1, 1], weight[:4]), tensor("fc.weight", [4, 4], weight), tensor("n1.weight", [4], [1] * 4), tensor("n1.bias", [4], [0] * 4)]
    graph = (b"".join(field(1, one) for one in nodes) + field(2, b"g") + b"".join(field(5, one) for one in tensors) +
             field(11, value("x", ["batch", 1, 1, 1])) + field(12, value("y", ["batch", 4])))
    return number(1, 8) + field(7, graph) + field(8, number(2, 17))


class Layers(Case):
    def test_layers_have_shapes_parameters_and_operations(self):
        out, _ = self.succeed("inspect", MODEL, "--layers")
        header = next(line for line in out.splitlines() if line.startswith("layer "))
        self.assertEqual(header.split(), ["layer", "operator", "output", "parameters", "FLOPs"])
        layers = parse(self.succeed("inspect", MODEL, "--layers", "--json")[0])["layers"]
        self.assertEqual(sum(layer["parameters"] for layer in layers), parse(self.succeed("inspect", MODEL, "--json")[0])["trained_numbers"])
        convolution = next(layer for layer in layers if layer["op"] == "Conv")
        self.assertTrue(convolution["output"].startswith("Nx"))
        self.assertGreater(convolution["flops"], 0)
        # With a profile, what they take.
        self.succeed("profile", MODEL, "--device", "cpu", "-o", "profile.json")
        timed = parse(self.succeed("inspect", MODEL, "--layers", "--profile", "profile.json", "--json")[0])["layers"]
        self.assertAlmostEqual(sum(layer["time_share"] for layer in timed), 1)


class Exports(Case):
    def test_what_an_exporter_folded_is_said_in_one_line(self):
        self.write("m.onnx", merged())
        out, _ = self.succeed("inspect", "m.onnx")
        self.assertIn("the exporter folded 1 normalization layer into convolutions", out)
        self.assertIn("optimize=False", out)
        self.assertNotIn("folded", self.succeed("inspect", MODEL)[0])

    def test_merged_tensors_get_their_names_back(self):
        self.write("m.onnx", merged())
        self.write("d.csv", "".join(f"{i / 40:.2f},{i % 4}\n" for i in range(40)))
        _, err = self.succeed("train", "m.onnx", "--data", "d.csv", *CPU, "--max-steps", "3", "-o", "t.onnx", "--run-dir", "run")
        self.assertEqual(len([line for line in err.splitlines() if "merged" in line]), 1, err)
        graph = next(content for key, _, content in fields((self.folder / "t.onnx").read_bytes()) if key == 7)
        names = {part for key, _, one in fields(graph) if key == 5 for number_, _, part in fields(one) if number_ == 8}
        self.assertEqual(names, {b"c1.weight", b"fc.weight", b"n1.weight", b"n1.bias", b"n2.weight", b"n2.bias"})


if __name__ == "__main__":
    unittest.main()
