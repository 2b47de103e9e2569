"""What is planned is what is trained: micro-batches, cuts, and what has room."""

import re
import unittest

from onnx_file import model, node, tensor, value_info
from process_case import ProcessCase
from program import MODEL, MODELS, Case, parse

CPU = ("--device", "cpu")
WIDTH, DEPTH = 64, 6


def seconds(text):
    number, unit = text.split()
    return float(number) * {"s": 1, "ms": 1e-3, "us": 1e-6}[unit]


def layers(batch):
    """A multilayer perceptron for a batch of so many samples."""
    nodes, value = [], "x"
    for layer in range(DEPTH):
        nodes += [node("MatMul", [value, f"w{layer}"], [f"h{layer}"], f"linear{layer}"), node("Relu", [f"h{layer}"], [f"r{layer}"], f"relu{layer}")]
        value = f"r{layer}"
    weights = [tensor(f"w{layer}", [WIDTH, WIDTH], [(i % 7 - 3) / 20 for i in range(WIDTH * WIDTH)]) for layer in range(DEPTH)]
    return model(nodes, [value_info("x", [batch, WIDTH])], [value_info(value, [batch, WIDTH])], weights)


def candidates(out):
    """Rows of the table of a search: micro-batches, seconds of a step, samples per second, whether it is the chosen one."""
    rows = re.findall(r"^\S+ +\d+ +\d+ +(\d+) +(?:yes|no) +([\d.]+ \w?s) +([\d.e+]+) .*$", out, re.MULTILINE)
    return [(int(micro), seconds(step), float(rate)) for micro, step, rate in rows]


class Planning(Case):
    def test_a_fixed_batch_is_planned_as_it_is_divided(self):
        self.write("fixed.onnx", layers(16))
        out, err = self.succeed("plan", "fixed.onnx", *CPU, "--gpus", "2", "--batch-size", "128")
        rows = candidates(out)
        self.assertGreater(len(rows), 0, out)
        self.assertEqual({micro for micro, _, _ in rows}, {8}, out)
        self.assertIn(": 8 micro-batches on", err)

    def test_rates_count_the_samples_of_a_batch(self):
        self.write("free.onnx", layers("batch"))
        out, _ = self.succeed("plan", "free.onnx", *CPU, "--gpus", "2", "--batch-size", "9", "--micro-batches", "8")
        self.assertIn("<- chosen", out)
        for _, step, rate in candidates(out):
            self.assertAlmostEqual(step * rate, 9, delta=0.2)

    def test_replicas_that_are_planned_leave_no_cuts_to_give(self):
        for command in (["plan"], ["train", "--dry-run"], ["simulate"]):
            self.refused("usage", *command, "-m", MODEL, *CPU, "--gpus", "3", "--split", "block.conv1", "--replicas", "auto", says="leave out --split")

    def test_a_given_size_of_micro_batches_is_kept(self):
        self.write("free.onnx", layers("batch"))
        run = ["--model", "free.onnx", *CPU, "--gpus", "2", "--batch-size", "100", "--micro-batch-size", "40"]
        for schedule in ("1f1b", "auto"):
            _, err = self.succeed("train", *run, "--schedule", schedule, "--dry-run")
            self.assertIn("100 = 3 micro-batches x 40 samples", err)
        self.assertIn(": 3 micro-batches on", err)
        self.succeed("tune", *run, "--budget", "1s", "-o", "fast.toml")
        tuned = (self.folder / "fast.toml").read_text()
        self.assertIn("\nmicro-batch-size = 40\n", tuned)
        self.assertNotIn("\nmicro-batches", tuned)
        _, err = self.succeed("train", "--config", "fast.toml", "--dry-run")
        self.assertIn("100 = 3 micro-batches x 40 samples", err)

    def test_a_comparison_leaves_out_what_does_not_fit(self):
        self.write("free.onnx", layers("batch"))
        run = ["simulate", "free.onnx", "--gpus", "2", "--batch-size", "4096", "--recompute", "none", "--json"]
        rows = parse(self.succeed(*run)[0])["rows"]
        most = {(row["schedule"], row["micro_batches"]): max(row["peak_bytes"]) for row in rows}
        limit = most["1f1b", 16] * 21 // 20
        self.assertLess(limit, most["gpipe", 2])
        out, err = self.succeed(*run, "--gpu-memory", str(limit))
        kept = [(row["schedule"], row["micro_batches"]) for row in parse(out)["rows"]]
        self.assertIn(("1f1b", 16), kept)
        self.assertNotIn(("gpipe", 2), kept)
        self.assertIn("gpipe with 2 micro-batches is left out: ", err)
        self.refused("resource", *run, "--gpu-memory", "10KiB")

    def test_each_row_of_a_comparison_has_its_stages(self):
        for more, stages, devices in ((["--gpus", "2", "--schedules", "1f1b,zb-v", "--micro-batches", "4"], [2, 4], 2),
                                      (["--schedule", str(MODELS.parent / "schedules" / "dualpipev-4x8.schedule"), "-b", "64"], [8], 4)):
            rows = parse(self.succeed("simulate", "-m", MODEL, *more, "--json")[0])["rows"]
            self.assertEqual([row["stages"] for row in rows], stages)
            self.assertEqual([len(row["peak_bytes"]) for row in rows], stages)
            self.assertEqual({row["devices"] for row in rows}, {devices})
        self.refused("usage", "simulate", "-m", MODEL, "--gpus", "2", "--schedules", ",", says="--schedules")


