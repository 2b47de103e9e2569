"""Data from the outside: made, inspected, converted; images in folders trained on, changed at random by (seed, step, sample)."""

import csv
import hashlib
import io
import math
import os
import random
import shutil
import tarfile
import unittest
import warnings
import zipfile

from program import SECONDS, Case, events

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

    def test_mistakes(self):
        self.refused("usage", "data", says="data inspect PATH")
        self.refused("usage", "data", "inspekt", "x", says="did you mean inspect?")
        self.refused("usage", "data", "make", "digits", "-o", "d.npz", says="glyphs")
        self.refused("usage", "data", "make", "bytes", "-o", "d.bin", says="--from")
        self.refused("usage", "data", "make", "glyphs", "-o", "d.h5", says=".npz")
        self.refused("usage", "data", "make", "glyphs", says="--output")
        self.refused("data", "data", "inspect", "nowhere", says="nowhere")

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

    def test_two_entries_of_one_name_are_refused(self):
        def array(value):
            header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1), }\n"
            return b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + bytes([value])

        with warnings.catch_warnings(), zipfile.ZipFile(self.folder / "d.npz", "w") as out:
            warnings.simplefilter("ignore")
            for value in (1, 2):
                out.writestr("x.npy", array(value))
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

    def test_no_bit_depends_on_workers_stages_or_resuming(self):
        augment = ["--augment", "flip,crop:2,brightness:0.2", "--normalize", "imagenet", "--micro-batches", "4"]
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

    def test_predictions_name_files_and_classes(self):
        for kind, name in enumerate(["ape", 'b,"ee', "cat"]):
            (self.folder / f"p/class{kind}").rename(self.folder / "p" / name)
        self.losses("run", "--epochs", "1")
        files = sorted(str(path.relative_to(self.folder)) for path in (self.folder / "p").rglob("*.ppm"))
        out, _ = self.succeed("predict", "run.onnx", "--data", "p")
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

    def test_too_many_classes_are_found_before_the_first_step(self):
        self.succeed("new", "lenet", "--image", "16", "--channels", "3", "--classes", "2", "-o", "two.onnx")
        self.refused("data", "train", "-m", "two.onnx", "--data", "p", *SMALL, says="label 2 out of range 0..1")


if __name__ == "__main__":
    unittest.main()
