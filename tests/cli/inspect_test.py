"""What inspect says of layers, and what exporters leave of a module's layers and names."""

import math
import struct
import unittest

import onnx_file
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


def without_biases(weight, calls=1):
    """Zero biases removed by the exporter: a linear layer of 2 classes whose node names the parameter, and a convolution of weight 1, called so often."""
    def removed(written, module, kind, target, arguments):
        def entry(key, text):
            return field(9, field(1, key.encode()) + field(2, text.encode()))

        call = f"%call : [num_users=1] = call_function[target=torch.ops.aten.{target}](args = ({arguments}), kwargs = {{}})"
        return from_module(written, module, kind) + entry("pkg.torch.onnx.fx_node", call) + entry("pkg.onnxscript.rewriter.rule_name", "RemoveOptionalBias")

    nodes = [*(removed(node("Conv", [f"c{i}" if i else "x", "body.0.weight"], f"c{i + 1}"), "body.0", "conv.Conv2d", "conv2d.default",
                       "%x, %p_body_0_weight, %p_body_0_bias, [1, 1]") for i in range(calls)),
             node("Flatten", [f"c{calls}"], "f"),
             removed(node("Gemm", ["f", "fc.weight"], "y"), "fc", "linear.Linear", "addmm.default", "%p_fc_bias, %f, %p_fc_weight")]
    tensors = [tensor("body.0.weight", [1, 1, 1, 1], [1]), tensor("fc.weight", [2, 2], weight)]
    graph = (b"".join(field(1, one) for one in nodes) + field(2, b"g") + b"".join(field(5, one) for one in tensors) +
             field(11, value("x", ["batch", 1, 1, 2])) + field(12, value("y", ["batch", 2])))
    return number(1, 8) + field(7, graph) + field(8, number(2, 17))


def with_token(weight, token, batch):
    """A class token that the exporter expanded to the batch, in front of each sample."""
    folded = field(16, field(1, b"pkg.onnxscript.optimizer.folded_from") + field(2, b"['embeddings.cls_token', 'val_1']"))
    nodes = [node("Concat", ["expand", "x"], "c", ("axis", 1)), node("Flatten", ["c"], "f"), node("MatMul", ["f", "fc.weight"], "y")]
    tensors = [tensor("expand", [batch, 1, 2], token * batch) + folded, tensor("fc.weight", [4, 2], weight)]
    graph = (b"".join(field(1, one) for one in nodes) + field(2, b"g") + b"".join(field(5, one) for one in tensors) +
             field(11, value("x", [batch, 1, 2])) + field(12, value("y", [batch, 2])))
    return number(1, 8) + field(7, graph) + field(8, number(2, 17))