class Room(Case):
    def topology(self, limit):
        """A laptop whose devices have so many bytes."""
        laptop = (MODELS.parent / "topologies" / "laptop.json").read_text()
        return self.write(f"{limit}.json", re.sub('"memory_gibibytes": *[0-9.]+', f'"memory_bytes": {limit}', laptop))

    def test_stages_of_a_device_that_is_not_here_have_room_together(self):
        zb_v = ["--gpus", "2", "--schedule", "zb-v", "--split", "block.conv1,block.norm2,last.conv", "--micro-batches", "4"]
        for more in (zb_v, ["--schedule", str(MODELS.parent / "schedules" / "chimera-4x4.schedule")]):
            run = ["plan", "-m", MODEL, *CPU, *more, "--batch-size", "64", "--recompute", "none"]
            stages = parse(self.succeed(*run, "--topology", "laptop", "--json")[0])["stages"]
            limit = max(stage["memory_bytes"] for stage in stages) * 51 // 50
            self.refused("resource", *run, "--topology", self.topology(limit), says="more than the memory of a device of --topology")
            if more == zb_v:
                self.refused("resource", "simulate", *run[1:], "--topology", self.topology(limit))

    def test_a_search_finds_what_fits(self):
        """Tensor sizes add up to less than the layout takes: what seems to fit may not."""
        run = [MODEL, *CPU, "--gpus", "2"]
        document = parse(self.succeed("simulate", *run, "--schedules", "1f1b", "--micro-batches", "8", "--json")[0])
        limit = str(max(document["rows"][0]["peak_bytes"]) * 21 // 20)
        out, _ = self.succeed("plan", *run, "--gpu-memory", limit)
        self.assertIn("<- chosen", out)
        self.succeed("train", *run, "--schedule", "auto", "--gpu-memory", limit, "--dry-run")

    def test_a_plan_for_devices_that_are_not_here_fits_as_laid_out(self):
        self.succeed("new", "gpt", "--layers", "4", "--width", "256", "--heads", "4", "--vocab", "1024", "--context", "128", "--weights", "none",
                     "-o", "gpt.onnx", "-q")
        run = ["simulate", "gpt.onnx", "--gpus", "4", "--batch-size", "64", "--schedule", "1f1b", "--micro-batches", "16", "--json"]

        def most(topology):
            return max(parse(self.succeed(*run, "--topology", topology)[0])["rows"][0]["peak_bytes"])

        for part in (95, 85, 75):
            limit = most("laptop") * part // 100
            self.assertLessEqual(most(self.topology(limit)), limit)


class Processes(ProcessCase):
    def test_a_size_of_micro_batches_is_tuned_in_all_processes(self):
        self.write("free.onnx", layers("batch"))
        self.train_in(2, "tune", "-m", "free.onnx", *CPU, "--batch-size", "100", "--micro-batch-size", "40", "--budget", "2s", "-o", "t.toml")
        self.assertIn("\nmicro-batch-size = 40\n", (self.folder / "t.toml").read_text())


if __name__ == "__main__":
    unittest.main()
