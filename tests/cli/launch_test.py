"""pipetrain launch: what it refuses, and a run whose processes and launcher are killed."""

import fcntl
import json
import os
import shutil
import signal
import time
import unittest

from launch_case import MPI, TRAIN, LaunchCase, children_of, is_alive
from program import DATA, EXIT, MODEL, SECONDS, Case, events


class Refused(Case):
    def setUp(self):
        super().setUp()
        if not shutil.which("mpirun"):
            self.skipTest("needs mpirun (Debian: openmpi-bin)")

    def script(self, text):
        path = self.folder / "discover.sh"
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return str(path)

    def refuse(self, kind, *arguments, says, train=TRAIN, **options):
        err = self.refused(kind, "launch", *arguments, "--", *train, says=says, **options)
        self.assertEqual(err.count("error: "), 1, err)
        self.assertFalse((self.folder / "runs").exists() and list((self.folder / "runs").rglob("config.toml")), "it has begun")

    def test_hosts(self):
        hosts = self.write("hosts", "localhost slots=2\n")
        self.refuse("usage", says=["--hosts FILE", "--discover SCRIPT"])
        self.refuse("usage", "--hosts", "missing", says='missing')
        self.refuse("usage", "--hosts", ".", says='"."')
        self.refuse("usage", "--hosts", self.write("bad", "localhost\n<html>\n"), says=["line 2", "<html>"])
        self.refuse("usage", "--hosts", hosts, "--discover", "x", says=["--hosts", "--discover"])
        self.refuse("resource", "--hosts", hosts, "--min", "2", says=["1 host", "--min is 2"])
        self.refuse("resource", "--hosts", self.write("none", "# none\n"), says=["0 hosts", "--min is 1"])
        self.refuse("usage", "--hosts", hosts, "--min", "3", "--max", "2", says=["--max 2", "--min 3"])
        # A host that has no name anywhere.
        self.refuse("resource", "--hosts", self.write("two", "localhost\nhost.invalid\n"), "--min", "2", environment=MPI,
                    says=["1 host can be reached", "host.invalid"])

    def test_discovery(self):
        self.refuse("resource", "--discover", self.script("echo localhost; exit 3"), says=["discover.sh", "exit code 3"])
        self.refuse("resource", "--discover", "missing.sh", says=["missing.sh", "cannot be run"])
        self.refuse("usage", "--discover", self.script("echo Traceback: most recent call"), says=["line 1", "Traceback"])
        self.refuse("usage", "--discover", self.script("head -c 4000 /dev/urandom"), says="line ")
        self.refuse("resource", "--discover", self.script("kill -9 $$"), says=["discover.sh", "signal 9"])
        self.refuse("resource", "--discover", self.script(""), says="0 hosts")

    def test_what_is_started(self):
        hosts = self.write("hosts", "localhost slots=2\n")
        self.refuse("usage", "--hosts", hosts, train=[], says="launch --hosts FILE -- train")
        self.refuse("usage", "--hosts", hosts, train=[*TRAIN, "--batch-sise", "3"], says="did you mean --batch-size")
        self.refuse("usage", "--hosts", hosts, train=[*TRAIN, "--restarts", "3"], says=["--restarts", "--max-restarts"])
        self.refuse("usage", "--hosts", hosts, train=[*TRAIN, "-o", "-"], says="--output -")
        self.refuse("resource", "--hosts", hosts, environment={"PATH": "/nowhere"}, says=["mpirun is not installed", "openmpi-bin"])

    def test_tensorflow(self):
        config = json.dumps({"cluster": {"worker": ["localhost:1", "b:1"]}, "task": {"type": "worker", "index": 1}})
        self.refuse("usage", environment={"TF_CONFIG": config}, says=["TF_CONFIG", "--run-dir"])
        self.refuse("usage", environment={"TF_CONFIG": "{}"}, says=["TF_CONFIG", "--hosts"])
        config = json.dumps({"cluster": {"worker": ["[::1]:1"]}, "task": {"type": "worker", "index": 0}})
        self.refuse("usage", environment={"TF_CONFIG": config}, says=["TF_CONFIG", "IPv6", "[::1]"])


