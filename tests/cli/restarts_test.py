"""train --restarts: what ends a training process, what becomes of the run, and what is kept of it."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time
import unittest

from program import DATA, EXIT, MODEL, SECONDS, Case, environment_of_user, is_alive, steps_of

RUN = ["train", "-m", MODEL, "--data", DATA, "--limit", "300", "--batch-size", "32", "--device", "cpu", "--gpus", "2", "--threads", "1", "--no-pin",
       "--micro-batches", "4"]
SHORT = [*RUN, "--max-steps", "60"]
ENDLESS = [*RUN, "--max-steps", "1000000"]


class Restarts(Case):
    def begin(self, *arguments):
        """Starts a run in a new folder."""
        self.number = getattr(self, "number", 0) + 1
        self.run_folder = self.folder / f"run{self.number}"
        self.process = self.start(*arguments, "--run-dir", self.run_folder.name)
        self.addCleanup(self.end)
        return self.process

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def child_now(self):
        """The training process; None: there is none now."""
        try:
            words = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return int(words[0]) if words else None

    def child(self):
        return self.wait_for(self.child_now)

    def steps(self):
        """The steps in the journal of the run, in the order in which they were computed."""
        return steps_of(self.run_folder)

    def wait_for_steps(self, count):
        self.wait_for(lambda: len(self.steps()) >= count or self.process.poll() is not None)

    def finish(self, code):
        out, err = self.process.communicate(timeout=SECONDS)
        self.assertEqual(self.process.returncode, code, err.decode())
        return err.decode()

    def expect_that_it_went_on(self, err):
        """By the line of every process that takes up what the one before has left: a run that begins anew prints none."""
        resumed = [int(step) for step in re.findall(r"resume   .* step (\d+) of ", err)]
        self.assertTrue(resumed and min(resumed) > 0, err)

    def disturb(self, number, after, *arguments):
        """A run whose training process gets a signal after so many steps. Longer ones follow if it has ended before, as on a busy machine it may."""
        for steps in (60, 400, 3000):
            self.short = [*RUN, "--max-steps", str(steps), *arguments]
            self.begin(*self.short, "--restarts", "3")
            self.wait_for_steps(after)
            child = self.child_now()
            if child:
                os.kill(child, number)
            err = self.finish(0)
            if "training ended by" in err:
                self.expect_that_it_went_on(err)  # a state is kept after the first step
                return child, err
        self.fail("every run has ended before")

    def expect_the_run_that_was_not_disturbed(self):
        self.succeed(*self.short, "-q", "--overwrite", "--run-dir", "whole")
        self.assertEqual((self.run_folder / "trained.onnx").read_bytes(), (self.folder / "whole/trained.onnx").read_bytes())
        out, _ = self.succeed("verify", "whole", "--against", self.run_folder.name)
        self.assertEqual(out, f"bit-identical: {self.steps()[-1]} steps\n")

    def test_a_crash_changes_no_bit(self):
        for number, name in ((signal.SIGSEGV, "Segmentation fault"), (signal.SIGKILL, "Killed"), (signal.SIGABRT, "Aborted")):
            with self.subTest(name):
                child, err = self.disturb(number, 10, "--save-every", "never")  # all that is kept is in memory
                self.assertIn(f"warning: training ended by signal {number:d} ({name}) after step ", err)
                report = (self.run_folder / "crash-1.txt").read_text()
                self.assertEqual(report.splitlines()[1], f"process {child}")
                self.assertEqual(report.count("\ndevice "), 2)
                self.assertTrue(re.search(r"  1B\d+\n", report))
                self.assertIn('"event":"step"', report)
                self.expect_the_run_that_was_not_disturbed()
                steps = self.steps()
                self.assertEqual(sorted(set(steps)), list(range(1, steps[-1] + 1)))

    def test_replicas_that_do_not_wait_go_on_with_their_record(self):
        self.short = [*RUN[:RUN.index("--gpus")], "--threads", "1", "--no-pin", "--replicas", "2", "--replica-mode", "async",
                      "--save-every", "1000000", "--max-steps", "2000"]
        self.begin(*self.short, "--restarts", "3")
        self.wait_for_steps(20)
        os.kill(self.child(), signal.SIGKILL)
        err = self.finish(0)
        self.assertIn("training ended by signal 9 (Killed) after step ", err)
        self.expect_that_it_went_on(err)
        steps = self.steps()
        self.assertEqual(sorted(set(steps)), list(range(1, 2001)))
        self.assertIn("bit-identical", self.succeed("verify", "--replay", self.run_folder.name)[0])

    def test_the_best_model_so_far_is_not_lost(self):
        # At this rate the loss grows soon: the best model is an early one, which no checkpoint has.
        diverging = ["--val-rows", "40", "--lr", "0.2", "--optimizer", "sgd:momentum=0.95", "--lr-schedule", "constant", "--val-every", "3",
                     "--save-every", "never"]
        self.disturb(signal.SIGKILL, 40, *diverging)
        self.expect_the_run_that_was_not_disturbed()

    def test_a_process_that_stands_still_is_started_again(self):
        _, err = self.disturb(signal.SIGSTOP, 10, "--comm-timeout", "1")
        self.assertIn("training ended by a stall after step", err)
        self.expect_the_run_that_was_not_disturbed()

    def test_a_process_that_is_killed_before_its_run_has_begun_is_started_again(self):
        self.short = [*RUN, "--num-classes", "10", "--max-steps", "20"]
        self.begin(*self.short, "--restarts", "3")
        self.wait_for(lambda: (self.run_folder / "model.onnx").exists())
        os.kill(self.child(), signal.SIGKILL)
        self.assertIn("training ended by signal 9 (Killed)", self.finish(0))
        self.expect_the_run_that_was_not_disturbed()

    def test_a_run_that_is_restarted_in_its_own_folder_becomes_the_latest(self):
        self.process = self.start(*RUN, "--max-steps", "3", "--restarts", "3")
        self.addCleanup(self.end)
        configuration = self.wait_for(lambda: next(self.folder.glob("runs/*/config.toml"), None))
        child = self.child_now()
        if child:
            os.kill(child, signal.SIGKILL)  # before its first step, unless this is late
        self.finish(0)
        self.assertEqual((self.folder / "runs/latest").resolve(), configuration.parent.resolve())

    def test_a_run_that_is_restarted_before_its_first_step_begins_anew_and_takes_up_no_other(self):
        self.succeed(*RUN, "--max-steps", "20", "-q")
        self.process = self.start(*RUN, "--max-steps", "400", "--seed", "7", "--restarts", "3")
        self.addCleanup(self.end)
        other = (self.folder / "runs/latest").resolve()
        new = self.wait_for(lambda: next((file.parent for file in self.folder.glob("runs/*/config.toml") if file.parent.resolve() != other), None))
        os.kill(self.child(), signal.SIGKILL)  # before its first step, unless this is late
        err = self.finish(0)
        self.assertIn("restarting it", err)
        self.assertNotIn("runs/latest/", err)
        self.assertEqual(sorted(set(steps_of(new))), list(range(1, 401)))

    def kill_until_it_gives_up(self):
        """Kills every training process as soon as it is seen; returns their numbers."""
        killed = []
        while self.process.poll() is None:
            child = self.child_now()
            if child and child not in killed:
                os.kill(child, signal.SIGKILL)
                killed.append(child)
            time.sleep(0.002)
        return killed

    def expect_that_memory_was_saved(self, code):
        """And that the run goes on from there."""
        err = self.finish(code)
        newest = (self.run_folder / "checkpoints/latest").read_text().split()[0]
        saved = json.loads((self.run_folder / "checkpoints" / newest / "manifest.json").read_text())["step"]
        _, resumed = self.succeed(*RUN, "--run-dir", self.run_folder.name, "--resume", "--max-steps", str(saved + 2))
        self.assertIn(f"step {saved} of ", resumed)
        return err

    def test_what_memory_has_is_saved_where_a_run_is_stopped_between_two_processes(self):
        self.begin(*ENDLESS, "--restarts", "3", "--save-every", "never")
        self.wait_for_steps(50)
        child = self.child()
        os.kill(child, signal.SIGKILL)
        self.wait_for(lambda: self.child_now() not in (None, child))
        self.process.terminate()  # before the next one trains, unless this is late
        self.expect_that_memory_was_saved(143)

    def test_what_memory_has_is_saved_where_a_run_is_given_up(self):
        self.begin(*ENDLESS, "--restarts", "1", "--save-every", "never")
        self.wait_for_steps(50)
        self.kill_until_it_gives_up()
        err = self.expect_that_memory_was_saved(128 + signal.SIGKILL)
        self.assertIn("the last state that the training process has kept in memory", err)

    def test_a_link_in_the_folder_of_a_run_does_not_prevent_its_restart(self):
        self.begin(*RUN, "--max-steps", "3000", "--restarts", "3", "--save-every", "never")
        self.wait_for_steps(50)
        (self.run_folder / "metrics.jsonl").symlink_to("events.jsonl")
        os.kill(self.child(), signal.SIGKILL)
        self.expect_that_it_went_on(self.finish(0))

    def test_what_cannot_end_otherwise_is_not_tried_again(self):
        for kind, arguments in (("usage", ["--batch-size", "0"]), ("data", ["--data", "missing.csv"]), ("model", ["-m", "missing.onnx"]),
                                ("diverged", ["--lr", "1e30", "--optimizer", "sgd"])):
            with self.subTest(kind):
                code, _, err = self.run_program(*SHORT, "--run-dir", kind, "--restarts", "3", *arguments)
                self.assertIn(code, (EXIT[kind], EXIT["usage"]), err)
                self.assertNotIn("restarting", err)
                self.assertEqual(err.count("error: "), 1, err)

    def test_it_gives_up(self):
        self.begin(*ENDLESS, "--restarts", "2")
        killed = self.kill_until_it_gives_up()
        err = self.finish(128 + signal.SIGKILL)
        # A process that was seen late has completed steps, and is followed by two more.
        last = max(self.steps(), default=0)
        self.assertTrue(len(killed) == 3 or last > 0 and len(killed) > 3, err)
        self.assertIn(f"error: training ended by signal 9 (Killed) after step {last}; not restarted: 2 restarts in a row completed no new step", err)

    def test_the_log_has_every_restart_once(self):
        self.begin(*ENDLESS, "--restarts", "3")
        for _ in range(2):
            child = self.child()
            self.wait_for_steps(len(self.steps()) + 5)
            os.kill(child, signal.SIGKILL)
            self.wait_for(lambda: self.child_now() not in (None, child))
        self.wait_for_steps(len(self.steps()) + 5)
        self.process.terminate()
        err = self.finish(143)
        log = (self.run_folder / "stderr.log").read_text()
        restarts = [line for line in err.splitlines() if line.endswith("restarting it")]
        self.assertEqual(len(restarts), 2, err)
        for line in restarts:
            self.assertEqual(log.count(line), 1, log)

    def test_signals_reach_the_training_process(self):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            with self.subTest(code):
                self.begin(*ENDLESS, "--restarts", "3")
                self.wait_for_steps(10)
                child = self.child()
                os.kill(self.process.pid, signal.SIGUSR1)
                self.wait_for(lambda: list((self.run_folder / "checkpoints").glob("step-*")))
                os.kill(self.process.pid, signal.SIGUSR2)
                self.wait_for(lambda: (self.run_folder / "instructions.txt").exists())
                os.kill(self.process.pid, number)
                err = self.finish(code)
                self.assertIn("finishing the step and saving", err)
                self.assertIn("stopped  by " + number.name[3:], err)
                self.assertNotIn("restarting", err)
                self.assertFalse(is_alive(child))
                self.assertIn("device 1: round ", (self.run_folder / "instructions.txt").read_text())
                newest = (self.run_folder / "checkpoints/latest").read_text().split()[0]
                saved = json.loads((self.run_folder / "checkpoints" / newest / "manifest.json").read_text())
                self.assertEqual(saved["reason"], "signal")
                self.assertEqual(saved["step"], self.steps()[-1])

    def test_a_signal_to_both_stops_as_one(self):
        # As a terminal and service managers send it.
        self.run_folder = self.folder / "run"
        self.process = subprocess.Popen([os.environ["PIPETRAIN"], *ENDLESS, "--restarts", "3", "--run-dir", "run"], cwd=self.folder, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                                        env=environment_of_user() | {"PIPETRAIN_CACHE_DIR": self.cache})
        self.addCleanup(self.end)
        self.wait_for_steps(10)
        os.killpg(self.process.pid, signal.SIGINT)
        err = self.finish(130)
        self.assertEqual(err.count("finishing the step and saving"), 1, err)
        self.assertIn("stopped  by INT", err)

    def test_training_does_not_outlive_its_parent(self):
        self.begin(*ENDLESS, "--restarts", "3")
        self.wait_for_steps(10)
        child = self.child()
        self.process.kill()
        self.wait_for(lambda: not is_alive(child), seconds=60)
        # It has ended as if it had been asked to.
        self.succeed(*RUN, "--run-dir", self.run_folder.name, "--resume", "--max-steps", str(max(self.steps()) + 1), "-q")

    def test_restarts_are_refused_to_several_processes(self):
        self.refused("usage", *SHORT, "--restarts", "3", environment={"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, says="--restarts")

    def test_who_follows_a_run_waits_for_its_restart(self):
        self.begin(*ENDLESS, "--restarts", "5", "--save-every", "20", "-q")
        self.wait_for_steps(25)
        follower = self.start("eval", "--follow", self.run_folder.name, "--data", DATA, "--limit", "50", "--device", "cpu", "--threads", "1", "--json")
        self.addCleanup(follower.kill)
        self.assertIn(b"step", follower.stdout.readline())
        self.process.send_signal(signal.SIGSTOP)  # so that it restarts nothing meanwhile
        self.addCleanup(self.process.send_signal, signal.SIGCONT)
        os.kill(self.child_now(), signal.SIGKILL)
        try:
            follower.wait(2)
            self.fail(f"it has ended with the training process: {follower.communicate()[1].decode()}")
        except subprocess.TimeoutExpired:
            pass
        self.process.send_signal(signal.SIGCONT)
        self.wait_for_steps(len(self.steps()) + 60)
        self.process.terminate()
        self.process.communicate(timeout=SECONDS)
        out, err = follower.communicate(timeout=SECONDS)
        self.assertEqual(follower.returncode, 0, err.decode())
        self.assertGreater(json.loads(out.decode().splitlines()[-1])["step"], 40)


class Verified(Case):
    def test_every_step_twice_changes_no_bit(self):
        self.succeed(*SHORT, "--verify-every", "3", "--run-dir", "run", "-q")
        self.succeed(*SHORT, "--run-dir", "plain", "-q")
        self.assertEqual((self.folder / "run/trained.onnx").read_bytes(), (self.folder / "plain/trained.onnx").read_bytes())
        lines = [line.split() for line in (self.folder / "run/journal.txt").read_text().splitlines() if line and line[0] != "#"]
        self.assertEqual([int(words[0]) for words in lines if len(words) == 3], list(range(3, 61, 3)))

    def test_the_first_step_that_differs_is_named(self):
        short = [*RUN, "--max-steps", "20", "-q"]
        self.succeed(*short, "--verify-every", "2", "--run-dir", "one")
        self.succeed(*short, "--verify-every", "4", "--run-dir", "same", "--gpus", "3", "--schedule", "gpipe")
        # The rate counts from the first update on: the loss of step 1 is the same.
        self.succeed(*short, "--verify-every", "2", "--run-dir", "other", "--weight-decay", "0.5")
        out, _ = self.succeed("verify", "one", "--against", "same")
        self.assertEqual(out, "bit-identical: 20 steps\n")
        code, out, err = self.run_program("verify", "one", "--against", "other")
        self.assertEqual(code, EXIT["assertion"], err)
        self.assertRegex(out, r"^DIFFERENT: first in the loss of step 2, \S+ and \S+\n$")
        code, out, err = self.run_program("verify", "one", "--against", "other", "--json")
        self.assertEqual(code, EXIT["assertion"], err)
        self.assertEqual(json.loads(out)["first_different"], {"step": 2, "what": "loss"})
        self.refused("usage", "verify", "--against", "one", says="verify RUN --against")
        self.refused("usage", "verify", "one", "--against", "missing", says="missing")

    def test_asynchronous_schedules_are_refused(self):
        self.refused("usage", *SHORT, "--micro-batches", "1", "--schedule", "pipedream", "--verify-every", "2", says=["--verify-every", "synchronous"])


class Errors(Case):
    def test_old_and_new_names_mean_the_same(self):
        for words in (["--on-error", "nan=skip,checkpoint=fail"], ["--on-nan", "skip", "--on-checkpoint-error", "fail"],
                      ["--on-error=nan=skip", "--on-checkpoint-error=fail"]):
            out, _ = self.succeed("train", *words, "--print-config")
            again, _ = self.succeed("train", "--config", self.write("again.toml", out), "--print-config")
            self.assertEqual(out, again)
            self.assertEqual(out.count("skip"), 1, out)
            self.assertEqual(out.count("fail"), 1, out)
        self.refused("usage", "train", "--on-error", "nan=maybe", says=["--on-nan", '"maybe"'])
        self.refused("usage", "train", "--on-error", "nam=skip", says=["--on-error", "did you mean nan?"])
        self.refused("usage", "train", "--on-error", "skip", says=["--on-error", "KEY=VALUE"])


if __name__ == "__main__":
    unittest.main()
