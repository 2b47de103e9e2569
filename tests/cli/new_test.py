"""Networks that the program writes itself: small ones to train, large ones to plan with."""

import re
import unittest

from program import Case

# GPT-3 (Brown et al. 2020) but for a shorter context: 700 GB of weights.
GPT3 = ["--layers", "96", "--width", "12288", "--heads", "96", "--vocab", "50257", "--context", "256"]
TINY = ["--layers", "2", "--width", "64", "--vocab", "100", "--context", "16"]
FEW_BLOCKS = 64  # of 512 bytes; some file systems count what they note of the file


class New(Case):
    def sizes(self, name):
        """Bytes and blocks of a file."""
        status = (self.folder / name).stat()
        return status.st_size, status.st_blocks

    def test_a_network_too_large_for_any_disk_takes_none(self):
        _, err = self.succeed("new", "gpt", *GPT3)
        self.assertIn("for planning", err)
        size, blocks = self.sizes("gpt.onnx.data")
        self.assertGreater(size, 690e9)
        self.assertLessEqual(blocks, FEW_BLOCKS)
        self.assertLess(self.sizes("gpt.onnx")[0], 2e6)
        out, _ = self.succeed("inspect", "gpt.onnx")
        self.assertIn("sparse", out)
        self.assertIn("causal-lm, 50257 classes", out)

    def test_the_help_names_every_network(self):
        out, _ = self.succeed("new", "--help", environment={"COLUMNS": "999"})
        err = self.refused("usage", "new", "nothing")
        networks = re.findall(r"(?m)^  (\S+) ", err)
        self.assertIn("gpt-nano", networks)
        self.assertIn(f"an untrained model: {', '.join(networks)}", out)

    def test_weights_are_left_out_when_asked(self):
        self.succeed("new", "gpt", *TINY, "--weights", "none", "-o", "none.onnx")
        size, blocks = self.sizes("none.onnx.data")
        self.assertGreater(size, 1024 * FEW_BLOCKS)
        self.assertLessEqual(blocks, FEW_BLOCKS)
        self.succeed("new", "gpt", *TINY, "-o", "some.onnx")
        self.assertFalse((self.folder / "some.onnx.data").exists())
        self.succeed("train", "some.onnx", "--batch-size", "4", "--max-steps", "1")

    def test_files_are_replaced_only_when_asked(self):
        self.write("gpt.onnx.data", "mine")
        self.refused("usage", "new", "gpt", *TINY, "--weights", "none", says=["gpt.onnx.data", "--overwrite"])
        self.assertEqual((self.folder / "gpt.onnx.data").read_text(), "mine")
        self.succeed("new", "gpt", *TINY, "--weights", "none", "--overwrite")

    def test_what_it_cannot_write_it_refuses(self):
        self.refused("usage", "new", "gpt", *TINY, "--weights", "none", "-o", "-", says="--output")
        self.refused("usage", "new", "gpt", *TINY, "--weights", "some", says=["--weights", "random"])
        self.refused("usage", "new", "gpt", *TINY, "--heads", "7", says="--heads")
        self.refused("usage", "new", "mlp", "--heads", "7", says="--heads")


if __name__ == "__main__":
    unittest.main()
