"""Outputs at the place of the model that is trained: checkpoints of the run are of the model as it is."""

import shutil
import unittest

import onnx_file
from program import DATA, MODEL, Case, field

CPU = ["--device", "cpu", "--threads", "1", "-q"]
SMALL = ["--data", DATA, "--limit", "64", "--batch-size", "32", "--max-steps", "2", *CPU]


class ReplacedModel(Case):
    def test_a_model_below_adapters_stays(self):
        self.succeed("train", "-m", MODEL, *SMALL, "--run-dir", "base")
        model = self.folder / "base/trained.onnx"
        for name in ("best.onnx", "last.onnx"):
            shutil.copy(model, self.folder / "base" / name)
        adapted = ["-m", "base/trained.onnx", *SMALL, "--lora", "2"]
        self.succeed("train", *adapted, "--run-dir", "adapted")
        before = self.contents_of("base")
        over = ["--run-dir", "base", "--overwrite"]
        validated = [*SMALL, "--val-split", "0.25", "--lora", "2", *over]
        for command, named in ((["export", "--from", "adapted", "-o", "base/trained.onnx", "--overwrite"], "base/trained.onnx"),
                               (["train", *adapted, "-o", "base/trained.onnx", "--overwrite"], "base/trained.onnx"),
                               (["train", *adapted, "-o", "base/trained.onnx", "--overwrite", "--dry-run"], "base/trained.onnx"),
                               (["train", *adapted, *over], "base/trained.onnx"),
                               (["train", "-m", "base/last.onnx", *validated], "base/last.onnx"),
                               (["train", "-m", "base/best.onnx", *validated, "--save", "last"], "base/best.onnx")):
            with self.subTest(command):
                self.refused("usage", *command, says=[f'"{named}" is the model that --lora adapts', "another --output"])
        self.refused("usage", "export", "--from", "adapted", "--adapter", "base/trained.onnx", "--overwrite",
                     says='--adapter "base/trained.onnx" is the model')
        self.assertEqual(self.contents_of("base"), before)
        self.succeed("export", "--from", "adapted", "-o", "other.onnx")
        # Without adapters, a run may replace its model, and goes on.
        shutil.copy(MODEL, self.folder / "net.onnx")
        self.succeed("train", "-m", "net.onnx", *SMALL, "-o", "net.onnx", "--overwrite", "--run-dir", "whole")
        self.succeed("--resume=whole", "--max-steps", "3", "--overwrite", "-q")
        self.succeed("export", "--from", "whole", "-o", "net.onnx", "--overwrite")

    def contents_of(self, run):
        return {path: path.read_bytes() for path in (self.folder / run).rglob("*") if path.is_file() and path.name != ".lock"}

    def test_a_model_whose_merged_tensors_are_separated_stays(self):
        heads = [onnx_file.node("Gemm", ["x", "w1", "b"], ["logits"], "head"), onnx_file.node("Gemm", ["x", "w2", "b"], ["aux"], "auxiliary")]
        tensors = [*(onnx_file.tensor(name, [4, 4], [0.1 * (i % 7) - 0.3 for i in range(16)]) for name in ("w1", "w2")), onnx_file.tensor("b", [4], [0] * 4)]
        outputs = [onnx_file.value_info(name, ["batch", 4]) for name in ("logits", "aux")]
        model = onnx_file.model(heads, outputs=outputs, initializers=tensors)
        self.write("m.onnx", model)
        train = ["train", "m.onnx", "--logits", "logits", *CPU, "--max-steps", "2", "--save-every", "1"]
        self.refused("usage", *train, "-o", "m.onnx", "--overwrite", says=['"m.onnx" is the model that is trained', "merged", "another --output"])
        self.succeed(*train, "-o", "t.onnx", "--run-dir", "run")
        self.refused("usage", "export", "--from", "run", "-o", "m.onnx", "--overwrite", says=['"m.onnx" is the model that is trained', "merged"])
        self.assertEqual((self.folder / "m.onnx").read_bytes(), model)
        self.succeed("export", "--from", "run", "-o", "t.onnx", "--overwrite")
        self.succeed(*train, "--tie", "graph", "-o", "m.onnx", "--overwrite")  # nothing is separated

    def test_a_new_last_layer_is_that_of_the_output_that_the_loss_reads(self):
        nodes = [onnx_file.node("MatMul", ["x", "w1"], ["first"], "head"), onnx_file.node("MatMul", ["x", "w2"], ["logits"])]
        tensors = [onnx_file.tensor(name, [4, 4], [0.1 * (i % 7) - 0.3 for i in range(16)]) for name in ("w1", "w2")]
        outputs = [onnx_file.value_info(name, ["batch", 4]) for name in ("first", "logits")]
        self.write("m.onnx", onnx_file.model(nodes, outputs=outputs, initializers=tensors))
        train = ["train", "m.onnx", "--num-classes", "3", "--device", "cpu", "--threads", "1", "--max-steps", "1"]
        self.assertIn('"w2" for 3 classes instead of 4', self.succeed(*train, "--run-dir", "run")[1])
        for name in ("first", "head"):
            err = self.succeed(*train, "--output-node", name, "--run-dir", f"to-{name}")[1]
            self.assertIn('"w1" for 3 classes', err)
            self.assertIn("3 classes)", err)
        self.refused("usage", *train, "--output-node", "nothing", "--run-dir", "other", says=["--output-node", '"nothing"'])
        self.assertIn('"w1" for 3 classes', self.succeed(*train, "--logits", "first", "--run-dir", "named")[1])

    def test_another_last_layer_than_that_of_the_loss_is_not_replaced_unnoticed(self):
        # An output without a type may be of floats, until the model is read.
        nodes = [onnx_file.node("MatMul", ["x", "w1"], ["first"]), onnx_file.node("MatMul", ["x", "w2"], ["scores"]),
                 onnx_file.node("Cast", ["scores"], ["logits"], to=7)]
        tensors = [onnx_file.tensor(name, [4, 4], [0.1 * (i % 7) - 0.3 for i in range(16)]) for name in ("w1", "w2")]
        outputs = [onnx_file.value_info("first", ["batch", 4]), field(1, b"logits")]
        self.write("m.onnx", onnx_file.model(nodes, outputs=outputs, initializers=tensors))
        self.refused("usage", "train", "m.onnx", "--num-classes", "3", "--device", "cpu", "--max-steps", "1", "--run-dir", "run",
                     says=['"first"', "4 classes", "--num-classes is 3", "--logits"])


if __name__ == "__main__":
    unittest.main()
