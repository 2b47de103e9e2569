"""pipetrain tune: candidates are measured within the budget, and the best of them is a configuration that train takes."""

import os
import re
import signal
import time
import unittest

from program import DATA, EXIT, MODEL, SECONDS, Case, parse

SMALL = ["tune", MODEL, "--data", DATA, "--limit", "320", "--batch-size", "32", "--device", "cpu"]


class Tune(Case):
    def rows(self, text):
        """Cells of the lines of candidates."""
        return [line.split() for line in text.splitlines() if re.match(r" +\d+  ", line)]

    def tune(self, candidates, *options):
        """Runs tune with more time until it measures two candidates: on a busy machine a short budget ends before that."""
        for budget in ["8s", "30s", "120s"]:
            out, err = self.succeed(*SMALL, "--gpus", "2", "--budget", budget, "--overwrite", "-o", "fast.toml", *options)
            if candidates(out) >= 2:
                break
        self.assertGreaterEqual(candidates(out), 2, out)
        return out, err

    def test_a_configuration_comes_out_that_train_takes(self):
        out, err = self.tune(lambda out: len(self.rows(out)), "--lr", "0.002", "--epochs", "1")
        rows = self.rows(out)
        self.assertEqual([int(row[0]) for row in rows], list(range(len(rows))))
        self.assertIn("as given", out.splitlines()[1])
        self.assertIn("best     ", err)
        text = (self.folder / "fast.toml").read_text()
        for key in ["model", "data", "gpus", "device", "schedule", "threads", "recompute", "micro-batches", "lr", "epochs"]:
            self.assertRegex(text, rf"(?m)^{key} = ")
        for key in ["output", "overwrite", "budget", "precision"]:
            self.assertNotRegex(text, rf"(?m)^{key} = ")
        # Numbers stay as they were: the run's own micro-batches.
        self.assertRegex(text, r"(?m)^micro-batches = 4$")
        self.assertRegex(text, r"(?m)^lr = 0\.002$")
        self.assertEqual({row[rows[0].index("4")] for row in rows if row[1] != "one"} - {"4"}, set())
        _, err = self.succeed("--config", "fast.toml", "--run-dir", "run", "--max-steps", "2")
        self.assertIn("step 1/2", err)
        self.refused("usage", *SMALL, "-o", "fast.toml", says="--overwrite")

    def test_a_configuration_that_cannot_be_written_is_not_sought(self):
        code, out, err = self.run_program(*SMALL, "--gpus", "2", "--budget", "8s", "-o", "nowhere/fast.toml")
        self.assertEqual((code, out), (EXIT["usage"], ""), err)
        self.assertIn('there is no folder "nowhere"', err)

    def test_what_changes_numbers_has_to_be_allowed(self):
        out, _ = self.tune(lambda out: len(parse(out)["candidates"]), "--allow-numeric", "--json")
        document = parse(out)
        self.assertEqual(document["schema"], "pipetrain.tune/1")
        best = document["candidates"][document["best"]]
        self.assertGreater(best["samples_per_s"], 0)
        self.assertGreater(best["peak_bytes"], 0)
        # On a busy machine the budget may be over before other numbers of micro-batches are profiled.
        others = {(c["micro_batches"], c["precision"], c["schedule"].startswith("pipedream")) for c in document["candidates"]}
        self.assertTrue(len(others) > 1 or document["considered"] < 20, out)

    def test_what_was_given_with_a_value_stays(self):
        self.succeed(*SMALL, "--gpus", "2", "--budget", "1s", "--schedule", "zb:memory-units=3",
                     "--threads", "1:pin=false", "--precision", "fp16", "--json", "-o", "fast.toml")
        text = (self.folder / "fast.toml").read_text()
        self.assertRegex(text, r"(?m)^memory-units = 3$")
        self.assertRegex(text, r"(?m)^pin = false$")
        self.assertRegex(text, r'(?m)^precision = "fp16"$')

    def test_an_interrupt_keeps_the_best_so_far(self):
        process = self.start(*SMALL, "--gpus", "2", "--budget", "10min", "-o", "fast.toml")
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        for _ in range(2):  # the head of the table and the run as given
            process.stdout.readline()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn(b"saved    fast.toml", err)
        self.succeed("--config", "fast.toml", "--dry-run")

    def test_the_age_of_the_weights_stays(self):
        out, _ = self.succeed(*SMALL, "--gpus", "2", "--budget", "8s", "--schedule", "pipedream", "--json", "-o", "fast.toml")
        self.assertEqual({(c["schedule"], c["micro_batches"]) for c in parse(out)["candidates"]}, {("pipedream", 1)})

    def test_a_run_on_one_device_keeps_its_schedule(self):
        for schedule, more in (("pipedream-2bw", ["--micro-batches", "4"]), ("pipedream", [])):
            self.succeed(*SMALL, "--gpus", "1", "--budget", "1s", "--schedule", schedule, *more, "--overwrite", "-o", "fast.toml")
            text = (self.folder / "fast.toml").read_text()
            self.assertRegex(text, rf'(?m)^schedule = "{schedule}"$')
            self.assertEqual("micro-batches = 4\n" in text, bool(more), text)
            self.succeed("--config", "fast.toml", "--dry-run")

    def test_several_stages_on_one_device_are_compared_with_one(self):
        for budget in ["2s", "30s", "120s"]:
            out, _ = self.succeed(*SMALL, "--gpus", "1", "--threads", "1", "--budget", budget, "--schedule", "zb-v", "--json", "--overwrite", "-o", "fast.toml")
            found = [candidate["schedule"] for candidate in parse(out)["candidates"]]
            if len(found) > 1:
                break
        self.assertEqual(found[0], "zb-v")
        self.assertEqual(found[:2], ["zb-v", "1f1b"])

    def test_a_schedule_of_a_file_stays(self):
        two = os.fsdecode(b"two\xe9.schedule")  # not UTF-8
        self.succeed("schedule", "export", "gpipe", "--gpus", "2", "--micro-batches", "2", "-o", two)
        out, _ = self.succeed(*SMALL, "--gpus", "2", "--budget", "1s", "--schedule", two, "--micro-batches", "2", "--drop-last", "--json", "-o",
                              "fast.toml")
        self.assertEqual(parse(out)["candidates"][0]["schedule"], "two\ufffd.schedule")
        self.assertTrue((self.folder / "fast.toml").exists())

    def test_it_decides_on_cuts_itself(self):
        self.refused("usage", *SMALL, "--replicas", "2,1", says="--replicas")
        self.refused("usage", *SMALL, "--budget", "soon", says="--budget")
        self.refused("usage", *SMALL, "--dry-run", says="--dry-run")
        self.refused("usage", *SMALL, "--resume", says="--resume")
        self.refused("usage", *SMALL, "--lr", "find", says="--lr")
        self.refused("usage", "train", "-m", MODEL, "--budget", "1min", says=["--budget", "tune"])


if __name__ == "__main__":
    unittest.main()