class Launch(LaunchCase):
    def test_one_that_fails_at_once_does_not_hide_the_run_to_resume(self):
        train = [*TRAIN, "--max-steps", "2", "-q"]
        latest = self.folder / "runs" / "latest"
        self.succeed("launch", "--hosts", self.hosts, "--", *train, environment=MPI)
        first = latest.resolve()
        self.assertTrue((first / "trained.onnx").exists())
        self.refused("usage", "launch", "--hosts", self.hosts, "--", *train, "--lr-schedule", "linear:min=1", environment=MPI)
        self.assertEqual(latest.resolve(), first)
        self.succeed("launch", "--hosts", self.hosts, "--", *train, environment=MPI)
        self.assertNotEqual(latest.resolve(), first)

    def test_kills_change_no_bit(self):
        """Each rank, and mpirun, which leaves its processes behind."""
        steps = ["--max-steps", "600", "--save-every", "5"]
        self.succeed(*TRAIN, *steps, "-q", "--run-dir", "whole")
        self.launch(*steps, options=["--max-restarts", "5"])
        for number, victim in enumerate((lambda: self.ranks()[1], self.launcher, lambda: self.ranks()[0]), 1):
            self.wait_for_steps(len(self.steps()) + 12)
            left = self.ranks()
            self.assertEqual(len(left), 2)
            os.kill(victim(), signal.SIGKILL)
            self.wait_for(lambda: not any(is_alive(process) for process in left))
        err = self.finish(0)
        self.assertEqual(err.count("restarting it"), 3, err)
        self.assertEqual(err.count("error: "), 0, err)
        self.assertIn("an end from outside (signal 9 (Killed))", err)
        self.assertEqual((self.folder / "run/trained.onnx").read_bytes(), (self.folder / "whole/trained.onnx").read_bytes())
        out, _ = self.succeed("verify", "whole", "--against", "run")
        self.assertEqual(out, "bit-identical: 600 steps\n")
        logs = self.folder / "run/logs"
        self.assertIn("done ", (logs / "process-0.log").read_text())
        self.assertIn("exited on signal 9", (logs / "launcher.log").read_text())
        self.assertNotIn("mpirun noticed", err)
        self.assertRegex(err, r"\[0\] done ")

    def test_a_process_that_is_killed_before_the_run_has_begun_does_not_end_it(self):
        self.launch("--num-classes", "10", "--max-steps", "20")
        self.wait_for(lambda: (self.folder / "run/model.onnx").exists())
        os.kill(self.ranks()[0], signal.SIGKILL)
        _, err = self.process.communicate(timeout=SECONDS)
        self.assertEqual(self.process.returncode, 0, err.decode())
        self.assertIn("training ended by", err.decode())

    def test_the_lock_of_a_lost_process_is_waited_for(self):
        """A file server keeps the lock of a host that is lost; here another process takes it over."""
        self.launch("--max-steps", "600", "--save-every", "never", options=["--commit-every", "4"])
        self.wait_for_steps(20)
        log = self.folder / "run/logs/process-0.log"
        with open(self.folder / "run/.lock", "a") as lock:
            os.kill(self.ranks()[0], signal.SIGKILL)
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.wait_for(lambda: "waiting up to 180 s for it" in log.read_text() or self.process.poll() is not None)
        err = self.finish(0)
        self.assertEqual(err.count("restarting it"), 1, err)
        self.assertLessEqual(self.repeated(), 4)

    def test_steps_between_commits_may_be_thousands(self):
        self.launch("--max-steps", "2", options=["--commit-every", "1k"])
        self.finish(0)

    def test_what_no_checkpoint_has_is_in_memory(self):
        """Without checkpoints, a rank and mpirun are killed: at most the steps since the last commit are computed again."""
        steps = ["--max-steps", "600", "--save-every", "never"]
        self.succeed(*TRAIN, *steps, "-q", "--run-dir", "whole")
        self.launch(*steps, options=["--commit-every", "4"])
        for victim in (lambda: self.ranks()[1], self.launcher):
            self.wait_for_steps(len(self.steps()) + 20)
            left = self.ranks()
            memory = self.memory()
            self.assertTrue(memory.exists())
            os.kill(victim(), signal.SIGKILL)
            self.wait_for(lambda: not any(is_alive(process) for process in left))
        err = self.finish(0)
        self.assertEqual(err.count("restarting it"), 2, err)
        self.assertEqual((self.folder / "run/trained.onnx").read_bytes(), (self.folder / "whole/trained.onnx").read_bytes())
        starts = [event for event in events((self.folder / "run/events.jsonl").read_text()) if event["event"] == "run_start"]
        self.assertEqual(len(starts), 3)
        self.assertLessEqual(self.repeated(), 2 * 4)
        self.assertRegex(err, r"commits +\d+ in memory, \d")
        self.assertFalse(memory.exists())

    def test_a_spread_optimizer_is_in_memory(self):
        """Each replica has a share of its state."""
        steps = ["--max-steps", "400", "--save-every", "never", "--replicas", "2", "--shard-optimizer"]
        train = TRAIN[:-2]
        self.succeed(*train, *steps, "-q", "--run-dir", "whole")
        self.process = self.start("launch", "--hosts", self.hosts, "--commit-every", "4", "--", *train, *steps, "--run-dir", "run", environment=MPI)
        self.addCleanup(self.end)
        self.wait_for_steps(20)
        os.kill(self.ranks()[1], signal.SIGKILL)
        err = self.finish(0)
        self.assertEqual(err.count("restarting it"), 1, err)
        self.assertEqual((self.folder / "run/trained.onnx").read_bytes(), (self.folder / "whole/trained.onnx").read_bytes())
        self.assertLessEqual(self.repeated(), 4)

    def test_replicas_that_do_not_wait_go_on_with_their_record(self):
        """A rank and process 0 are killed: what no checkpoint has is in memory, and the record is whole."""
        self.process = self.start("launch", "--hosts", self.hosts, "--commit-every", "4", "--", *TRAIN[:-2], "--replica-mode", "async", "--max-steps",
                                  "800", "--save-every", "1000000", "--run-dir", "run", environment=MPI)
        self.addCleanup(self.end)
        for victim in (1, 0):
            self.wait_for_steps(len(self.steps()) + 20)
            left = self.ranks()
            os.kill(left[victim], signal.SIGKILL)
            self.wait_for(lambda: not any(is_alive(process) for process in left))
        err = self.finish(0)
        self.assertEqual(err.count("restarting it"), 2, err)
        self.assertEqual(sorted(set(self.steps())), list(range(1, 801)))
        self.assertLessEqual(self.repeated(), 2 * 4)
        self.assertRegex(err, r"commits +\d+ in memory, \d")
        self.assertIn("bit-identical", self.succeed("verify", "--replay", "run")[0])

    def test_a_killed_launch_is_launched_again(self):
        """What it has left in memory is taken up, as the run folder says where it is."""
        steps = ["--max-steps", "400", "--save-every", "never", "--resume=auto"]
        self.succeed(*TRAIN, *steps, "-q", "--run-dir", "whole")
        self.launch(*steps, options=["--commit-every", "2"])
        self.kill_launch()
        self.launch(*steps, options=["--commit-every", "2"])
        self.finish(0)
        self.assertEqual((self.folder / "run/trained.onnx").read_bytes(), (self.folder / "whole/trained.onnx").read_bytes())
        self.assertLessEqual(self.repeated(), 2)

    def test_what_a_killed_launch_has_left_is_deleted_by_a_new_run(self):
        steps = ["--max-steps", "1500", "--save-every", "never"]
        self.launch(*steps, options=["--commit-every", "2"])
        left = self.kill_launch()
        self.launch(*steps, options=["--commit-every", "2"])
        self.finish(0)
        self.assertFalse(left.exists())
        self.assertEqual(self.steps().count(1), 1)

    def test_a_copied_run_leaves_its_commits_to_the_one_it_is_a_copy_of(self):
        steps = ["--max-steps", "400", "--save-every", "never", "--resume=auto"]
        self.launch(*steps, options=["--commit-every", "2"])
        left = self.kill_launch()
        run = self.folder / "run"
        run.rename(self.folder / "original")
        shutil.copytree(self.folder / "original", run)
        self.launch(*steps, options=["--commit-every", "2"])
        self.finish(0)
        self.assertTrue(left.exists())
        shutil.rmtree(run)
        (self.folder / "original").rename(run)
        self.launch(*steps, options=["--commit-every", "2"])
        self.finish(0)
        self.assertLessEqual(self.repeated(), 2)
        self.assertFalse(left.exists())

    def test_it_stays_in_its_folder_where_a_link_moves(self):
        for name in ("first", "second"):
            (self.folder / name).mkdir()
        link = self.folder / "run"
        link.symlink_to("first")
        self.launch("--max-steps", "1000000", "--save-every", "never")
        self.wait_for_steps(5)
        link.unlink()
        link.symlink_to("second")
        self.process.send_signal(signal.SIGTERM)
        _, err = self.process.communicate(timeout=SECONDS)
        self.assertEqual(self.process.returncode, 128 + signal.SIGTERM, err.decode())
        self.assertTrue((self.folder / "first/checkpoints/latest").exists())
        self.assertEqual(json.loads((self.folder / "first/launch.json").read_text())["state"], "ended")
        self.assertEqual(list((self.folder / "second").iterdir()), [])

    def test_a_plan_and_a_schedule_file_say_how_many_processes_there_are(self):
        four = self.write("four", "localhost slots=4\n")
        self.succeed("plan", "-m", MODEL, "--device", "cpu", "--batch-size", "32", "--replicas", "1,2", "-o", "plan.json")
        self.succeed("schedule", "export", "gpipe", "--gpus", "2", "--micro-batches", "4", "-o", "two.schedule")
        for more, count in ((["--plan", "plan.json"], 3), (["--schedule", "two.schedule", "--drop-last"], 2)):
            with self.subTest(more):
                _, err = self.succeed("launch", "--hosts", four, "--", *TRAIN[:-2], *more, "--max-steps", "2", "--run-dir", f"run{count}", environment=MPI)
                self.assertIn(f"launch   {count} processes on one host: localhost", err)

    def test_processes_are_told_how_long_it_has_run(self):
        """A stand-in for mpirun notes what it hands on, and fails."""
        (self.folder / "tools").mkdir()
        script = self.folder / "tools/mpirun"
        script.write_text("#!/bin/sh\necho \"$PIPETRAIN_SECONDS_BEFORE $*\" >> starts\nsleep 1.5\nexit 137\n")
        script.chmod(0o755)
        self.launch(options=["--max-restarts", "1"], environment={"PATH": f"{self.folder / 'tools'}:{os.environ['PATH']}"})
        self.process.communicate(timeout=SECONDS)
        first, second = (self.folder / "starts").read_text().splitlines()
        self.assertIn(" -x PIPETRAIN_SECONDS_BEFORE ", first)
        self.assertLess(float(first.split()[0]), 1)
        self.assertGreaterEqual(float(second.split()[0]), 1.5)

    def test_a_run_that_has_deleted_another_is_started_again_as_before(self):
        """A stand-in for mpirun deletes the checkpoints that training would replace, and fails before there are others."""
        self.succeed(*TRAIN, "--max-steps", "2", "--run-dir", "first", "-q")
        shutil.copytree(self.folder / "first", self.folder / "run")
        (self.folder / "tools").mkdir()
        script = self.folder / "tools/mpirun"
        script.write_text("#!/bin/sh\necho \"$*\" >> starts\nrm -r run/checkpoints\nexit 137\n")
        script.chmod(0o755)
        self.launch("--overwrite", "--resume=first", "--max-steps", "4", options=["--max-restarts", "1"],
                    environment={"PATH": f"{self.folder / 'tools'}:{os.environ['PATH']}"})
        self.process.communicate(timeout=SECONDS)
        first, second = (self.folder / "starts").read_text().splitlines()
        for start in (first, second):
            self.assertIn("--resume=first", start)
            self.assertNotIn("--resume=auto", start)

    def test_what_a_killed_launch_has_left_is_kept_while_a_run_cannot_begin(self):
        steps = ["--max-steps", "1500", "--save-every", "5"]
        self.launch(*steps, options=["--commit-every", "2"])
        left = self.kill_launch()
        self.launch(*steps)
        _, err = self.process.communicate(timeout=SECONDS)
        self.assertEqual(self.process.returncode, EXIT["usage"], err)
        self.assertIn('"run" is not empty; give --resume, --overwrite or another folder', err.decode())
        for resume in ("--resume=auto", "--resume=latest", "--resume=run"):
            self.launch(*steps, resume, "--data", "missing.csv")
            self.finish(EXIT["data"])
            self.assertEqual(self.memory(), left)
            self.assertTrue(left.exists())
        self.launch(*steps, "--resume=auto", options=["--commit-every", "2"])
        self.finish(0)
        self.assertLessEqual(self.repeated(), 2)
        self.assertFalse(left.exists())

    def test_no_commits_stay_beside_a_newer_checkpoint(self):
        (self.folder / "out").mkdir()
        self.launch("--max-steps", "1000", "--save-every", "50", "-o", "out/trained.onnx", options=["--commit-every", "4", "--max-restarts", "0"])
        self.wait_for_steps(20)
        left = self.memory()
        self.assertTrue(left.exists())
        shutil.rmtree(self.folder / "out")
        self.finish(EXIT["resource"])
        self.assertEqual(self.steps()[-1], 1000)
        self.assertFalse(left.exists())
        self.assertNotIn("commits", json.loads((self.folder / "run/launch.json").read_text()))

    def test_its_record_is_renewed(self):
        self.launch("--max-steps", "1000000", "--save-every", "never")
        self.wait_for_steps(1)
        record = self.folder / "run/launch.json"
        text, times = record.read_text(), [record.stat().st_mtime_ns]
        self.assertEqual(json.loads(text)["hosts"], ["localhost"])
        self.wait_for(lambda: record.stat().st_mtime_ns > times[0])
        self.assertEqual(record.read_text(), text)
        self.process.send_signal(signal.SIGTERM)
        self.finish(128 + signal.SIGTERM)

    def test_a_record_that_cannot_be_written_at_the_end_is_a_warning(self):
        self.launch("--max-steps", "1500", "--save-every", "never")
        self.wait_for_steps(5)
        record = self.folder / "run/launch.json"
        record.unlink()
        (record / "in-the-way").mkdir(parents=True)
        _, err = self.process.communicate(timeout=SECONDS)
        shutil.rmtree(record)
        self.assertEqual(self.process.returncode, 0, err.decode())
        self.assertEqual(err.decode().count("launch.json"), 1, err.decode())
        self.assertIn("warning: ", err.decode())

    def test_a_log_that_cannot_be_opened_is_left_out(self):
        (self.folder / "run/logs/process-1.log").mkdir(parents=True)
        (self.folder / "run/logs/launcher.log").mkdir()
        self.launch("--max-steps", "100", "--save-every", "5")
        self.wait_for_steps(12)
        os.kill(self.ranks()[1], signal.SIGKILL)
        err = self.finish(0)
        self.assertEqual(err.count("restarting it"), 1, err)
        self.assertEqual(err.count("launcher.log\": Is a directory; training continues without it"), 1, err)
        self.assertIn("done ", (self.folder / "run/logs/process-0.log").read_text())

    def test_the_host_of_the_process_that_was_killed_first_is_left_out(self):
        """A stand-in for the first mpirun reports two killed processes."""
        name = os.uname().nodename
        hosts = self.write("two", f"localhost slots=1\n{name} slots=1\n")
        (self.folder / "tools").mkdir()
        mpirun = self.folder / "tools/mpirun"
        mpirun.write_text(f"#!/bin/sh\nif [ -e failed ]; then exec {shutil.which('mpirun')} \"$@\"; fi; touch failed\n" + "".join(
            f"echo 'mpirun noticed that process rank {rank} with PID 0 on node {name} exited on signal 9 (Killed).' >&2\n" for rank in (1, 0)) +
            "exit 137\n")
        mpirun.chmod(0o755)
        _, err = self.succeed("launch", "--hosts", hosts, "--", *TRAIN, "--max-steps", "20", "--run-dir", "run",
                              environment=MPI | {"PATH": f"{mpirun.parent}:{os.environ['PATH']}"})
        self.assertIn(f"training ended by signal 9 (Killed) after step 0; {name} is left out for 10 s; restarting it", err)
        self.assertIn("1 process on one host: localhost", err)

    def test_an_error_comes_once(self):
        self.launch("--data", "missing.csv")
        err = self.finish(EXIT["data"])
        self.assertEqual(err.count("error: "), 1, err)
        self.assertIn("missing.csv", err)
        self.assertNotIn("restarting", err)

    def test_it_is_asked_to_stop(self):
        self.launch("--max-steps", "1000000", "--save-every", "never")
        self.wait_for_steps(5)
        left = self.ranks()
        self.process.send_signal(signal.SIGTERM)
        err = self.finish(128 + signal.SIGTERM)
        self.assertNotIn("restarting", err)
        self.wait_for(lambda: not any(is_alive(process) for process in left))
        newest = (self.folder / "run/checkpoints/latest").read_text().split()[0]
        self.assertGreaterEqual(int(newest.split("-")[1]), 5)
        # It goes on where it was.
        last = self.steps()[-1]
        self.succeed(*TRAIN, "--run-dir", "run", "--resume", "--max-steps", str(last + 2), "-q")

    def test_a_launcher_that_does_not_end_is_killed(self):
        """A stand-in for mpirun notes that training has saved, and ignores that it is to end."""
        (self.folder / "tools").mkdir()
        script = self.folder / "tools/mpirun"
        script.write_text("#!/bin/bash\ntrap '' TERM\ntrap 'mkdir -p run/checkpoints; echo step-000001 saved > run/checkpoints/latest' USR1\n"
                          "touch begun\nwhile :; do sleep 0.05; done\n")
        script.chmod(0o755)
        self.launch(environment={"PATH": f"{self.folder / 'tools'}:{os.environ['PATH']}"})
        self.wait_for((self.folder / "begun").exists)
        left = self.launcher()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=60)
        finally:
            if is_alive(left):
                os.kill(left, signal.SIGKILL)
        self.assertEqual(self.process.returncode, 128 + signal.SIGTERM)

    def test_a_closed_terminal_does_not_stop_it_under_nohup(self):
        self.launch("--max-steps", "300", before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_for_steps(5)
        self.process.send_signal(signal.SIGHUP)
        err = self.finish(0)
        self.assertNotIn("stopping", err)

    def test_it_gives_up(self):
        self.launch("--max-steps", "1000000", options=["--max-restarts", "1"])
        killed = set()
        while self.process.poll() is None:
            launcher = self.launcher()
            if launcher and launcher not in killed:
                os.kill(launcher, signal.SIGKILL)
                killed.add(launcher)
            time.sleep(0.01)
        err = self.finish(7)
        # A launcher that was seen late has completed steps, and is followed by one more.
        self.assertTrue(len(killed) == 2 or self.steps() and len(killed) > 2, err)
        self.assertIn("not restarted: 1 restart in a row completed no new step", err)

    def test_nothing_outlives_it(self):
        self.launch("--max-steps", "1000000")
        self.wait_for_steps(5)
        left = [self.launcher(), *self.ranks()]
        self.process.kill()
        self.wait_for(lambda: not any(is_alive(process) for process in left))

    def test_tensorflow_starts_the_same_command_everywhere(self):
        """The first worker starts the processes of both; the second one waits for it."""
        def task(index):
            return json.dumps({"cluster": {"worker": ["localhost:2222", f"{os.uname().nodename}:2222"]},
                               "task": {"type": "worker", "index": index}})

        command = ["launch", "--", *TRAIN, "--max-steps", "20", "--run-dir", "run"]
        second = self.start(*command, environment=MPI | {"TF_CONFIG": task(1)})
        self.addCleanup(second.communicate)
        self.addCleanup(second.kill)
        time.sleep(0.5)
        self.assertIsNone(second.poll())
        self.succeed(*command, environment=MPI | {"TF_CONFIG": task(0)})
        _, err = second.communicate(timeout=SECONDS)
        self.assertEqual(second.returncode, 0, err)
        self.assertEqual(self.steps()[-1], 20)

    def test_tensorflow_has_an_evaluator(self):
        """It evaluates every checkpoint of the run, also those after a restart."""
        def task(kind):
            return json.dumps({"cluster": {"chief": ["localhost:2222"]}, "task": {"type": kind, "index": 0}})

        command = ["launch", "--", *TRAIN[:-2], "--val-data", DATA, "--val-every", "1000", "--run-dir", "run"]
        self.refused("usage", "launch", "--", *TRAIN, "--run-dir", "run", says=["evaluator", "--val-data"], environment=MPI | {"TF_CONFIG": task("evaluator")})
        evaluator = self.start(*command, "--max-steps", "20", environment=MPI | {"TF_CONFIG": task("evaluator")})
        self.addCleanup(evaluator.communicate)
        self.addCleanup(evaluator.kill)
        self.succeed(*command, "--max-steps", "20", "--save-every", "10", environment=MPI | {"TF_CONFIG": task("chief")})
        out, err = evaluator.communicate(timeout=SECONDS)
        self.assertEqual(evaluator.returncode, 0, err)
        self.assertRegex(out.decode(), r"(?m)^step 20 .*accuracy")

    def test_arguments_of_uai_train(self):
        """One command for every node, with the folders of its containers."""
        (self.folder / "data").mkdir()
        shutil.copy(MODEL, self.folder / "data/net.onnx")
        self.succeed("launch", "--hosts", self.hosts, "--", "train", "-m", "net.onnx", "--work_dir", str(self.folder / "data"), f"--data_dir={DATA}",
                     f"--output_dir={self.folder / 'data/output'}", f"--log_dir={self.folder / 'data/log'}", "--num_gpus=2", "--device", "cpu",
                     "--threads", "1", "--no-pin", "--limit", "320", "--batch-size", "32", "--max-steps", "4", environment=MPI)
        self.assertTrue((self.folder / "data/output/trained.onnx").exists())
        self.assertTrue(list((self.folder / "data/log").glob("events.out.tfevents.*")))
        self.assertFalse((self.folder / "data/output/tb").exists())
        self.refused("usage", *TRAIN, "--work_dir", "missing", says="missing")
        self.refused("usage", *TRAIN, "--work_dir", says="needs a value")

    def test_slurm(self):
        """In an allocation srun starts the processes; here a stand-in, which marks lines as srun does. The job has no environment to export."""
        tools = self.folder / "tools"
        tools.mkdir()
        (tools / "scontrol").write_text("#!/bin/sh\n[ \"$*\" = 'show hostnames node[1-2]' ] && printf 'node1\\nnode2\\n'\n")
        (tools / "srun").write_text(
            "#!/bin/bash\necho \"$@\" >> srun.log\n[[ \" $* \" == *' --export=ALL '* ]] || unset \"${!PIPETRAIN_@}\"\n"
            "while [[ $1 == -* ]]; do case $1 in -w|-N|-n|-m) [[ $1 == -n ]] && n=$2; shift 2;; *) shift;; esac; done\n"
            "set -o pipefail\nexec mpirun --oversubscribe --tag-output -n ${n:-1} \"$@\" > >(sed 's/^\\[1,\\([0-9]*\\)\\]<stdout>:/\\1: /') "
            "2> >(sed 's/^\\[1,\\([0-9]*\\)\\]<stderr>:/\\1: /' >&2)\n")
        for tool in tools.iterdir():
            tool.chmod(0o755)
        environment = MPI | {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)",
                             "SLURM_CPUS_PER_TASK": "16"}
        _, err = self.succeed("launch", "--", *TRAIN, "--max-steps", "20", "--run-dir", "run", environment=environment)
        self.assertRegex(err, r"(?m)^\[0\] done ")
        self.assertIn("-l -K1 -w node1,node2 -N 2 -n 2 --ntasks-per-node=1 --mpi=pmix -m block --export=ALL --cpus-per-task=16 ",
                      (self.folder / "srun.log").read_text())
        self.assertEqual(self.steps()[-1], 20)


if __name__ == "__main__":
    unittest.main()
