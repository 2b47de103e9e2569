"""Data from the outside: made, inspected, converted; images in folders trained on, changed at random by (seed, step, sample)."""

import csv
import hashlib
import io
import math
import os
import random
import re
import shutil
import struct
import tarfile
import unittest
import warnings
import zipfile
import zlib

from labels_test import linear
from onnx_file import INT64, model, node, tensor, value_info
from program import SECONDS, Case, events, parse

SMALL = ["--batch-size", "16", "--device", "cpu", "--threads", "1", "-q"]


class Command(Case):
    def test_make_inspect_convert(self):
        self.succeed("data", "make", "glyphs", "--samples", "40", "-o", "g.npz")
        out, _ = self.succeed("data", "inspect", "g.npz")
        for part in ["NumPy archive", "train: 40 samples", "validation: 8 samples", "uint8 (28, 28)", "(labels)"]:
            self.assertIn(part, out)
        first = (self.folder / "g.npz").read_bytes()
        self.refused("usage", "data", "make", "glyphs", "-o", "g.npz", says="--overwrite")
        self.succeed("data", "make", "glyphs", "--samples", "40", "-o", "g.npz", "--overwrite")
        self.assertEqual(first, (self.folder / "g.npz").read_bytes())
        self.succeed("data", "make", "spirals", "--samples", "30", "-o", "s.csv")
        self.assertEqual(len((self.folder / "s.csv").read_text().splitlines()), 31)
        self.write("text.txt", "to be or not")
        self.succeed("data", "make", "bytes", "--from", "text.txt", "-o", "t.bin")
        self.assertIn("12 tokens", self.succeed("data", "inspect", "t.bin")[0])

    def test_a_column_without_a_name_is_written(self):
        self.write("t.csv", ",a,y\n0,1.5,0\n1,2.5,1\n")
        self.succeed("data", "convert", "t.csv", "-o", "c.csv")
        self.assertEqual((self.folder / "c.csv").read_text().splitlines()[0], ",a,y")

    def test_a_table_is_described_before_anybody_knows_its_options(self):
        self.write("t.csv", "city,size,area,price\nBonn,1,2.5,10\nKöln,,3.5,20\nBonn,3,4.5,30\n")
        out, _ = self.succeed("data", "inspect", "t.csv")
        self.assertRegex(out, r"city +2 words  Bonn, Köln\n +size +1 +2 +3\n +area +2.5 +3.5 +4.5")
        self.assertIn('to train with it: t.csv line 2, column 1 (city): "Bonn" is not a number; encode words with --categories', out)
        out, _ = self.succeed("data", "inspect", "t.csv", "--categories", "one-hot", "--missing", "mean")
        self.assertIn("city=Bonn", out)
        self.assertNotIn("to train with it", out)
        self.write("bad.csv", "a,b\n1,2\n3\n")
        self.refused("data", "data", "inspect", "bad.csv", says="line 3 has 1 columns")

    def test_a_table_is_described_with_the_width_of_training(self):
        # As many words as rows: each row that is not trained on has one that is no category.
        self.write("t.csv", "word,y\n" + "".join(f"w{i},{i % 2}\n" for i in range(40)))
        self.write("m.onnx", linear(32, 2))
        known = []
        for seed in ("1", "2"):
            table = ["t.csv", "--categories", "one-hot", "--val-split", "8", "--seed", seed]
            out, _ = self.succeed("data", "inspect", *table)
            self.assertIn('"x" float32 (32)', out)
            self.assertIn("fitted to 32 of 40 rows", out)
            self.succeed("train", "m.onnx", "--data", *table, "--max-steps", "1", *SMALL, "--run-dir", f"run{seed}")
            known.append(parse((self.folder / f"run{seed}/columns.json").read_text())["columns"][0]["words"])
            self.assertEqual(re.findall(r"word=(w\d+)", out), known[-1])
        self.assertNotEqual(*known)
        out, _ = self.succeed("data", "inspect", "t.csv", "--categories", "one-hot", "--limit", "30", "--val-split", "0.2")
        self.assertIn('"x" float32 (24)', out)
        self.write("wide.onnx", linear(33, 2))
        err = self.refused("data", "train", "wide.onnx", "--data", *table, *SMALL, says="a model of this table takes 32 numbers")
        self.assertNotIn("was used as labels", err)
        for more in (["--limit", "3"], ["--val-split", "0.2"]):
            self.refused("usage", "data", "convert", "t.csv", "-o", "t.npz", *more, says="for data inspect")

    def test_a_table_needs_arrays_of_one_length(self):
        with zipfile.ZipFile(self.folder / "d.npz", "w") as out:
            for name, count in (("x", 3), ("y", 2)):
                out.writestr(f"{name}.npy", self.array(*range(count)))
        self.refused("data", "data", "convert", "d.npz", "-o", "d.csv",
                     says=["arrays disagree on the number of samples", '"x" has 3', '"y" has 2', "write an .npz"])
        self.assertFalse((self.folder / "d.csv").exists())
        self.succeed("data", "convert", "d.npz", "-o", "e.npz")

    def test_mistakes(self):
        self.refused("usage", "data", says="data inspect PATH")
        self.refused("usage", "data", "inspekt", "x", says="did you mean inspect?")
        self.refused("usage", "data", "make", "digits", "-o", "d.npz", says="glyphs")
        self.refused("usage", "data", "make", "bytes", "-o", "d.bin", says="--from")
        self.refused("usage", "data", "make", "glyphs", "-o", "d.h5", says=".npz")
        self.refused("usage", "data", "make", "glyphs", says="--output")
        self.refused("data", "data", "inspect", "nowhere", says="nowhere")

    def test_only_an_archive_has_both_parts(self):
        for name, warns in (("g.csv", True), ("g.npz", False)):
            _, err = self.succeed("data", "make", "glyphs", "--samples", "10", "-o", name)
            self.assertEqual(warns, "has the training part only; an .npz file holds the validation part too" in err)

    def test_a_model_knows_what_sparse_rows_count_from(self):
        model = self.write("m.onnx", linear(3, 2))
        train = self.write("t.svm", "0 0:1 1:2 2:3\n1 0:5 2:1\n" * 8)
        self.succeed("train", model, "--data", train, "--max-steps", "1", *SMALL, "-o", "t.onnx")
        other = self.write("v.svm", "0 1:1 2:2\n1 2:7\n")
        full = self.write("f.svm", "0 0:0 1:1 2:2\n1 0:0 1:0 2:7\n")
        found = [self.succeed("predict", "t.onnx", "--data", data, "--device", "cpu")[0] for data in (other, full)]
        self.assertEqual(*found)
        self.succeed("train", model, "--data", train, "--max-steps", "1", "--lr", "0.1", *SMALL, "--run-dir", "run")
        self.succeed("export", "--from", "run", "-o", "e.onnx")
        found = [self.succeed("predict", name, "--data", other, "--device", "cpu")[0] for name in ("run/trained.onnx", "e.onnx")]
        self.assertEqual(*found)

    def test_rows_of_tokens_are_predicted_one_by_one(self):
        nodes = [node("Gather", ["table", "input_ids"], ["found"])]
        self.write("m.onnx", model(nodes, [value_info("input_ids", ["batch", 4], INT64)], [value_info("found", ["batch", 4, 1])],
                                   [tensor("table", [8, 1], [0.5 * i for i in range(8)])]))
        self.write("d.jsonl", '{"input_ids": [1, 2, 3]}\n{"input_ids": [4, 5]}\n')
        rows = events(self.succeed("predict", "m.onnx", "--data", "d.jsonl", "--device", "cpu")[0])
        numbers = [[float(number) for number in re.findall(r"[0-9.]+", str(row["found"]))] for row in rows]
        self.assertEqual(numbers, [[0.5, 1, 1.5, 0], [2, 2.5, 0, 0]])

    def test_columns_of_a_table_are_found_by_name(self):
        model = self.write("m.onnx", linear(3, 2))
        rows = [(i % 5, i % 3, i % 7, i % 2) for i in range(24)]

        def table(name, order):
            return self.write(name, "\n".join([",".join("abcy"[i] for i in order), *(",".join(str(row[i]) for i in order) for row in rows)]) + "\n")

        here, there = table("t.csv", [0, 1, 2, 3]), table("v.csv", [3, 2, 0, 1])
        for more in ([], ["--scale", "standard"], ["--normalize", "max"]):
            self.succeed("train", model, "--data", here, "--val-data", there, "--max-steps", "1", *SMALL, *more, "--lr", "0.1", "--lr-schedule", "constant",
                         "--run-dir", "run", "--overwrite")
            for command in ("predict", "eval"):
                # Options of training that are given again change nothing.
                found = [re.sub(r'"seconds":.*', "", self.succeed(command, "run/trained.onnx", "--data", data, "--device", "cpu", *again)[0])
                         for data, again in ((here, []), (there, []), (there, more[:2] if "--scale" in more else []))]
                self.assertEqual(found, found[:1] * 3, more)
        one = self.write("one.csv", "c,b,a\n3,2,1\n")
        _, err = self.succeed("predict", "run/trained.onnx", "--data", one, "--device", "cuda")
        self.assertIn("predict computes on CPU cores, not on GPUs", err)
        self.assertEqual(len(self.succeed("predict", "run/trained.onnx", "--data", one, "--device", "cpu")[0].splitlines()), 1)
        other = self.write("o.csv", "a,b,d,y\n1,2,3,0\n")
        self.refused("data", "eval", "run/trained.onnx", "--data", other, "--device", "cpu", says=['no column "c"', "trained with"])

    def test_a_pipe_is_read_once_and_needs_a_writer(self):
        os.mkfifo(self.folder / "pipe")
        for more in ([], ["--format", "csv"]):
            self.refused("data", "data", "inspect", "pipe", *more, says=['"pipe"', "nothing writes to"])
        self.refused("data", "data", "inspect", "/dev/zero", "--format", "csv", says=["/dev/zero", "device"])
        with self.start("data", "inspect", "pipe") as reader:  # its format is found, then it is read
            (self.folder / "pipe").write_text("a,b\n1,2\n3,4\n")
            out, err = reader.communicate(timeout=SECONDS)
        self.assertEqual(reader.returncode, 0, err)
        self.assertIn("2 samples", out.decode())

    def test_an_image_comes_from_standard_input(self):
        image = self.write("a.ppm", b"P6 1 1 255\n\1\2\3")
        out, _ = self.succeed("data", "inspect", "-", before=lambda: os.dup2(os.open(image, os.O_RDONLY), 0))
        self.assertIn("one image", out)

    def array(self, *values):
        """A .npy file with one number in each row."""
        header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d, 1), }\n" % len(values)
        return b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + bytes(values)

    def test_two_entries_of_one_name_are_refused(self):
        with warnings.catch_warnings(), zipfile.ZipFile(self.folder / "d.npz", "w") as out:
            warnings.simplefilter("ignore")
            for value in (1, 2):
                out.writestr("x.npy", self.array(value))
        self.refused("data", "data", "inspect", "d.npz", says=["d.npz", 'two entries "x.npy"'])

    def test_links_to_folders_above_bring_nothing_twice(self):
        for name in ("a", "b"):
            (self.folder / "set" / name).mkdir(parents=True)
            self.write(f"set/{name}/1.ppm", b"P6 1 1 255\n\1\2\3")
        self.write("other.ppm", b"P6 1 1 255\n\1\2\3")
        for link, target in [("a/up", ".."), ("a/self", "."), ("b/top", "../.."), ("c", "..")]:
            (self.folder / "set" / link).symlink_to(target)
        (self.folder / "set/b/of a").symlink_to("../a")  # this is another folder's, and may be wanted
        self.assertIn("3 samples", self.succeed("data", "inspect", "set")[0])