def floats_in(path):
    """The float tensors of a model, by name."""
    graph = next(content for key, _, content in fields(path.read_bytes()) if key == 7)
    found = {}
    for key, _, one in fields(graph):
        if key == 5:
            parts = {number_: part for number_, _, part in fields(one)}
            found[parts[8].decode()] = struct.unpack(f"<{len(parts[9]) // 4}f", parts[9])
    return found


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

    def test_layers_in_training_mode_are_counted(self):
        def network(mode, opset):
            switch = onnx_file.tensor("switch", [], bytes([mode]), kind=onnx_file.BOOL)
            norm = ["n", "mean2", "variance2", "mean3", "variance3"][:5 if opset < 14 else 3] if mode else ["n"]
            nodes = [onnx_file.node("MatMul", ["x", "w"], ["h"]),
                     onnx_file.node("BatchNormalization", ["h", "scale", "shift", "mean", "variance"], norm, **({"training_mode": mode} if opset >= 14 else {})),
                     onnx_file.node("Dropout", ["n", "ratio", "switch"], ["d"]), onnx_file.node("Constant", [], ["constant"], value=switch),
                     onnx_file.node("Dropout", ["d", "ratio", "constant"], ["y"])]
            sizes = {"w": [4, 4], "scale": [4], "shift": [4], "mean": [4], "variance": [4], "ratio": []}
            tensors = [onnx_file.tensor(name, dims, [0.5] * 4 ** len(dims)) for name, dims in sizes.items()]
            return onnx_file.model(nodes, initializers=[*tensors, switch], opset=opset)

        train = ["train", "m.onnx", *CPU, "--max-steps", "1", "--run-dir", "run"]
        for opset in (13, 17):
            for mode in (0, 1):
                self.write("m.onnx", network(mode, opset))
                for said in (self.succeed("inspect", "m.onnx")[0], self.succeed(*train, "--overwrite")[1]):
                    found = [line for line in said.splitlines() if "training mode" in line]
                    self.assertEqual(len(found), mode, said)
                    if mode:
                        self.assertIn("1 BatchNormalization and 2 Dropout layers are in training mode", found[0])

    def test_what_no_output_needs_is_left_out(self):
        nodes = [onnx_file.node("MatMul", ["x", "w"], ["y"]), onnx_file.node("Gather", ["names", "index"], ["label"])]
        tensors = [onnx_file.tensor("w", [4, 4], [0.5] * 16), onnx_file.tensor("names", [1], bytes(1), kind=8), onnx_file.tensor("index", [1], [0], onnx_file.INT64)]
        outputs = [onnx_file.value_info("label", [1], onnx_file.INT64), onnx_file.value_info("y", [2, 4])]
        # The last input has another fixed batch, and nothing reads it.
        inputs = [onnx_file.value_info("x", [2, 4]), onnx_file.value_info("old", [5, 4])]
        self.write("m.onnx", onnx_file.model(nodes, inputs=inputs, outputs=outputs, initializers=tensors))
        self.refused("model", "inspect", "m.onnx", says=["'names' cannot be used: strings", 'output "y" needs nothing of that: --output-node y'])
        described = parse(self.succeed("inspect", "m.onnx", "--output-node", "y", "--json")[0])
        self.assertTrue(described["trainable"])
        self.assertNotIn("needs", described)
        self.succeed("train", "m.onnx", "--output-node", "y", *CPU, "--max-steps", "1", "--batch-size", "4", "-o", "t.onnx", "--run-dir", "run")

    def test_a_merged_bias_that_is_not_trained_keeps_its_zeros(self):
        heads = [onnx_file.node("Gemm", ["x", "w1", "b"], ["logits"], "head"), onnx_file.node("Gemm", ["x", "w2", "b"], ["aux"], "auxiliary")]
        tensors = [*(onnx_file.tensor(name, [4, 4], [0.1 * (i % 7) - 0.3 for i in range(16)]) for name in ("w1", "w2")), onnx_file.tensor("b", [4], [0] * 4)]
        outputs = [onnx_file.value_info(name, ["batch", 4]) for name in ("logits", "aux")]
        self.write("m.onnx", onnx_file.model(heads, outputs=outputs, initializers=tensors))
        self.succeed("train", "m.onnx", "--logits", "logits", *CPU, "--max-steps", "3", "-o", "t.onnx", "--run-dir", "run")
        written = floats_in(self.folder / "t.onnx")
        self.assertTrue(all(written["b"]), written)
        self.assertEqual(written["b@auxiliary.2"], (0,) * 4)

    def test_merged_tensors_get_their_names_back(self):
        self.write("m.onnx", merged())
        self.write("d.csv", "".join(f"{i / 40:.2f},{i % 4}\n" for i in range(40)))
        _, err = self.succeed("train", "m.onnx", "--data", "d.csv", *CPU, "--max-steps", "3", "-o", "t.onnx", "--run-dir", "run")
        self.assertEqual(len([line for line in err.splitlines() if "merged" in line]), 1, err)
        self.assertEqual(set(floats_in(self.folder / "t.onnx")), {"c1.weight", "fc.weight", "n1.weight", "n1.bias", "n2.weight", "n2.bias"})

    def test_a_merged_tensor_stays_with_the_module_that_it_is_named_after(self):
        self.write("m.onnx", merged().replace(b"n1.bias", b"n2.bias"))
        rules = {line.split()[1]: line for line in self.succeed("inspect", "m.onnx", "--params")[0].splitlines() if line.startswith("  trained")}
        self.assertIn("copy of n2.bias", rules["n1.bias"])
        self.assertNotIn("copy", rules["n2.bias"])

    def test_zero_biases_that_the_exporter_removed_are_trained_and_stored_again_if_asked_for(self):
        weight, data, rate = [0.5, -0.25, 0.125, 1.0], [(0.5, -1.0, 0), (1.5, 0.25, 1), (-0.75, 2.0, 0)], 0.5
        self.write("m.onnx", without_biases(weight))
        self.write("d.csv", "".join(f"{a},{b},{label}\n" for a, b, label in data))
        self.assertIn("2 of them zero biases that the exporter removed", self.succeed("inspect", "m.onnx", "--tie", "pytorch")[0])
        command = ["train", "m.onnx", "--data", "d.csv", *CPU, "--max-steps", "1", "-b", "3", "--optimizer", "sgd", "--momentum", "0", "--weight-decay", "0",
                   "--lr", str(rate), "--lr-schedule", "constant", "--normalize", "none", "--loss", "cross-entropy"]
        _, err = self.succeed(*command, "--tie", "pytorch", "-o", "t.onnx", "--run-dir", "run")
        self.assertNotIn("not trained", err)
        self.assertEqual(len([line for line in err.splitlines() if "biases of zeros that the exporter had removed are stored again" in line]), 1, err)

        # One step of softmax regression by hand.
        step = [0.0, 0.0]
        through_convolution = 0.0
        for a, b, label in data:
            logits = [a * weight[0] + b * weight[2], a * weight[1] + b * weight[3]]
            total = sum(math.exp(logit) for logit in logits)
            for k in range(2):
                gradient = (math.exp(logits[k]) / total - (k == label)) / len(data)
                step[k] -= rate * gradient
                through_convolution -= rate * gradient * (weight[k] + weight[2 + k])
        stored = floats_in(self.folder / "t.onnx")
        self.assertEqual(set(stored), {"body.0.weight", "body.0.bias", "fc.weight", "fc.bias"})
        for found, expected in zip((*stored["fc.bias"], *stored["body.0.bias"]), (*step, through_convolution)):
            self.assertAlmostEqual(found, expected, delta=1e-6)

        # A layer that is called twice has one bias.
        self.write("m.onnx", without_biases(weight, calls=2))
        self.assertIn("2 of them zero biases that the exporter removed", self.succeed("inspect", "m.onnx", "--tie", "pytorch")[0])
        self.succeed(*command, "--tie", "pytorch", "-o", "twice.onnx", "--run-dir", "run3")
        self.assertEqual((self.folder / "twice.onnx").read_bytes().count(b"body.0.bias"), 3)  # the tensor and two inputs

        # The written model has them as inputs of its nodes; by default the file is trained as it is.
        self.assertNotIn("zero biases", self.succeed("inspect", "t.onnx")[0])
        self.assertIn("fc.bias", self.succeed("inspect", "t.onnx", "--params")[0])
        self.succeed("verify", "t.onnx", "--data", "d.csv", "--device", "cpu", "--stages", "1")
        note = "2 biases of zeros that PyTorch's exporter removed are not trained: "
        report = self.succeed("inspect", "m.onnx", "--params")[0]
        self.assertIn(note, report)
        self.assertIn("give --tie pytorch", report)
        self.assertNotIn("fc.bias  ", report)
        _, err = self.succeed(*command, "-o", "u.onnx", "--run-dir", "run2")
        self.assertIn(note, err)
        self.assertNotIn(b"fc.bias", (self.folder / "u.onnx").read_bytes().replace(b"%p_fc_bias", b""))

    def test_a_token_expanded_to_the_batch_is_trained_as_one(self):
        weight, token, rate = [0.5, -0.25, 0.125, 1.0, -0.5, 0.75, 0.25, -1.0], [0.3, -0.6], 0.5
        data = [(0.5, -1.0, 0), (1.5, 0.25, 1), (-0.75, 2.0, 0)]
        self.write("m.onnx", with_token(weight, token, len(data)))
        self.write("d.csv", "".join(f"{a},{b},{label}\n" for a, b, label in data))
        out, _ = self.succeed("inspect", "m.onnx", "--params")
        self.assertIn("1 of them expanded to the batch by the exporter", out)
        self.assertIn("embeddings.cls_token", out)
        self.succeed("train", "m.onnx", "--data", "d.csv", *CPU, "--max-steps", "1", "-b", "3", "--optimizer", "sgd", "--momentum", "0", "--weight-decay", "0", "--lr",
                     str(rate), "--lr-schedule", "constant", "--normalize", "none", "--loss", "cross-entropy", "-o", "t.onnx", "--run-dir", "run")

        expected = list(token)
        for a, b, label in data:
            row = [*token, a, b]
            logits = [sum(row[i] * weight[2 * i + k] for i in range(4)) for k in range(2)]
            total = sum(math.exp(logit) for logit in logits)
            for k in range(2):
                gradient = (math.exp(logits[k]) / total - (k == label)) / len(data)
                for i in range(2):
                    expected[i] -= rate * gradient * weight[2 * i + k]
        stored = floats_in(self.folder / "t.onnx")["expand"]
        for found, wanted in zip(stored, expected * len(data)):
            self.assertAlmostEqual(found, wanted, delta=1e-6)
        self.assertEqual(len(stored), 6)


if __name__ == "__main__":
    unittest.main()
