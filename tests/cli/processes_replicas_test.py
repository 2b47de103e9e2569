"""Replicas in several processes: the order of their sums, shared updates, and files of their own."""

import hashlib
import pathlib
import subprocess
import unittest

from process_case import MPIRUN, RUN, ProcessCase, tensors
from program import DATA, MODEL, PROGRAM, SECONDS, digits, environment_of_user, parse


class ProcessesReplicas(ProcessCase):
    def test_replicas_in_several_processes(self):
        run = [*RUN, "-m", MODEL, "--data", DATA, "--limit", "160", "--batch-size", "32", "--replicas", "4"]
        self.succeed(*run, "--run-dir", "one")
        self.train_in(4, *run, "--run-dir", "several")
        self.assertEqual(self.content("several"), self.content("one"))

    def test_replicas_in_several_processes_are_for_gpus_unless_a_device_is_named(self):
        run = ["train", "-m", MODEL, "--data", DATA, "--limit", "64", "--batch-size", "32", "--threads", "1", "--dry-run"]
        code, _, err = self.run_in(2, *run, "--replicas", "2", environment={"CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(code, 5, err)
        self.assertIn("2 GPUs requested (by several processes)", err)
        self.assertIn("add --device cpu", err)
        # Only CPUs take updates as they come.
        self.train_in(2, *run, "--replica-mode", "async")

    def test_a_tree_of_sums_has_the_same_bits_for_every_number_of_replicas(self):
        for name, model, data in (("digits", MODEL, ["--data", DATA, "--limit", "224"]), ("gpt", "gpt.onnx", [])):
            if name == "gpt":
                self.succeed("new", "gpt", "-o", "gpt.onnx", "--depth", "2", "--width", "16", "--heads", "2", "--vocab", "50", "--context", "8")
            run = [*RUN, "-m", model, *data, "--batch-size", "32", "--micro-batches", "16", "--max-steps", "8", "--clip-norm", "1", "--ema", "0.9"]
            tree = [*run, "--accumulators", "8"]
            self.succeed(*tree, "--save-every", "4", "--run-dir", name)
            sums = {hashlib.sha256(self.content(name)).hexdigest()}
            for replicas in ("2", "4", "8"):
                self.succeed(*tree, "--replicas", replicas, "--run-dir", f"{name}-{replicas}")
                sums.add(hashlib.sha256(self.content(f"{name}-{replicas}")).hexdigest())
            for count, replicas in ((2, "2"), (2, "4"), (4, "4"), (4, "4,4")):
                self.train_in(count, *tree, "--replicas", replicas, "--run-dir", f"{name}-{replicas}-in-{count}")
                sums.add(hashlib.sha256(self.content(f"{name}-{replicas}-in-{count}")).hexdigest())
            self.assertEqual(len(sums), 1, name)
            # The checkpoint knows the tree: a run goes on with it on any number of replicas.
            half = f"--resume={self.folder / name / 'checkpoints' / 'step-000004'}"
            self.succeed("train", half, "--threads", "1", "--replicas", "4", "--run-dir", f"{name}-half")
            self.train_in(2, "train", half, "--threads", "1", "--replicas", "2", "--run-dir", f"{name}-half-in-2")
            for resumed in (f"{name}-half", f"{name}-half-in-2"):
                sums.add(hashlib.sha256(self.content(resumed)).hexdigest())
            self.assertEqual(len(sums), 1, name)
            # Without it, the sums have another order.
            self.succeed(*run, "--replicas", "4", "--run-dir", f"{name}-in-order")
            self.assertNotIn(hashlib.sha256(self.content(f"{name}-in-order")).hexdigest(), sums)
        for leaves, more, says in (("6", [], "must be a power of two up to 64"),
                                   ("4", ["--replicas", "3"], "4 cannot be divided among 3 replicas"),
                                   ("4", ["--schedule", "pipedream"], "needs a synchronous schedule")):
            self.refused("usage", *RUN, "-m", MODEL, "--accumulators", leaves, *more, says=says)

    def test_replicas_that_share_the_updates(self):
        """Weights, checkpoints and what a run goes on with are those of replicas that make all updates."""
        run = [*RUN, "-m", MODEL, "--data", DATA, "--limit", "160", "--batch-size", "32", "--max-steps", "8", "--save-every", "4",
               "--clip-norm", "1", "--ema", "0.9", "--overwrite"]
        self.succeed(*run, "--replicas", "4", "--run-dir", "one")
        place = pathlib.Path("checkpoints", "step-000004")
        for count in (2, 4):
            self.train_in(count, *run, "--replicas", "4", "--shard-optimizer", "--run-dir", "several")
            self.assertEqual(self.content("several"), self.content("one"))
            self.assertEqual(tensors(self.folder / "several" / place, "optimizer"), tensors(self.folder / "one" / place, "optimizer"))
        half = f"--resume={self.folder / 'several' / 'checkpoints' / 'step-000004'}"
        self.succeed(*run, half, "--replicas", "4:shard-optimizer=true", "--run-dir", "alone")
        self.assertEqual(self.content("alone"), self.content("one"))
        # On another number of replicas the sums have other bits, shared or not.
        self.succeed(*run, half, "--replicas", "2", "--run-dir", "two")
        self.train_in(2, *run, half, "--replicas", "2", "--shard-optimizer", "--run-dir", "two-shared")
        self.assertEqual(self.content("two-shared"), self.content("two"))

    def test_gradients_sent_as_bfloat16(self):
        """The bits of one process, which differ from those of float32; a resumed run keeps the setting."""
        run = [*RUN, "-m", MODEL, "--data", DATA, "--limit", "160", "--batch-size", "32", "--max-steps", "8", "--save-every", "4", "--overwrite"]
        self.succeed(*run, "--replicas", "4", "--compress", "bf16", "--run-dir", "one")
        for count in (2, 4):
            self.train_in(count, *run, "--replicas", "4:compress=bf16", "--run-dir", "several")
            self.assertEqual(self.content("several"), self.content("one"))
        half = f"--resume={self.folder / 'several' / 'checkpoints' / 'step-000004'}"
        self.succeed(*run, half, "--replicas", "4", "--run-dir", "resumed")
        self.assertEqual(self.content("resumed"), self.content("one"))
        self.succeed(*run, "--replicas", "4", "--run-dir", "wide")
        self.assertNotEqual(self.content("wide"), self.content("one"))
        self.succeed("verify", "-m", MODEL, "--data", DATA, "--limit", "64", "--device", "cpu", "--replicas", "2", "--compress", "bf16")
        self.refused("usage", *RUN, "-m", MODEL, "--replicas", "2", "--compress", "bf16", "--accumulators", "2",
                     says="with --compress bf16, bits depend on the number of replicas; leave out --accumulators")

    def test_optimizers_that_use_norms_of_tensors_share_the_updates(self):
        for optimizer in ("lamb", "lars"):
            run = [*RUN, "-m", MODEL, "--data", DATA, "--limit", "96", "--batch-size", "32", "--epochs", "2", "--replicas", "3",
                   "--optimizer", optimizer, "--overwrite"]
            self.succeed(*run, "--run-dir", "one")
            self.train_in(3, *run, "--shard-optimizer", "--run-dir", "several")
            self.assertEqual(self.content("several"), self.content("one"), optimizer)

    def test_two_processes_send_to_one_replica(self):
        for replicas in ("2,1", "1,2"):
            run = [*RUN, "-m", MODEL, "--data", DATA, "--split", "block.conv1", "--replicas", replicas, "--micro-batches", "8",
                   "--max-steps", "8", "--overwrite"]
            self.succeed(*run, "--run-dir", "one")
            for _ in range(2):  # the order in which messages come changes
                self.train_in(3, *run, "--run-dir", "several")
                self.assertEqual(self.content("several"), self.content("one"), replicas)

    def shards(self, folder, counts, garbage=()):
        """Writes the first digits into files of so many samples each; those in `garbage` cannot be read."""
        place = self.folder / folder
        place.mkdir()
        rows, files = digits(), []
        for f, count in enumerate(counts):
            files.append(rows[:count])
            rows = rows[count:]
            (place / f"part-{f}.csv").write_text("not,a,number\n" if f in garbage else "\n".join(files[-1]) + "\n")
        return files

    def test_every_process_reads_its_own_files(self):
        files = self.shards("data", (40, 64, 50, 32))  # of replica 0: 90 samples; of replica 1: 96
        run = [*RUN, "-m", MODEL, "--batch-size", "32", "--micro-batch-size", "8", "--epochs", "2",
               "--class-weights", ",".join(str(1 + digit % 3) for digit in range(10))]
        sharded = [*run, "--data", "data/part-*.csv", "--data-sharding", "files"]
        self.succeed(*sharded, "--replicas", "2", "--run-dir", "one")
        # Each opens only its own: the others are there by name.
        self.shards("a", (40, 64, 50, 32), garbage=(1, 3))
        self.shards("b", (40, 64, 50, 32), garbage=(0, 2))
        apart = [*run, "--data", "part-*.csv", "--data-sharding", "files", "--run-dir", str(self.folder / "two")]
        clean = [MPIRUN, "--oversubscribe", "--bind-to", "none"]
        both = [*clean, "-n", "1", "-wdir", str(self.folder / "a"), PROGRAM, *apart, ":", "-n", "1", "-wdir", str(self.folder / "b"), PROGRAM, *apart]
        done = subprocess.run(both, cwd=self.folder, env=environment_of_user() | {
            "PIPETRAIN_CACHE_DIR": self.cache, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("4 files for 2 replicas · 90 to 96 samples each, of which an epoch takes 90", done.stderr)
        self.assertEqual(self.content("two"), self.content("one"))
        # In the order of the files, the same as one file in which micro-batches take turns.
        first, second = files[0] + files[2], files[1] + files[3]
        rows = [row for at in range(0, 80, 8) for row in first[at:at + 8] + second[at:at + 8]]
        (self.folder / "turns.csv").write_text("\n".join(rows) + "\n")
        self.succeed(*run, "--data", "turns.csv", "--replicas", "2", "--no-shuffle", "--run-dir", "turns")
        self.train_in(2, *sharded, "--no-shuffle", "--run-dir", "files")
        self.assertEqual(self.content("files"), self.content("turns"))

    def test_a_tree_of_sums_counts_the_labels_of_its_own_files(self):
        self.shards("data", (64, 64, 64, 64))
        run = [*RUN, "-m", MODEL, "--data", "data/part-*.csv", "--data-sharding", "files", "--batch-size", "32", "--micro-batch-size", "4",
               "--epochs", "2", "--class-weights", ",".join(str(1 + digit % 3) for digit in range(10)), "--replicas", "4", "--accumulators", "4"]
        self.succeed(*run, "--run-dir", "one")
        self.train_in(2, *run, "--run-dir", "two")
        self.assertEqual(self.content("two"), self.content("one"))

    def test_files_are_divided_among_another_number_of_processes(self):
        self.shards("data", (40, 64, 50, 32, 48, 40))
        run = [*RUN, "-m", MODEL, "--batch-size", "24", "--micro-batch-size", "4", "--data", "data/part-*.csv", "--data-sharding", "files", "--run-dir", "run"]
        self.train_in(3, *run, "--max-steps", "5")
        for count, steps in ((2, "10"), (1, "12")):
            err = self.train_in(count, *run, "--resume", "--max-steps", steps)
            self.assertIn(f"6 files for {count} replica", err)
        (self.folder / "data/part-3.csv").write_text((self.folder / "data/part-4.csv").read_text())
        code, _, err = self.run_in(2, *run, "--resume", "--max-steps", "14")
        self.assertEqual(code, 4, err)
        self.assertIn("trained on other data (6 files, ", err)

    def test_files_that_replicas_cannot_share(self):
        self.shards("data", (40, 64, 50))
        run = [*RUN, "-m", MODEL, "--batch-size", "32", "--max-steps", "2", "--data-sharding", "files"]
        for more, says in ((["--data", "data/part-*.csv", "--replicas", "4"], "3 files match data/part-*.csv, too few for 4 replicas"),
                           (["--data", "data/part-0.csv", "--replicas", "2"], "needs a pattern of data files"),
                           (["--data", "data/part-*.csv"], "needs the same number of --replicas for each stage"),
                           (["--data", "data/part-*.csv", "--replicas", "2", "--val-split", "0.2"], "give --val-data"),
                           (["--data", "data/part-*.csv", "--replicas", "2", "--micro-batch-size", "5"], "make it a multiple of 10")):
            self.refused("usage", *run, *more, says=says)

    def test_traces_show_the_buckets_of_gradients(self):
        self.succeed("new", "mlp", "-o", "mlp.onnx", "--width", "1024", "--depth", "4")
        run = [*RUN, "-m", "mlp.onnx", "--max-steps", "8", "--batch-size", "32", "--replicas", "2", "--save-every", "never"]
        whole = self.check_buckets(*run, "--run-dir", "run")
        self.assertEqual(whole, 4 * 3962890)  # what inspect says of it
        self.assertIn(self.check_buckets(*run, "--run-dir", "narrow", "--compress", "bf16"), (whole, whole // 2))
        out, _ = self.succeed("trace", "diff", "trace.json")
        self.assertRegex(out, r"sums of gradients during the backward: predicted \d+ %, measured \d+ %")

    def check_buckets(self, *run):
        """Compares the measured buckets of a trace with the predicted ones. Returns their bytes."""
        self.train_in(2, *run, "--trace", "trace.json")
        trace = parse((self.folder / "trace.json").read_text())
        buckets = {}
        for event in trace["traceEvents"]:
            if event.get("cat") == "bucket":
                of = (event["pid"], event["args"]["step"], event["args"]["device"])
                buckets.setdefault(of, []).append((event["args"]["bucket"], event["args"]["bytes"]))
                self.assertGreater(event["dur"], 0)
        measured = [sorted(all) for (side, _, _), all in buckets.items() if side == 1]
        predicted = [sorted(all) for (side, _, _), all in buckets.items() if side == 2]
        self.assertEqual(len(predicted), 1)
        self.assertEqual(len(measured), 6)  # three steps, seen by two processes
        for one in measured:
            self.assertEqual(one, predicted[0])
        self.assertGreater(len(predicted[0]), 3)
        return sum(size for _, size in predicted[0])


if __name__ == "__main__":
    unittest.main()
