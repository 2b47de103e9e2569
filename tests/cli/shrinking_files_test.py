"""Files that become shorter while a run uses them: an error that names them, and nothing that was trained is lost."""

import fcntl
import io
import os
import pathlib
import random
import shutil
import struct
import tarfile
import threading
import unittest
import zlib

from program import MODEL, SECONDS, Case, digits, move_data_out, parse

CHANGED_AFTER = 3  # steps
LONG = ["--max-steps", "2000"]  # no run ends before its file is cut


def png(rows):
    """A grey image."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    pixels = b"".join(b"\0" + bytes(row) for row in rows)
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def archive(samples):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for index, row in enumerate(samples):
            *values, label = (int(float(value)) for value in row.split(","))
            image = png([[min(255, 16 * value) for value in values[8 * y:8 * y + 8]] for y in range(8)])
            for name, content in [(f"{index:04}.png", image), (f"{index:04}.cls", b"%d" % label)]:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def shorter(size):
    """Nothing left, a part, and an end inside the last page, of which no read can tell."""
    return [0, size // 2 + 100, size - 1]


class ShrinkingFiles(Case):
    def train(self, *arguments, change=lambda: None):
        """Trains, with a change after a few steps. The run cannot be far ahead, since the pipe that takes its events is small.
        Returns exit code, the losses by step, and stderr."""
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        losses = {}
        process = self.start("train", *arguments, "--device", "cpu", "--threads", "1", "--run-dir", "run", "--metrics", "-", "-q")
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        limit = threading.Timer(SECONDS, process.kill)
        limit.start()
        with process:
            for line in process.stdout:
                event = parse(line)
                if event["event"] != "step":
                    continue
                losses[event["step"]] = event["loss"]
                if event["step"] == CHANGED_AFTER:
                    change()
            err = process.stderr.read().decode()
        limit.cancel()
        return process.returncode, losses, err

    def check_data_error(self, file, content, *arguments, saves=True):
        for size in shorter(len(content)):
            with self.subTest(file=file, size=size):
                path = self.write(file, content)
                code, losses, err = self.train(*arguments, *LONG, change=lambda: os.truncate(path, size))
                self.assertEqual(code, 4, err)
                self.assertIn(f'error: "{file}" shrank from {len(content)} to {size} bytes while it was in use', err)
                self.assertGreaterEqual(len(losses), CHANGED_AFTER)
                if not saves:
                    continue
                # The state before the first batch that could not be read is there, and is whole.
                last = f"step-{max(losses):06}"
                self.assertIn(f"the last checkpoint is run/checkpoints/{last}", err)
                self.write(file, content)
                self.succeed("export", f"run/checkpoints/{last}", "--output", "exported.onnx", "--overwrite")
                more = max(losses) + 2
                self.succeed("train", "--resume=run", "--max-steps", str(more))
                self.assertTrue((self.folder / f"run/checkpoints/step-{more:06}").exists())


class Tokens(ShrinkingFiles):
    def setUp(self):
        super().setUp()
        draw = random.Random(7)
        self.content = struct.pack("<40960H", *(draw.randrange(1, 64) for _ in range(40960)))
        self.succeed("new", "gpt-nano", "--vocab", "64", "--context", "16", "--width", "16", "--depth", "1", "--heads", "2",
                     "-o", "nano.onnx")
        self.arguments = ["-m", "nano.onnx", "--data", "tokens.bin", "--token-dtype", "u16", "--batch-size", "8"]

    def test_a_token_file_that_shrinks_is_a_data_error(self):
        self.check_data_error("tokens.bin", self.content, *self.arguments)

    def test_also_where_stages_update_while_batches_are_in_flight(self):
        self.check_data_error("tokens.bin", self.content, *self.arguments, "--stages", "2", "--schedule", "pipedream", saves=False)

    def test_no_step_is_trained_on_what_was_cut(self):
        path = self.write("tokens.bin", self.content)
        _, expected, _ = self.train(*self.arguments, "--max-steps", "400")
        for size in shorter(len(self.content)):
            self.write("tokens.bin", self.content)
            _, losses, _ = self.train(*self.arguments, "--max-steps", "400", change=lambda: os.truncate(path, size))
            self.assertLess(len(losses), 400)
            self.assertEqual(losses, {step: expected[step] for step in losses})

    def test_a_file_that_is_replaced_or_grows_is_read_as_it_was(self):
        path = self.write("tokens.bin", self.content)
        arguments = [*self.arguments, "--max-steps", "200"]
        expected = self.train(*arguments)
        self.assertEqual(expected[0], 0, expected[2])
        self.assertEqual(self.train(*arguments, change=lambda: os.truncate(path, len(self.content) + 10000)), expected)
        self.write("tokens.bin", self.content)
        other = self.write("other.bin", b"short")
        self.assertEqual(self.train(*arguments, change=lambda: os.replace(other, path)), expected)


class Archives(ShrinkingFiles):
    def test_an_archive_that_shrinks_is_a_data_error(self):
        self.check_data_error("images.tar", archive(digits()[:128]), "-m", MODEL, "--data", "images.tar", "--batch-size",
                              "16")


class Tables(ShrinkingFiles):
    def test_a_table_has_been_read_when_the_run_begins(self):
        path = self.write("table.csv", "\n".join(digits()[:320]) + "\n")
        code, losses, err = self.train("-m", MODEL, "--data", "table.csv", "--max-steps", "200", change=lambda: os.truncate(path, 0))
        self.assertEqual((code, len(losses)), (0, 200), err)


class Models(ShrinkingFiles):
    """A run that gets to its end, and then cannot write the trained values into the model."""

    def setUp(self):
        super().setUp()
        self.write("table.csv", "\n".join(digits()[:320]) + "\n")
        self.arguments = ["-m", "model.onnx", "--data", "table.csv", "--batch-size", "32", "--max-steps", "200"]

    def check_kept(self, file, more=()):
        path = self.folder / file
        content = path.read_bytes()
        code, _, err = self.train(*self.arguments)
        self.assertEqual(code, 0, err)
        names = [name for name in ["trained.onnx", "trained.onnx.data"] if (self.folder / "run" / name).exists()]
        expected = {name: (self.folder / "run" / name).read_bytes() for name in names}
        for save in [[], ["--save-every", "never"]]:
            for size in shorter(len(content)):
                with self.subTest(file=file, size=size, save=save):
                    path.write_bytes(content)
                    code, losses, err = self.train(*self.arguments, *save, change=lambda: os.truncate(path, size))
                    self.assertEqual((code, len(losses)), (3, 200), err)
                    self.assertRegex(err, rf"{file} shrank from {len(content)} to {size} bytes since it was read")
                    self.assertIn("the trained weights are in run/checkpoints/step-000200", err)
                    path.write_bytes(content)
                    shutil.rmtree(self.folder / "exported", ignore_errors=True)
                    (self.folder / "exported").mkdir()
                    self.succeed("export", "run", "--output", "exported/trained.onnx")
                    self.assertEqual({name: (self.folder / "exported" / name).read_bytes() for name in names}, expected)
                    self.succeed("train", "--resume=run")
                    self.assertEqual({name: (self.folder / "run" / name).read_bytes() for name in names}, expected)

    def test_a_model_that_shrinks_loses_nothing_that_was_trained(self):
        shutil.copy(MODEL, self.folder / "model.onnx")
        self.check_kept("model.onnx")

    def test_nor_does_one_whose_data_file_shrinks(self):
        move_data_out(MODEL, self.folder / "model.onnx")
        self.check_kept("model.onnx.data")


if __name__ == "__main__":
    unittest.main()
