"""Training in several processes, started by mpirun: the bits of one, and how all of them end."""

import hashlib
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import time
import unittest

from program import DATA, EXIT, MODEL, PROGRAM, SECONDS, Case, digits, environment_of_user, parse

MPIRUN = shutil.which("mpirun")
PLUGIN = pathlib.Path(PROGRAM).parent / "libpipetrain_mpi.so"
RUN = ["train", "--device", "cpu", "--threads", "1", "--no-pin", "--log-every", "1"]
DIGITS = [*RUN, "-m", MODEL, "--data", DATA, "--limit", "320", "--batch-size", "32", "--stages", "4"]
# Asynchronous runs depend on their cuts.
STREAM = [*RUN, "-m", MODEL, "--data", DATA, "--limit", "320", "--batch-size", "32", "--stages", "4",
          "--split", "wide.conv,block.conv1,last.conv"]


def tensors(checkpoint, kind):
    """All tensors of a kind ("weights", "optimizer"), in however many files: type, shape, bytes."""
    found = {}
    for path in sorted(checkpoint.glob(f"{kind}*.safetensors")):
        content = path.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8:8 + length])
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            found[name] = (entry["dtype"], entry["shape"], content[8 + length + begin:8 + length + end])
    return found


class Processes(Case):
    def setUp(self):
        if not MPIRUN or not PLUGIN.exists():
            self.skipTest("needs mpirun (Debian: openmpi-bin) and libpipetrain_mpi.so (libopenmpi-dev)")
        super().setUp()

    def start_in(self, count, *arguments, environment=None):
        """mpirun with so many processes; its own session, so that nothing is left of it afterwards."""
        clean = environment_of_user() | {"PIPETRAIN_CACHE_DIR": self.cache, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        process = subprocess.Popen([MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", str(count), PROGRAM, *arguments],
                                   cwd=self.folder, env=clean | (environment or {}), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def run_in(self, count, *arguments, **options):
        """Returns exit code, stdout and stderr."""
        process = self.start_in(count, *arguments, **options)
        out, err = process.communicate(timeout=SECONDS)
        return process.returncode, out.decode(), err.decode()

    def train_in(self, count, *arguments, **options):
        code, _, err = self.run_in(count, *arguments, **options)
        self.assertEqual(code, 0, err)
        return err

    def content(self, run):
        return (self.folder / run / "trained.onnx").read_bytes()

    def ranks(self, process):
        """Identifiers of the processes that mpirun has started, in the order of their ranks."""
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        found = {}
        for child in children:
            try:
                environment = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            for one in environment:
                if one.startswith(b"OMPI_COMM_WORLD_RANK="):
                    found[int(one.split(b"=")[1])] = int(child)
        return [found[rank] for rank in sorted(found)]

    def wait_for(self, path, process):
        end = time.monotonic() + SECONDS
        while not (self.folder / path).exists():
            self.assertIsNone(process.poll(), "it has ended")
            self.assertLess(time.monotonic(), end, "it does not get on")
            time.sleep(0.01)

    def test_the_bits_are_those_of_one_process(self):
        more = ["--clip-norm", "1", "--val-split", "0.2", "--epochs", "2", "--save-every", "never"]
        for schedule, count in (("gpipe", 2), ("1f1b", 4), ("zb-h1", 2)):
            run = [*DIGITS, *more, "--schedule", schedule]
            self.succeed(*run, "--run-dir", f"{schedule}-1")
            err = self.train_in(count, *run, "--run-dir", schedule)
            self.assertEqual(self.content(schedule), self.content(f"{schedule}-1"), schedule)
            self.assertIn(f"in {count} processes (Open MPI", err)
            self.assertEqual(err.count("done "), 1, err)  # one process speaks
            steps = [[line for line in (self.folder / name / "events.jsonl").read_text().splitlines() if '"evaluation"' in line]
                     for name in (schedule, f"{schedule}-1")]
            self.assertEqual(len(steps[0]), len(steps[1]))

    def test_streams_have_the_bits_of_one_process(self):
        stream = [*STREAM, "--val-split", "0.2", "--epochs", "3"]
        for schedule, count in (("pipedream", 4), ("pipedream-vertical", 2), ("pipedream-2bw", 3)):
            run = [*stream, "--schedule", schedule]
            self.succeed(*run, "--run-dir", f"{schedule}-1")
            self.train_in(count, *run, "--run-dir", schedule)
            self.assertEqual(self.content(schedule), self.content(f"{schedule}-1"), schedule)
            self.assertEqual(self.losses(schedule), self.losses(f"{schedule}-1"), schedule)

    def test_a_stream_that_is_stopped_goes_on_in_another_number_of_processes(self):
        run = [*STREAM, "--schedule", "pipedream", "--save-every", "never", "--lr-schedule", "constant"]
        process = self.start_in(4, *run, "--max-steps", "1000000", "--run-dir", "run")
        self.wait_for_step("run", process)
        os.kill(self.ranks(process)[2], signal.SIGTERM)
        _, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 143, err.decode())
        self.assertIn("stopped  by TERM after step", err.decode())
        steps = str(len(self.losses("run")) + 100)
        self.succeed(*run, "--max-steps", steps, "--run-dir", "whole")
        err = self.train_in(2, *run, "--max-steps", steps, "--resume=run")
        self.assertIn("resume   ", err)
        self.assertEqual(self.content("run"), self.content("whole"))

    def wait_for_step(self, run, process):
        self.wait_for(f"{run}/events.jsonl", process)
        end = time.monotonic() + SECONDS
        while '"step"' not in (self.folder / run / "events.jsonl").read_text():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def losses(self, run):
        events = [parse(line) for line in (self.folder / run / "events.jsonl").read_text().splitlines()]
        return [event["loss"] for event in events if event["event"] == "step"]

    def test_tied_weights_dropout_and_averages(self):
        self.succeed("new", "gpt", "-o", "gpt.onnx", "--depth", "2", "--width", "16", "--heads", "2", "--vocab", "50",
                     "--context", "8")
        run = [*RUN, "-m", "gpt.onnx", "--max-steps", "6", "--batch-size", "16", "--stages", "3", "--ema", "0.9", "--overwrite"]
        self.succeed(*run, "--run-dir", "one")
        self.train_in(3, *run, "--run-dir", "several")
        self.assertEqual(self.content("several"), self.content("one"))

    def test_replicas_in_several_processes(self):
        run = [*RUN, "-m", MODEL, "--data", DATA, "--limit", "160", "--batch-size", "32", "--replicas", "4"]
        self.succeed(*run, "--run-dir", "one")
        self.train_in(4, *run, "--run-dir", "several")
        self.assertEqual(self.content("several"), self.content("one"))

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

    def test_all_must_be_told_the_same(self):
        for other in ("--optimizer=sgd", "--no-shuffle", "--resume=auto", "--dry-run"):
            run = [*DIGITS, "--max-steps", "2", "--run-dir", "run"]
            code, _, err = self.run_in(1, *run, ":", "-n", "1", PROGRAM, *run, other)
            self.assertEqual(code, EXIT["usage"], err)
            self.assertIn("process 1 was started with", err)

    def test_the_option_that_differs_is_named(self):
        run = [*DIGITS, "--max-steps", "2", "--run-dir", "run"]
        code, _, err = self.run_in(1, *run, "--lr-step", "2", ":", "-n", "1", PROGRAM, *run, "--seed", "7")
        self.assertEqual(code, EXIT["usage"], err)
        self.assertRegex(err, "process 1 was started with (seed = 7 where process 0 has seed = 1|lr-step .* where process 0 has lr-step = 2);")

    def test_all_must_have_the_same_data(self):
        """One number of one sample is different, in one of them."""
        rows = digits()[:320]
        self.write("data.csv", "\n".join(rows) + "\n")
        (self.folder / "elsewhere").mkdir()
        values = rows[77].split(",")
        values[5] = "9" if values[5] != "9" else "8"
        self.write("elsewhere/data.csv", "\n".join(rows[:77] + [",".join(values)] + rows[78:]) + "\n")
        run = [*RUN, "-m", MODEL, "--data", "data.csv", "--batch-size", "32", "--stages", "2", "--max-steps", "2", "--run-dir", "run"]
        code, _, err = self.run_in(1, *run, ":", "-n", "1", "-wdir", str(self.folder / "elsewhere"), PROGRAM, *run)
        self.assertEqual(code, EXIT["usage"], err)
        self.assertIn("process 1 has other data than process 0", err)

    def test_without_stages_they_are_chosen(self):
        run = [*RUN, "-m", MODEL, "--data", DATA, "--limit", "320", "--batch-size", "32", "--max-steps", "3"]
        err = self.train_in(4, *run, "--run-dir", "run")
        self.assertRegex(err, "chose    (4 stages|2 stages x 2 replicas|1 stage x 4 replicas) for 4 processes; predicted steps: 4 stages ")
        plan = parse((self.folder / "run" / "plan.json").read_text())
        self.assertEqual(sum(stage.get("replicas", 1) for stage in plan["stages"]), 4)

    def test_the_nodes_of_split_give_the_stages(self):
        run = [*RUN, "-m", MODEL, "--data", DATA, "--limit", "320", "--batch-size", "32", "--max-steps", "3"]
        two, four = [*run, "--split", "block.conv1"], [*run, "--split", "wide.conv,block.conv1,last.conv"]
        self.succeed(*four, "--run-dir", "one")
        for count, split, stages, replicas in ((2, two, 2, 1), (2, four, 4, 1), (4, two, 2, 2)):
            err = self.train_in(count, *split, "--run-dir", f"{count}-{stages}")
            plan = parse((self.folder / f"{count}-{stages}" / "plan.json").read_text())
            self.assertEqual([stage.get("replicas", 1) for stage in plan["stages"]], [replicas] * stages)
            if stages == count * replicas or replicas > 1:
                chosen = "2 stages" if replicas == 1 else "2 stages x 2 replicas"
                self.assertIn(f"chose    {chosen} for {count} processes; predicted steps: {chosen} ", err)
        self.assertEqual(self.content("2-4"), self.content("one"))
        code, _, err = self.run_in(3, *two)
        self.assertEqual(code, EXIT["usage"], err)
        self.assertIn("3 processes were started, but the 2 stages of --split are for 2 devices; start as many, a multiple of that, or fewer", err)

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

    def test_files_that_replicas_cannot_share(self):
        self.shards("data", (40, 64, 50))
        run = [*RUN, "-m", MODEL, "--batch-size", "32", "--max-steps", "2", "--data-sharding", "files"]
        for more, says in ((["--data", "data/part-*.csv", "--replicas", "4"], "3 files match data/part-*.csv, too few for 4 replicas"),
                           (["--data", "data/part-0.csv", "--replicas", "2"], "needs a pattern of data files"),
                           (["--data", "data/part-*.csv"], "needs as many --replicas of each stage"),
                           (["--data", "data/part-*.csv", "--replicas", "2", "--val-split", "0.2"], "give --val-data"),
                           (["--data", "data/part-*.csv", "--replicas", "2", "--micro-batch-size", "5"], "make it a multiple of 10")):
            self.refused("usage", *run, *more, says=says)

    def test_traces_show_the_buckets_of_gradients(self):
        self.succeed("new", "mlp", "-o", "mlp.onnx", "--width", "1024", "--depth", "4")
        run = [*RUN, "-m", "mlp.onnx", "--max-steps", "8", "--batch-size", "32", "--replicas", "2", "--save-every", "never"]
        self.train_in(2, *run, "--trace", "trace.json", "--run-dir", "run")
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
        self.assertEqual(sum(size for _, size in predicted[0]), 4 * 3962890)  # what inspect says of it
        self.assertGreater(len(predicted[0]), 3)
        out, _ = self.succeed("trace", "diff", "trace.json")
        self.assertRegex(out, r"sums of gradients during the backward: predicted \d+ %, measured \d+ %")

    def test_auto_plan_and_doctor(self):
        run = [*RUN, "-m", MODEL, "--data", DATA, "--limit", "320", "--batch-size", "32", "--max-steps", "3", "--stages", "2"]
        err = self.train_in(2, *run, "--schedule", "auto", "--run-dir", "run")
        self.assertEqual(err.count("chose    "), 1, err)
        code, out, err = self.run_in(2, "plan", "-m", MODEL, "--data", DATA, "--device", "cpu", "--schedule", "1f1b", "--stages", "2", "--json")
        self.assertEqual(code, 0, err)
        self.assertEqual(len(parse(out)["stages"]), 2)
        code, out, err = self.run_in(2, "doctor", "--json")
        self.assertEqual(code, 0, err)
        mpi = parse(out)["mpi"]
        self.assertEqual((mpi["processes"], mpi["hosts"]), (2, 1))
        self.assertGreater(mpi["links_on_host"]["bytes_per_second"], 1e6)

    def test_launchers_that_do_not_connect_processes(self):
        cluster = '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 1}}'
        self.refused("usage", *DIGITS, environment={"TF_CONFIG": cluster}, says="mpirun -n 2 -H a,b ")
        self.refused("usage", *DIGITS, environment={"WORLD_SIZE": "2", "RANK": "0"}, says=["torchrun started 2 processes", "mpirun -n 2 "])

    def test_nothing_is_said_below_an_error(self):
        code, _, err = self.run_in(2, *RUN, "-m", MODEL, "--stages", "1")
        self.assertEqual(code, EXIT["usage"], err)
        self.assertNotIn("MPI_ABORT was invoked", err)

    def test_all_must_have_the_same_vectors(self):
        if "AVX-512" not in self.succeed("doctor")[0]:
            self.skipTest("needs a processor with AVX-512")
        run = [*DIGITS, "--max-steps", "2", "--run-dir", "run"]
        code, _, err = self.run_in(1, *run, ":", "-n", "1", "env", "PIPETRAIN_VECTORS=AVX2", PROGRAM, *run)
        self.assertEqual(code, EXIT["resource"], err)
        self.assertIn("process 1 uses AVX2, but process 0 uses AVX-512", err)
        self.train_in(2, *run, environment={"PIPETRAIN_VECTORS": "AVX2"})

    def test_a_run_goes_on_in_any_number_of_processes(self):
        run = [*DIGITS, "--max-steps", "12", "--save-every", "6", "--keep", "9"]
        self.train_in(2, *run, "--run-dir", "whole")
        half = str(self.folder / "whole" / "checkpoints" / "step-000006")
        self.train_in(4, *run, f"--resume={half}", "--run-dir", "four")
        self.succeed(*run, f"--resume={half}", "--run-dir", "one")
        self.assertEqual(self.content("four"), self.content("whole"))
        self.assertEqual(self.content("one"), self.content("whole"))

    def test_every_process_writes_its_part_of_a_checkpoint(self):
        run = [*DIGITS, "--max-steps", "12", "--save-every", "6", "--keep", "9", "--optimizer", "adamw", "--ema", "0.9"]
        self.succeed(*run, "--run-dir", "one")
        self.train_in(2, *run, "--run-dir", "two")
        one, two = (self.folder / name / "checkpoints" / "step-000006" for name in ("one", "two"))
        self.assertEqual(sorted(path.name for path in two.iterdir()),
                         ["manifest.json", "optimizer-0.safetensors", "optimizer-1.safetensors", "weights-0.safetensors", "weights-1.safetensors"])
        for kind in ("weights", "optimizer"):
            parts = [tensors(two, f"{kind}-{process}") for process in (0, 1)]
            self.assertTrue(all(parts))
            self.assertEqual(set(parts[0]) & set(parts[1]), set())
            self.assertEqual(tensors(two, kind), tensors(one, kind))
        self.assertEqual([path.name for path in (self.folder / "two" / "checkpoints").iterdir() if path.name.startswith(".")], [])
        # Either is resumed by any number of processes, and read by other commands.
        for name, count in (("one", 3), ("two", 3), ("two", 4)):
            half = f"--resume={self.folder / name / 'checkpoints' / 'step-000006'}"
            self.train_in(count, *run, half, "--run-dir", f"{name}-in-{count}")
            self.assertEqual(self.content(f"{name}-in-{count}"), self.content("one"))
        self.succeed(*run, f"--resume={two}", "--run-dir", "two-in-1")
        self.assertEqual(self.content("two-in-1"), self.content("one"))
        for name in ("one", "two"):
            self.succeed("export", "--from", f"{name}/checkpoints/step-000006", "-o", f"{name}.onnx")
        self.assertEqual((self.folder / "one.onnx").read_bytes(), (self.folder / "two.onnx").read_bytes())

    def test_a_damaged_or_missing_part_is_named(self):
        run = [*DIGITS, "--max-steps", "12", "--save-every", "6", "--keep", "9"]
        self.train_in(2, *run, "--run-dir", "run")
        for damage in (lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x55")):
            part = self.folder / "run" / "checkpoints" / "step-000012" / "weights-1.safetensors"
            content = part.read_bytes()
            damage(part)
            self.refused("data", "train", f"--resume={part.parent}", "--max-steps", "20", says="weights-1.safetensors")
            part.write_bytes(content)
        self.succeed("train", f"--resume={part.parent}", "--max-steps", "13", "--run-dir", "more")

    def test_without_a_shared_folder_process_0_writes_for_all(self):
        inside = f"mount -t tmpfs none {self.folder / 'private'} && exec \"$@\""
        (self.folder / "private").mkdir()
        alone = ["unshare", "-m", "sh", "-c", inside, "sh"]
        if subprocess.run([*alone, "true"], capture_output=True).returncode != 0:
            self.skipTest("mount namespaces are not allowed here")
        run = [*DIGITS, "--max-steps", "12", "--save-every", "6", "--keep", "9", "--optimizer", "adamw"]
        self.succeed(*run, "--run-dir", "one")
        apart = [PROGRAM, *run, "--run-dir", "private/run"]
        done = subprocess.run([MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", "1", *apart, ":", "-n", "1", *alone, *apart],
                              cwd=self.folder, env=environment_of_user() | {
                                  "PIPETRAIN_CACHE_DIR": self.cache, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("not all processes see", done.stderr)
        for step in ("step-000006", "step-000012"):
            for kind in ("weights", "optimizer"):
                file = pathlib.Path("checkpoints", step, f"{kind}.safetensors")
                self.assertEqual((self.folder / "private" / "run" / file).read_bytes(), (self.folder / "one" / file).read_bytes())

    def test_a_killed_process_ends_all_and_loses_nothing(self):
        process = self.start_in(2, *DIGITS, "--epochs", "100000", "--save-every", "5", "--comm-timeout", "100000", "--run-dir", "run")
        self.wait_for("run/checkpoints/latest", process)
        os.kill(self.ranks(process)[1], signal.SIGKILL)
        process.communicate(timeout=SECONDS)  # long before a silence would be noticed
        self.assertNotEqual(process.returncode, 0)
        _, err = self.succeed(*DIGITS, "--resume=run", "--max-time", "1s")
        self.assertIn("resume   ", err)

    def test_a_stopped_process_is_missed(self):
        process = self.start_in(2, *DIGITS, "--epochs", "100000", "--comm-timeout", "5", "--run-dir", "run")
        self.wait_for_step("run", process)
        stopped = self.ranks(process)[1]
        os.kill(stopped, signal.SIGSTOP)
        try:
            _, err = process.communicate(timeout=SECONDS)
        finally:
            try:
                os.kill(stopped, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.assertEqual(process.returncode, 7, err.decode())
        self.assertIn("process 1 on ", err.decode())
        self.assertIn("has been silent", err.decode())

    def test_a_signal_saves_and_stops(self):
        process = self.start_in(2, *DIGITS, "--epochs", "100000", "--save-every", "never", "--run-dir", "run")
        self.wait_for_step("run", process)
        os.kill(self.ranks(process)[1], signal.SIGTERM)  # whichever of them
        _, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 143, err.decode())
        self.assertIn("stopped  by TERM after step", err.decode())
        self.assertTrue((self.folder / "run" / "checkpoints" / "latest").exists())

    def test_an_error_is_said_once_with_its_code(self):
        for kind, says, arguments in (
                ("model", "no-such.onnx", [*RUN, "-m", "no-such.onnx", "--stages", "2"]),
                ("usage", "--no-such-flag", [*RUN, "-m", MODEL, "--no-such-flag", "--stages", "2"]),
                ("usage", "2 processes were started for 1 stage;", [*RUN, "-m", MODEL, "--stages", "1"])):
            code, _, err = self.run_in(2, *arguments)
            self.assertEqual(code, EXIT[kind], err)
            self.assertEqual(err.count("error: "), 1, err)
            self.assertIn(says, err)

    def test_an_error_names_the_process_that_failed(self):
        self.write("data.csv", "\n".join(digits()[:64]) + "\n")
        (self.folder / "elsewhere").mkdir()
        run = [*RUN, "-m", MODEL, "--data", "data.csv", "--stages", "3", "--max-steps", "2", "--run-dir", "run"]
        # Only the failing one looks for the data where they are not.
        for failing, parts in ((1, [":", "-n", "1", "-wdir", "elsewhere", PROGRAM, *run, ":", "-n", "1", PROGRAM, *run]),
                               (2, [":", "-n", "1", PROGRAM, *run, ":", "-n", "1", "-wdir", "elsewhere", PROGRAM, *run])):
            code, _, err = self.run_in(1, *run, *parts)
            self.assertEqual(code, EXIT["data"], err)
            self.assertIn("data.csv", err)
            # The first is the one that failed; others are those that have passed it on.
            self.assertRegex(err.partition("while in process ")[2], f"^{failing} on ")

    def test_two_processes_do_not_share_a_gpu(self):
        """NCCL would refuse it in words of its own, or wait. Recorded devices stand for the GPUs of this machine."""
        recorded = PLUGIN.parent / "tests" / "cuda" / "recorded_plugin" / "libpipetrain_cuda.so"
        if not recorded.exists():
            self.skipTest("needs the recorded plugin (target recorded_plugin)")
        for plugin in (recorded, PLUGIN):
            (self.folder / plugin.name).symlink_to(plugin)
        environment = {"PIPETRAIN_BACKEND_PATH": str(self.folder)}
        gpus = ["train", "-m", MODEL, "--data", DATA, "--batch-size", "32", "--max-steps", "1"]
        code, _, err = self.run_in(2, *gpus, "--gpu-ids", "1,1", environment=environment)
        self.assertEqual(code, EXIT["usage"], err)
        self.assertRegex(err, "processes 0 and 1 would share GPU 1 of [^ ]+, which NCCL does not allow; give each process its own GPU, or "
                              "start one process with --gpu-ids 1,1 to use one GPU for several devices")
        self.assertEqual(err.count("would share"), 1, err)

    def test_without_the_plugin_it_is_said(self):
        code, _, err = self.run_in(2, *DIGITS, environment={"PIPETRAIN_BACKEND_PATH": str(self.folder)})
        self.assertEqual(code, EXIT["resource"], err)
        self.assertIn("has no support for several processes: there is no libpipetrain_mpi.so", err)

    def test_other_commands_are_for_one_process(self):
        code, _, err = self.run_in(2, "eval", "-m", MODEL, "--data", DATA)
        self.assertEqual(code, EXIT["usage"], err)
        self.assertIn("only training supports several", err)

    def test_one_process_under_mpirun_is_an_ordinary_run(self):
        run = [*DIGITS, "--max-steps", "3"]
        self.train_in(1, *run, "--run-dir", "under")
        self.succeed(*run, "--run-dir", "alone")
        self.assertEqual(self.content("under"), self.content("alone"))


if __name__ == "__main__":
    unittest.main()