class Images(Case):
    def setUp(self):
        super().setUp()
        source = random.Random(3)
        for kind in range(3):
            (self.folder / f"p/class{kind}").mkdir(parents=True)
            for i in range(16):
                pixels = bytes(min(255, 60 * kind + source.randrange(80)) for _ in range(20 * 16 * 3))
                self.write(f"p/class{kind}/{i:02d}.ppm", b"P6\n20 16\n255\n" + pixels)
        self.succeed("new", "lenet", "--image", "16", "--channels", "3", "--classes", "3", "-o", "net.onnx")
        self.train = ["train", "-m", "net.onnx", "--data", "p", *SMALL]

    def losses(self, name, *more):
        self.succeed(*self.train, "--run-dir", name, "-o", f"{name}.onnx", *more)
        lines = events((self.folder / name / "events.jsonl").read_text())
        return [line["loss"] for line in lines if line["event"] == "step"]

    def test_a_model_knows_how_images_were_fitted(self):
        self.losses("run", "--max-steps", "2", "--resize", "stretch")
        self.succeed("export", "--from", "run", "-o", "exported.onnx")
        for command in ("eval", "predict"):
            asked, _ = self.succeed(command, "run.onnx", "--data", "p", "--resize", "stretch", "--device", "cpu")
            for model in ("run.onnx", "exported.onnx"):
                known, err = self.succeed(command, model, "--data", "p", "--device", "cpu")
                self.assertEqual(known, asked)
                self.assertIn("--resize stretch", err)
            for fit in ("pad", "crop"):  # also the default, where it is given
                other, _ = self.succeed(command, "run.onnx", "--data", "p", "--resize", fit, "--device", "cpu")
                self.assertNotEqual(other, asked)

    def test_no_bit_depends_on_workers_stages_or_resuming(self):
        self.check_bits("flip,crop:2,brightness:0.2")

    def test_no_bit_of_mixed_batches_depends_on_workers_stages_or_resuming(self):
        self.check_bits("mixup:0.4,cutmix,flip")

    def check_bits(self, augment):
        augment = ["--augment", augment, "--normalize", "imagenet", "--micro-batches", "4"]
        plain = self.losses("plain", "--epochs", "2", "--micro-batches", "4", "--normalize", "imagenet")
        whole = self.losses("whole", "--epochs", "2", "--save-every", "1ep", *augment)
        self.assertEqual(len(whole), 6)
        self.assertNotEqual(plain, whole)
        self.assertEqual(whole, self.losses("workers", "--epochs", "2", "--workers", "3", *augment))
        self.assertEqual(whole, self.losses("stages", "--epochs", "2", "--gpus", "2", *augment))
        digest = lambda name: hashlib.sha256((self.folder / name).read_bytes()).hexdigest()
        self.assertEqual(digest("whole.onnx"), digest("stages.onnx"))
        resumed = ["--resume=whole/checkpoints/step-000003", "--run-dir", "again", "-o", "again.onnx", "-q"]
        self.succeed(*resumed)
        self.assertEqual(digest("whole.onnx"), digest("again.onnx"))

    def test_mixed_samples_have_mixed_labels(self):
        mixed = ["--augment", "mixup:1", "--epochs", "60", "--val-split", "0.25", "--lr", "3e-3"]
        _, err = self.succeed(*self.train[:-1], "--run-dir", "mixed", *mixed)
        self.assertIn("classifier (cross-entropy, 3 classes, mixed labels)", err)
        lines = events((self.folder / "mixed/events.jsonl").read_text())
        # Labels of several classes cannot be predicted with certainty, those of validation can.
        last = [line["loss"] for line in lines if line["event"] == "step"][-60:]
        self.assertGreater(sum(last), 2 * sum(self.losses("plain", *mixed[2:])[-60:]))
        self.assertNotIn("accuracy", [line for line in lines if line["event"] == "step"][0])
        self.assertGreater([line for line in lines if line["event"] == "val"][-1]["accuracy"], 0.9)
        # What is trained is what verify checks, and smoothing is part of the labels.
        self.succeed("verify", "net.onnx", "--data", "p", "--batch-size", "16", "--gpus", "2", "--device", "cpu", "--augment", "mixup:1")
        smooth = self.losses("smooth", *mixed, "--label-smoothing", "0.2")
        self.assertNotEqual(smooth, [line["loss"] for line in lines if line["event"] == "step"])
        self.refused("usage", *self.train, *mixed, "--class-weights", "1,2,3", says="--class-weights")
        for wrong in ("1.5", "-0.2"):
            self.refused("usage", *self.train, *mixed, f"--label-smoothing={wrong}", says=["--label-smoothing must be at least 0 and below 1", wrong])
        self.refused("usage", *self.train, "--augment", "cutmix:0", says="out of range")
        self.succeed("new", "gpt-nano", "--depth", "1", "--width", "16", "--heads", "2", "-o", "gpt.onnx")
        self.refused("usage", "train", "gpt.onnx", "--augment", "mixup", "--device", "cpu", says="need one label per sample")

    def test_images_of_no_class_are_answered_with_folders(self):
        self.refused("data", *self.train, "--data", "p/class0", says="put the images of each class into a folder with its name")

    def test_what_is_no_image_is_said(self):
        for name in ["p/class0/a.GIF", "p/class0/b.tiff", "p/class0/notes.txt", "p/class0/.DS_Store"]:
            self.write(name, b"GIF89a")
        out, _ = self.succeed("data", "inspect", "p")
        self.assertIn("2 images in formats that are not read are ignored: p/class0/a.GIF, …", out)
        _, err = self.succeed(*self.train[:-1], "--max-steps", "1")
        self.assertIn("note     2 images in formats that are not read", err)

    def png(self, name, pixels, bits=8, palette=None):
        """A grey PNG, or one with a palette, of rows of numbers."""
        def chunk(kind, content):
            return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

        rows = b"".join(b"\0" + int("".join(f"{p:0{bits}b}" for p in row), 2).to_bytes(len(row) * bits // 8, "big") for row in pixels)
        head = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), bits, 3 if palette else 0, 0, 0, 0)
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + (chunk(b"PLTE", palette) if palette else b"") +
                         chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))

    def test_masks_beside_images_are_classes_of_pixels(self):
        source = random.Random(5)
        for i in range(12):
            mask = [[int(4 <= x + i % 3 < 12) + int(y > 8) for x in range(16)] for y in range(16)]
            pixels = bytes(min(255, 90 * mask[y][x] + source.randrange(40)) for y in range(16) for x in range(16) for _ in range(3))
            (self.folder / "s/images").mkdir(parents=True, exist_ok=True)
            self.write(f"s/images/{i:02d}.ppm", b"P6\n16 16\n255\n" + pixels)
            # As numbers of a palette, of two bits, and as a grey file.
            kinds = [{"palette": bytes(range(0, 240, 80)) * 3}, {"bits": 2}, {}]
            self.png(f"s/masks/{i:02d}{'_mask' if i % 2 else ''}.png", mask, **kinds[i % 3])
        out, _ = self.succeed("data", "inspect", "s")
        self.assertIn('12 samples of "y" uint8 (16, 16), values of the first from 0 to 2 (labels)', out)
        self.assertIn('labels from the masks in "masks"', out)
        self.succeed("new", "unet", "--image", "16", "--channels", "3", "--classes", "3", "--width", "8", "-o", "unet.onnx")
        run = ["train", "unet.onnx", "--data", "s", "--batch-size", "4", "--device", "cpu", "--threads", "1"]
        _, err = self.succeed(*run, "--epochs", "15", "--lr", "1e-2", "--run-dir", "run")
        self.assertIn("pixel classifier (cross-entropy, 3 classes)", err)
        last = [line for line in events((self.folder / "run/events.jsonl").read_text()) if line["event"] == "step"][-1]
        self.assertGreater(last["accuracy"], 0.9)
        # Predictions have the likeliest class of each pixel.
        row = events(self.succeed("predict", "run/trained.onnx", "--data", "s", "--limit", "1")[0])[0]
        scores = next(values for name, values in row.items() if name not in ("class", "file"))
        self.assertEqual(row["class"], [[max(range(3), key=lambda c: scores[c][y][x]) for x in range(16)] for y in range(16)])
        self.refused("usage", *run, "--augment", "flip", says="would move the pixels")
        self.succeed("new", "unet", "--image", "32", "--channels", "3", "--classes", "3", "--width", "8", "-o", "large.onnx")
        self.refused("data", "train", "large.onnx", *run[2:], says="bring images and masks to 32 x 32")
        # Those of as many pixels in other rows.
        for i in range(12):
            self.png(f"wide/masks/{i}.png", [[0] * 32] * 8)
            (self.folder / "wide/images").mkdir(exist_ok=True)
            self.write(f"wide/images/{i}.ppm", b"P6\n32 8\n255\n" + bytes(32 * 8 * 3))
        self.refused("data", "train", "unet.onnx", "--data", "wide", *run[4:], says="bring images and masks to 16 x 16")
        for name in ("00", "02"):
            self.png(f"s/masks/{name}.png", [[255 if x > 3 else 1 for x in range(16)] for _ in range(16)])
        self.refused("data", *run, "--epochs", "1", says=["label 255 out of range 0..2", "--ignore-index 255 leaves such pixels out"])
        self.succeed(*run, "--max-steps", "1", "--ignore-index", "255")
        # Drawn in black and white, masks have two classes.
        for i in range(12):
            self.png(f"s/masks/{i:02d}{'_mask' if i % 2 else ''}.png", [[255 * (x > 3) for x in range(16)] for _ in range(16)])
        self.assertIn("values of the first from 0 to 1", self.succeed("data", "inspect", "s")[0])
        # Where 255 is ignored, it is no class of theirs.
        _, err = self.succeed(*run, "--max-steps", "1", "--ignore-index", "255", "--run-dir", "ignored", "-v")
        self.assertRegex(err, r'first sample: .*"labels" 0 … 255')
        # Other masks of black and white are not those of classes above 1, in the model and in the run folder.
        for name, folder in [("run/trained.onnx", "run"), ("again.onnx", "run")]:
            if name == "again.onnx":
                self.succeed("export", "--from", folder, "-o", name)
            self.refused("data", "eval", name, "--data", "s", *SMALL[2:], says="label 255 out of range 0..2")
        # An image of another size, and one without a mask.
        self.write("s/images/03.ppm", b"P6\n20 16\n255\n" + bytes(20 * 16 * 3))
        self.refused("data", *run, "--epochs", "1", says=['03.ppm" has 20 x 16 pixels, its mask 16 x 16'])
        (self.folder / "s/masks/04.png").unlink()
        self.refused("data", "data", "inspect", "s", says=['04.ppm" has no mask in "s/masks"'])
        self.png("s/masks/04.png", [[0] * 8] * 8)
        self.refused("data", "data", "inspect", "s", says=['04.png" has 8 x 8 pixels, the first one 16 x 16'])

    def test_images_are_changed_by_the_seed(self):
        # Nothing else of this run depends on it: no shuffling, nothing held out, no masks.
        fixed = ["--no-shuffle", "--max-steps", "2", "--overwrite"]
        for augment in ([], ["--augment", "crop:4"], ["--augment", "brightness:0.5"]):
            with self.subTest(augment):
                first, again, other = (self.losses("run", *fixed, *augment, "--seed", seed) for seed in ("1", "1", "2"))
                self.assertEqual(first, again)
                if augment:
                    self.assertNotEqual(first, other)
                else:
                    self.assertEqual(first, other)

    def test_a_damaged_image_is_named_or_left_out(self):
        path = self.folder / "p/class1/07.ppm"
        path.write_bytes(path.read_bytes()[:500])
        err = self.refused("data", *self.train, "--epochs", "1", says=["07.ppm", "truncated"])
        self.assertNotIn("internal", err)
        self.losses("skipped", "--epochs", "1", "--on-bad-sample", "skip")
        first = self.folder / "p/class0/00.ppm"
        first.write_bytes(first.read_bytes()[:500])
        self.losses("skipped", "--epochs", "1", "--on-bad-sample", "skip", "--overwrite")
        self.refused("data", *self.train, "--epochs", "1", says="00.ppm")

    def test_classes_keep_their_numbers(self):
        self.losses("run", "--epochs", "2")
        self.assertEqual((self.folder / "run/classes.txt").read_text(), "class0\nclass1\nclass2\n")
        self.succeed("export", "--from", "run", "-o", "exported.onnx")
        self.assertEqual((self.folder / "exported.onnx").read_bytes(), (self.folder / "run.onnx").read_bytes())
        # Two of the three classes in another folder: by themselves they would be 0 and 1.
        for name in ["class1", "class2"]:
            (self.folder / "some").mkdir(exist_ok=True)
            shutil.copytree(self.folder / "p" / name, self.folder / "some" / name)
        out, _ = self.succeed("eval", "run.onnx", "--data", "some", "--device", "cpu", "--confusion", "-")
        self.assertEqual(out.splitlines()[0], "label,class0,class1,class2")
        rows = [[int(x) for x in line.split(",")[1:]] for line in out.splitlines()[1:4]]
        self.assertEqual(sum(rows[0]), 0)
        self.assertGreater(min(sum(rows[1]), sum(rows[2])), 0)
        shutil.copytree(self.folder / "p/class0", self.folder / "some/zebra")
        self.refused("data", "eval", "run.onnx", "--data", "some", "--device", "cpu", says=['"zebra"', "training data"])
        # Without training the file is what it was.
        self.losses("none", "--epochs", "0")
        self.assertEqual((self.folder / "none.onnx").read_bytes(), (self.folder / "net.onnx").read_bytes())

    def test_folders_called_by_numbers(self):
        # The class of the folder "2" is number 3, behind those of "0", "1" and "10".
        for kind in range(11):
            (self.folder / f"n/{kind}").mkdir(parents=True)
            for i in range(4):
                self.write(f"n/{kind}/{i}.ppm", b"P6\n16 16\n255\n" + bytes([20 * kind + i] * 768))
        self.succeed("new", "lenet", "--image", "16", "--channels", "3", "--classes", "11", "-o", "eleven.onnx")
        self.succeed("train", "-m", "eleven.onnx", "--data", "n", "--epochs", "2", *SMALL, "-o", "out.onnx")
        self.succeed("data", "convert", "n", "-o", "n.npz")
        found = [parse(self.succeed("eval", "out.onnx", "--data", data, "--device", "cpu", "--json")[0]) for data in ("n", "n.npz")]
        self.assertAlmostEqual(found[0]["loss"], found[1]["loss"], places=6)

    def test_predictions_name_files_and_classes(self):
        for kind, name in enumerate(["ape", 'b,"ee', "cat"]):
            (self.folder / f"p/class{kind}").rename(self.folder / "p" / name)
        self.losses("run", "--epochs", "1")
        files = sorted(str(path.relative_to(self.folder)) for path in (self.folder / "p").rglob("*.ppm"))
        out, _ = self.succeed("predict", "run.onnx", "--data", "p")
        self.refused("usage", "predict", "run.onnx", "--data", "p", "--logits", "nonesuch", says=["--logits", "nonesuch"])
        rows = events(out)
        self.assertEqual([row["file"] for row in rows], files)
        names = ["ape", 'b,"ee', "cat"]
        for row in rows:
            self.assertEqual(list(row), ["logits", "file", "class", "class_name", "probabilities"])
            powers = [math.exp(x) for x in row["logits"]]
            for name, power in zip(names, powers):
                self.assertAlmostEqual(row["probabilities"][name], power / sum(powers), places=5)
            self.assertEqual(row["class"], row["logits"].index(max(row["logits"])))
            self.assertEqual(row["class_name"], names[row["class"]])
        out, _ = self.succeed("predict", "run.onnx", "--data", "p", "--to", "csv")
        table = list(csv.DictReader(io.StringIO(out)))
        self.assertEqual([(row["file"], int(row["class"]), row["class_name"]) for row in table],
                         [(row["file"], row["class"], row["class_name"]) for row in rows])
        self.assertEqual(out.partition("\n")[0], 'logits_0,logits_1,logits_2,file,class,class_name,probability_ape,"probability_b,""ee",probability_cat')
        self.assertAlmostEqual(float(table[0]["probability_ape"]), rows[0]["probabilities"]["ape"], places=5)
        # An image that is left out does not shift the names; an untrained model has those of the folders.
        (self.folder / files[3]).write_bytes(b"P6\n20 16\n255\n")
        out, _ = self.succeed("predict", "run.onnx", "--data", "p", "--on-bad-sample", "skip")
        words = lambda rows: [(row["file"], row["class"], row["class_name"]) for row in rows]
        self.assertEqual(words(events(out)), words(rows[:3] + rows[4:]))
        out, _ = self.succeed("predict", "net.onnx", "--data", "p/cat/../", "--on-bad-sample", "skip", "--limit", "2")
        self.assertEqual({row["class_name"] for row in events(out)} - set(names), set())
        with tarfile.open(self.folder / "a.tar", "w") as tar:
            tar.add(self.folder / files[0], "first.ppm")
            tar.add(self.folder / files[1], "second.ppm")
        out, _ = self.succeed("predict", "run.onnx", "--data", "a.tar")
        self.assertEqual([row["file"] for row in events(out)], ["a.tar member first.ppm", "a.tar member second.ppm"])
        self.assertEqual([row["class_name"] for row in events(out)], [row["class_name"] for row in rows[:2]])

    def test_classes_that_the_data_lack_have_their_numbers(self):
        self.succeed("new", "lenet", "--image", "16", "--channels", "3", "--classes", "5", "-o", "five.onnx")
        self.succeed("train", "-m", "five.onnx", "--data", "p", *SMALL, "--max-steps", "2", "-o", "out.onnx")
        for row in events(self.succeed("predict", "out.onnx", "--data", "p")[0]):
            names = ["class0", "class1", "class2", "3", "4"]
            self.assertEqual(list(row["probabilities"]), names)
            self.assertEqual(row["class"], row["logits"].index(max(row["logits"])))
            self.assertEqual(row["class_name"], names[row["class"]])

    def test_some_folders_do_not_name_the_classes_of_a_model_without_names(self):
        self.succeed("new", "lenet", "--image", "16", "--channels", "3", "--classes", "5", "-o", "five.onnx")
        for row in events(self.succeed("predict", "five.onnx", "--data", "p", "--loss", "cross-entropy")[0]):
            self.assertEqual(list(row["probabilities"]), ["0", "1", "2", "3", "4"])
            self.assertEqual(row["class"], row["logits"].index(max(row["logits"])))
            self.assertNotIn("class_name", row)

    def test_too_many_classes_are_found_before_the_first_step(self):
        self.succeed("new", "lenet", "--image", "16", "--channels", "3", "--classes", "2", "-o", "two.onnx")
        self.refused("data", "train", "-m", "two.onnx", "--data", "p", *SMALL, says="label 2 out of range 0..1")


if __name__ == "__main__":
    unittest.main()
