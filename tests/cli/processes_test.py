"""Training in several processes, started by mpirun: the bits of one, what all must agree on, and errors."""

import ctypes
import errno
import json
import os
import pathlib
import shutil
import signal
import subprocess
import unittest

import onnx_file
from process_case import DIGITS, PLUGIN, RUN, STREAM, ProcessCase
from program import DATA, EXIT, MODEL, PROGRAM, SECONDS, digits, events, parse


def may_read_memory():
    """Whether this system lets a process read the memory of another one of the same user."""
    libc = ctypes.CDLL(None, use_errno=True)
    with subprocess.Popen(["sleep", "60"]) as other:
        place = (ctypes.c_void_p * 2)(8, 8)  # struct iovec: eight bytes at an address that nobody has
        libc.process_vm_readv(other.pid, place, 1, place, 1, 0)
        other.kill()
    return ctypes.get_errno() == errno.EFAULT


class Processes(ProcessCase):
    def test_the_bits_are_those_of_one_process(self):
        more = ["--clip-norm", "1", "--val-split", "0.2", "--epochs", "2", "--save-every", "never"]
        for schedule, count in (("gpipe", 2), ("1f1b", 4), ("zb-h1", 2)):
            run = [*DIGITS, *more, "--schedule", schedule]
            self.succeed(*run, "--run-dir", f"{schedule}-1")
            err = self.train_in(count, *run, "--run-dir", schedule)
            self.assertEqual(self.content(schedule), self.content(f"{schedule}-1"), schedule)
            self.assertIn(f"in {count} processes (Open MPI", err)
            self.assertEqual(err.count("done "), 1, err)  # one process speaks
            losses = [self.losses(name, "val") for name in (schedule, f"{schedule}-1")]
            self.assertEqual(len(losses[0]), 2, "one after each epoch")
            self.assertEqual(*losses)

    def test_streams_have_the_bits_of_one_process(self):
        stream = [*STREAM, "--val-split", "0.2", "--epochs", "3"]
        for schedule, count in (("pipedream", 4), ("pipedream-vertical", 2), ("pipedream-2bw", 3)):
            run = [*stream, "--schedule", schedule]
            self.succeed(*run, "--run-dir", f"{schedule}-1")
            self.train_in(count, *run, "--run-dir", schedule)
            self.assertEqual(self.content(schedule), self.content(f"{schedule}-1"), schedule)
            self.assertEqual(self.losses(schedule), self.losses(f"{schedule}-1"), schedule)

    def test_replicas_read_memory_or_send_messages(self):
        run = [*DIGITS, "--stages", "1", "--gpus", "4", "--replicas", "4", "--save-every", "never", "--max-steps", "6"]
        memory, messages = ({"OMPI_MCA_btl_vader_single_copy_mechanism": mechanism} for mechanism in ("cma", "none"))
        self.succeed(*run, "--run-dir", "one")
        self.train_in(4, *run, "--run-dir", "memory", environment=memory)
        self.train_in(4, *run, "--run-dir", "messages", environment=messages)
        self.assertEqual(self.content("memory"), self.content("one"))
        self.assertEqual(self.content("messages"), self.content("one"))
        said = [parse(self.run_in(2, "doctor", "--json", environment=more)[1])["mpi"] for more in (memory, messages)]
        self.assertFalse(said[1]["reads_memory"])
        self.assertEqual(said[0]["reads_memory"], may_read_memory(), "whether processes read each other's memory")
        for one in said:
            self.assertEqual(one["links_on_host"]["read_bytes_per_second"] > 0, one["reads_memory"])

    def test_predictions_know_whether_sums_are_read_or_sent(self):
        run = [*RUN, "-m", MODEL, "--data", DATA, "--limit", "320", "--batch-size", "32", "--stages", "1", "--gpus", "2", "--replicas", "2",
               "--max-steps", "1", "--save-every", "never", "--overwrite"]

        def predicted_ms(mechanism, *more):
            """With links on which a sum takes far longer than anything else, and ten times as long if it is sent."""
            environment = {"OMPI_MCA_btl_vader_single_copy_mechanism": mechanism, "PIPETRAIN_CACHE_DIR": str(self.folder / mechanism)}
            self.train_in(2, *run, *more, environment=environment)  # measures the links
            (links,) = (self.folder / mechanism).glob("links-*.json")
            topology = parse(links.read_text())
            (level,) = topology["levels"]
            self.assertEqual("all_reduce_bytes_per_second" in level, mechanism == "cma" and may_read_memory())
            level["bytes_per_second"] = 1e5
            if "all_reduce_bytes_per_second" in level:
                level["all_reduce_bytes_per_second"] = 1e6
            links.write_text(json.dumps(topology))
            self.train_in(2, *run, *more, "--metrics", "events.jsonl", environment=environment)
            lines = events((self.folder / "events.jsonl").read_text())
            links.unlink()
            return next(line for line in lines if line["event"] == "plan")["predicted"]["step_ms"]

        sent = predicted_ms("none")
        self.assertAlmostEqual(predicted_ms("none", "--compress", "bf16") / sent, 0.5, delta=0.1)
        self.assertAlmostEqual(predicted_ms("none", "--shard-optimizer") / sent, 1, delta=0.1)
        both = predicted_ms("none", "--shard-optimizer", "--compress", "bf16")
        self.assertAlmostEqual(both / sent, 0.75, delta=0.1, msg="sums as bfloat16, weights as floats")
        if may_read_memory():
            read = predicted_ms("cma")
            self.assertAlmostEqual(read / sent, 0.1, delta=0.05)
            # Half as much would be sent; what is computed beside it is measured anew, and varies.
            self.assertAlmostEqual(predicted_ms("cma", "--compress", "bf16") / read, 1, delta=0.25)

    def test_tied_weights_dropout_and_averages(self):
        self.succeed("new", "gpt", "-o", "gpt.onnx", "--depth", "2", "--width", "16", "--heads", "2", "--vocab", "50",
                     "--context", "8")
        run = [*RUN, "-m", "gpt.onnx", "--max-steps", "6", "--batch-size", "16", "--stages", "3", "--ema", "0.9", "--overwrite"]
        self.succeed(*run, "--run-dir", "one")
        self.train_in(3, *run, "--run-dir", "several")
        self.assertEqual(self.content("several"), self.content("one"))

    def test_evaluation_exchanges_other_values_than_training(self):
        # Evaluation has no Dropout: its input, of stage 0, is read by stage 2 too.
        layers = [onnx_file.node("MatMul", ["x", "w0"], ["h"], "first"), onnx_file.node("LayerNormalization", ["h", "one", "one"], ["n"], "norm"),
                  onnx_file.node("Dropout", ["n", "ratio", "yes"], ["d"], "drop"), onnx_file.node("MatMul", ["d", "w1"], ["m"], "second"),
                  onnx_file.node("Softmax", ["m"], ["s"], "shares"), onnx_file.node("MatMul", ["s", "w2"], ["t"], "third"),
                  onnx_file.node("Concat", ["t", "d"], ["c"], "join", axis=1), onnx_file.node("MatMul", ["c", "w3"], ["y"], "last")]
        weights = [onnx_file.tensor(f"w{i}", [8 if i == 3 else 4, 4], [0.3, -0.2, 0.5, 0.1] * (8 if i == 3 else 4)) for i in range(4)]
        switches = [onnx_file.tensor("one", [4], [1] * 4), onnx_file.tensor("ratio", [], [0.25]), onnx_file.tensor("yes", [], b"\1", kind=onnx_file.BOOL)]
        self.write("m.onnx", onnx_file.model(layers, initializers=[*weights, *switches]))
        self.write("d.csv", "a,b,c,d,label\n" + "".join(f"{i % 3},{i % 5},{i % 7},{i % 2},{i % 4}\n" for i in range(80)))
        run = [*RUN, "-m", "m.onnx", "--data", "d.csv", "--val-split", "0.2", "--batch-size", "16", "--micro-batches", "4", "--epochs", "2",
               "--split", "drop,join", "--save-every", "never"]
        for schedule in ("1f1b", "gpipe"):
            self.succeed(*run, "--schedule", schedule, "--run-dir", f"one-{schedule}", "--gpus", "3")
            self.train_in(3, *run, "--schedule", schedule, "--run-dir", f"three-{schedule}")
            one, three = ([event["loss"] for event in events((self.folder / f"{count}-{schedule}" / "events.jsonl").read_text())
                           if event["event"] == "val"] for count in ("one", "three"))
            self.assertEqual(len(one), 2)
            self.assertEqual(three, one)

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

    def test_each_process_needs_a_device(self):
        self.write("m.onnx", onnx_file.model([onnx_file.node("MatMul", ["x", "w"], ["y"], "only")],
                                             initializers=[onnx_file.tensor("w", [4, 4], [0.5] * 16)]))
        run = [*RUN, "-m", "m.onnx", "--batch-size", "16", "--max-steps", "2"]
        self.assertRegex(self.train_in(4, *run, "--run-dir", "run"), "chose    (1 stage x 4|2 stages x 2) replicas")
        code, _, err = self.run_in(4, *run, "--stages", "4", "--run-dir", "other")
        self.assertEqual(code, 2, err)
        self.assertIn("the plan has 2 of 4 stages", err)

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
        code, _, err = self.run_in(2, *two, "--gpus", "16")
        self.assertEqual(code, EXIT["usage"], err)
        self.assertIn("--split names 2 stages for 2 devices, but --gpus is 16", err)

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
        # mpirun -n 1 in such an environment.
        self.succeed(*DIGITS, "--max-steps", "2", environment={"WORLD_SIZE": "2", "RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"})
        # torchrun in a task of srun or mpirun.
        for outer in ({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, {"SLURM_STEP_NUM_TASKS": "1", "PMIX_RANK": "0"},
                      {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "PMIX_RANK": "0"}):
            self.refused("usage", *DIGITS, environment={"WORLD_SIZE": "2", "RANK": "0", "TORCHELASTIC_RUN_ID": "none"} | outer,
                         says=["torchrun started 2 processes", "mpirun -n 2 "])

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

    def test_a_file_that_only_one_process_lacks_is_named(self):
        """Although the processes try several candidates together, some of which may be refused."""
        levels = [{"name": "cores", "count": 2, "bytes_per_second": 1e9, "latency_seconds": 1e-6}]
        self.write("two.json", json.dumps({"schema": "pipetrain.topology/1", "name": "two", "levels": levels}))
        (self.folder / "elsewhere").mkdir()
        digits = ["-m", MODEL, "--data", DATA, "--limit", "320", "--batch-size", "32", "--device", "cpu", "--topology", "two.json"]
        for run in (["train", *digits, "--max-steps", "2", "--run-dir", str(self.folder / "run")],
                    ["tune", *digits, "--gpus", "2", "--budget", "10s", "-o", str(self.folder / "fast.toml")]):
            code, _, err = self.run_in(1, *run, ":", "-n", "1", "-wdir", str(self.folder / "elsewhere"), PROGRAM, *run)
            self.assertEqual(code, EXIT["usage"], err)
            self.assertEqual(err.count("error: "), 1, err)
            self.assertIn("two.json", err)

    def test_tune_names_what_differs(self):
        (self.folder / "elsewhere").mkdir()
        rows = digits()[:320]
        self.write("data.csv", "\n".join(rows) + "\n")
        self.write("elsewhere/data.csv", "\n".join([*rows[:77], rows[78], rows[77], *rows[79:]]) + "\n")
        run = ["tune", "-m", MODEL, "--data", "data.csv", "--batch-size", "32", "--device", "cpu", "--gpus", "2", "--budget", "10s",
               "-o", str(self.folder / "fast.toml")]
        code, _, err = self.run_in(1, *run, ":", "-n", "1", "-wdir", str(self.folder / "elsewhere"), PROGRAM, *run)
        self.assertEqual(code, EXIT["usage"], err)
        self.assertIn("process 1 has other data than process 0", err)

    def test_a_signal_to_any_process_stops_tune(self):
        process = self.start_in(2, "tune", MODEL, "--data", DATA, "--limit", "320", "--batch-size", "32", "--device", "cpu", "--gpus", "2",
                                "--budget", "2min", "-o", "fast.toml")
        for _ in range(2):  # the head of the table and the run as given
            process.stdout.readline()
        os.kill(self.ranks(process)[1], signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, err.decode())
        self.assertIn("; stopped", err.decode())
        self.assertIn("saved    fast.toml", err.decode())

    def test_each_process_keeps_its_last_instructions(self):
        process = self.start_in(2, *DIGITS, "--stages", "2", "--max-steps", "1000000", "--save-every", "never", "--run-dir", "run")
        self.wait_for_step("run", process)
        ranks, file = self.ranks(process), self.folder / "run" / "instructions-1.txt"
        os.kill(ranks[1], signal.SIGUSR2)
        self.wait_for(lambda: file.exists() and "device 1: round " in file.read_text())
        self.assertNotIn("device 0: ", file.read_text())
        os.kill(ranks[0], signal.SIGTERM)
        _, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, err.decode())

    def test_the_status_names_the_process_that_failed(self):
        def start(run, *more):
            process = self.start_in(2, *DIGITS, "--stages", "2", "--max-steps", "2000", "--status-file", f"{run}.json", "--run-dir", run, *more)
            self.wait_for_step(run, process)
            return process

        def status(run):
            return parse((self.folder / f"{run}.json").read_text())

        (self.folder / "out").mkdir()
        process = start("unwritten", "-o", "out/trained.onnx")
        shutil.rmtree(self.folder / "out")
        _, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, EXIT["resource"], err.decode())
        self.assertEqual(status("unwritten")["failed_process"], 0)
        # Process 0 reports that another one is silent.
        process = start("silent", "--comm-timeout", "2")
        os.kill(self.ranks(process)[1], signal.SIGSTOP)
        _, err = process.communicate(timeout=SECONDS)
        self.assertIn("process 1 ", err.decode())
        self.assertNotEqual(status("silent").get("failed_process"), 0)

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
        code, _, err = self.run_in(2, *gpus, "--gpu-ids", "0,9", environment=environment)
        self.assertEqual(code, EXIT["resource"], err)
        self.assertRegex(err, "device 1 maps to GPU 9 of [^ ]+, which has [0-9]+; start fewer processes")
        self.assertEqual(err.count("requested"), 1, err)
        # Slurm may show each process a GPU of its own by the same number.
        plan = ["plan", "-m", MODEL, "--data", DATA, "--batch-size", "32", "--device", "cuda", "--gpus", "2"]
        for first, second, code in (("a", "b", 0), ("ab", "ab", 0), ("a", "a", EXIT["resource"])):
            other = ["-n", "1", "env", f"RECORDED_GPUS={second}", PROGRAM, *plan]
            ended, _, err = self.run_in(1, *plan, ":", *other, environment=environment | {"RECORDED_GPUS": first})
            self.assertEqual(ended, code, err)

    def test_without_the_plugin_it_is_said(self):
        code, _, err = self.run_in(2, *DIGITS, environment={"PIPETRAIN_BACKEND_PATH": str(self.folder)})
        self.assertEqual(code, EXIT["resource"], err)
        self.assertIn("has no support for several processes: there is no libpipetrain_mpi.so", err)

    def test_another_build_is_refused(self):
        """A copy of the program whose linker would have named it otherwise."""
        note = b"\4\0\0\0\x14\0\0\0\3\0\0\0GNU\0"
        before, after = pathlib.Path(PROGRAM).read_bytes().split(note)
        other = self.folder / "pipetrain"
        other.write_bytes(before + note + bytes([after[0] ^ 255]) + after[1:])
        other.chmod(0o755)
        run = [*DIGITS, "--max-steps", "2", "--run-dir", "run"]
        code, _, err = self.run_in(1, *run, ":", "-n", "1", str(other), *run, environment={"PIPETRAIN_BACKEND_PATH": str(PLUGIN.parent)})
        self.assertEqual(code, EXIT["usage"], err)
        self.assertRegex(err, r"process 1 on \S+ is another build of pipetrain \(\S+\) than process 0 \(\S+\); install the same one on all hosts")

    def test_other_commands_are_for_one_process(self):
        code, _, err = self.run_in(2, "eval", "-m", MODEL, "--data", DATA)
        self.assertEqual(code, EXIT["usage"], err)
        self.assertIn("only training supports several", err)

    def test_one_process_under_mpirun_is_an_ordinary_run(self):
        run = [*DIGITS, "--max-steps", "3"]
        self.train_in(1, *run, "--run-dir", "under")
        self.succeed(*run, "--run-dir", "alone")
        self.assertEqual(self.content("under"), self.content("alone"))

    def test_the_evaluator_of_launch_reads_data_as_the_training_does(self):
        self.succeed("new", "mlp", "-o", "mlp.onnx")
        train = ["--", "train", "-m", "mlp.onnx", "--data", "d.txt", "--val-data", "d.txt", "--format", "csv", "--label-column", "first", "-b", "4",
                 "--device", "cpu", "--threads", "1", "--no-pin", "--max-steps", "2", "--save-every", "1", "--run-dir", "run"]
        self.write("d.txt", "\n".join(["first," + ",".join(f"x{i}" for i in range(784))] + [f"{i % 10}" + f",{i}" * 784 for i in range(8)]) + "\n")
        for kind in ("chief", "evaluator"):
            config = json.dumps({"cluster": {"chief": ["localhost:2222"]}, "task": {"type": kind, "index": 0}})
            out, _ = self.succeed("launch", *train, environment={"TF_CONFIG": config, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        self.assertRegex(out, r"(?m)^step 2 .*accuracy")


if __name__ == "__main__":
    unittest.main()
