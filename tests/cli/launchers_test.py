"""pipetrain launch with scripts that stand in for mpirun, and with a program that is replaced."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import unittest
from unittest import mock

from launch_case import MPI, PLUGIN, TRAIN, LaunchCase
from program import EXIT, PROGRAM, SECONDS, is_alive

MPIRUN = f"exec {shutil.which('mpirun')} \"${{@//node9.invalid/localhost}}\""  # node9.invalid is another name for this host


class Launchers(LaunchCase):
    def stand_in(self, script):
        """Puts a script in place of mpirun; returns the environment that finds it."""
        tools = self.folder / "tools"
        tools.mkdir()
        mpirun = tools / "mpirun"
        mpirun.write_text(f"#!/bin/bash\n{script}\n")
        mpirun.chmod(0o755)
        return {"PATH": f"{tools}:{os.environ['PATH']}"}

    def test_lines_that_come_in_pieces_are_put_together(self):
        """As Open MPI 4 prints what it has read before a process has ended its line."""
        self.launch(environment=self.stand_in("""printf '[1,0]<stdout>:{"a":[1,1]<stdout>:x\\n[1,0]<stdout>:1}\\n[1,1]<stdout>:y'"""))
        out, err = self.process.communicate(timeout=SECONDS)
        self.assertEqual(self.process.returncode, 0, err.decode())
        self.assertEqual(out.decode(), '{"a":1}\n')
        self.assertEqual((self.folder / "run/logs/process-1.log").read_text(), "x\ny\n")

    def test_a_checkpoint_that_is_under_way_is_not_the_one_that_was_asked_for(self):
        """The stand-in is at step 50, ends a checkpoint of step 1, and saves step 50 two seconds later."""
        self.launch(environment=self.stand_in("""save() { mkdir -p run/checkpoints; echo "$1 saved" > run/checkpoints/latest; mkdir -p run/checkpoints/$1; }
trap 'save step-000001; (sleep 2; save step-000050) &' USR1
trap 'cp run/checkpoints/latest at-end; exit 0' TERM
echo '50 40022ba3c0000000' > run/journal.txt
touch begun
while :; do sleep 0.05; done"""))
        self.wait_for((self.folder / "begun").exists)
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=SECONDS)
        self.assertIn("step-000050", (self.folder / "at-end").read_text())

    def test_steps_are_counted_where_the_status_file_is_on_another_host(self):
        """The stand-in has process 0 write it elsewhere."""
        mpirun = f"exec {shutil.which('mpirun')} \"${{@/here.json/there.json}}\""
        self.launch("--max-steps", "600", "--save-every", "5", "--status-file", "here.json", options=["--max-restarts", "1"],
                    environment=self.stand_in(mpirun))
        for _ in range(3):
            self.wait_for_steps(len(self.steps()) + 12)
            left = self.ranks()
            os.kill(left[1], signal.SIGKILL)
            self.wait_for(lambda: not any(is_alive(process) for process in left))
        err = self.finish(0)
        self.assertEqual(err.count("restarting it"), 3, err)
        self.assertTrue((self.folder / "there.json").exists())
        self.assertFalse((self.folder / "here.json").exists())

    def test_commits_with_steps_of_the_run_are_kept_when_its_end_has_another_cause(self):
        self.launch(environment=self.stand_in("echo '50 40022ba3c0000000' > run/journal.txt; exit 2"))
        self.finish(EXIT["usage"])
        self.assertIn("commits", json.loads((self.folder / "run/launch.json").read_text()))

    def test_a_long_line_stays_whole(self):
        length = 200_000
        self.launch(environment=self.stand_in(f"printf '[1,0]<stdout>:%0{length}d\\n' 7"))
        out, err = self.process.communicate(timeout=SECONDS)
        self.assertEqual(self.process.returncode, 0, err.decode())
        self.assertEqual(len(out), length + 1)

    def test_training_goes_on_where_the_program_has_been_replaced(self):
        program, other = self.folder / "pipetrain", self.folder / "other"
        for copy in (program, other):
            shutil.copy(PROGRAM, copy)
        with mock.patch("program.PROGRAM", str(program)):
            self.launch("--max-steps", "600", "--save-every", "5", environment={"PIPETRAIN_BACKEND_PATH": str(PLUGIN.parent)})
        self.wait_for_steps(12)
        other.rename(program)
        os.kill(self.ranks()[1], signal.SIGKILL)
        err = self.finish(0)
        self.assertEqual(err.count("restarting it"), 1, err)
        self.assertEqual(sorted(set(self.steps())), list(range(1, 601)))

    def test_asked_to_stop_while_hosts_are_asked_it_starts_nothing(self):
        self.write("hosts", "localhost\nnode9.invalid\n")
        self.launch(environment=self.stand_in("""echo "$*" >> starts; case " $* " in *' true ') sleep 5;; esac"""))
        self.wait_for((self.folder / "starts").exists)
        self.process.send_signal(signal.SIGINT)
        err = self.finish(128 + signal.SIGINT)
        self.assertNotIn(" train ", (self.folder / "starts").read_text())
        self.assertNotIn("does not answer", err)

    def test_commits_that_cannot_be_deleted_are_named(self):
        """The other host is lost at the end."""
        self.write("hosts", "localhost\nnode9.invalid\n")
        self.launch("--max-steps", "20", environment=self.stand_in(f"""case " $* " in *' true ') exit 0;; *' rm '*) exit 1;; esac\n{MPIRUN}"""))
        err = self.finish(0)
        self.assertRegex(err, r"warning: .*/dev/shm/pipetrain-[0-9a-f]{32} cannot be deleted on node9\.invalid; delete it there")

    def test_commits_are_kept_where_training_does_not_go_on(self):
        """The second start fails before its first step, as for a mistake in options."""
        tools = self.stand_in(f"if [ -e started ]; then rm started; exit 2; fi; touch started\n{MPIRUN}")
        run = ["--max-steps", "400", "--save-every", "never", "--resume=auto"]
        self.launch(*run, options=["--commit-every", "2"], environment=tools)
        self.wait_for_steps(20)
        left = self.memory()
        os.kill(self.ranks()[1], signal.SIGKILL)
        err = self.finish(EXIT["usage"])
        self.assertIn("restarting it", err)
        self.assertEqual(self.memory(), left)
        self.assertTrue(left.exists())
        self.launch(*run, options=["--commit-every", "2"], environment=tools)
        self.finish(0)
        self.assertLessEqual(self.repeated(), 2)
        self.assertFalse(left.exists())

    def test_it_waits_where_the_processes_that_are_left_do_not_fit(self):
        """Two stages cannot be divided among the three processes that are left when the other host is lost."""
        one, both = "localhost slots=3\n", "localhost slots=3\nnode9.invalid\n"
        self.write("hosts", both)
        self.process = self.start("launch", "--hosts", self.hosts, "--commit-every", "4", "--", *TRAIN[:-2], "--split", "block.conv1", "--max-steps",
                                  "1000000", "--save-every", "never", "--run-dir", "run", environment=MPI | self.stand_in(MPIRUN))
        self.addCleanup(self.end)
        self.wait_for_steps(20)
        self.write("hosts", one)
        record, log = self.folder / "run/launch.json", self.folder / "run/logs/process-0.log"
        for _ in range(2):  # the hosts are looked at
            before = record.stat().st_mtime_ns
            self.wait_for(lambda: record.stat().st_mtime_ns > before)
        for last in self.ranks()[3:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(last, signal.SIGKILL)
        self.wait_for(lambda: "3 processes were started" in log.read_text() or self.process.poll() is not None)
        self.write("hosts", both)
        self.wait_for_steps(len(self.steps()) + 20)
        self.process.send_signal(signal.SIGTERM)
        err = self.finish(128 + signal.SIGTERM)
        self.assertIn("training does not go on with 3 processes (exit code 2); waiting for other hosts", err)
        self.assertLessEqual(self.repeated(), 4)

    def test_a_checkpoint_says_how_many_processes_there_are(self):
        hosts = self.write("more", "localhost slots=3\n")
        for train in ([*TRAIN, "--max-steps", "2"], ["train", "--max-steps", "4", "--resume"]):
            _, err = self.succeed("launch", "--hosts", hosts, "--", *train, "--run-dir", "run", environment=MPI)
            self.assertIn("launch   2 processes", err)

    def test_the_lock_of_a_lost_launch_is_waited_for(self):
        steps = ["--save-every", "5", "--max-steps", "100000", "--resume=auto"]
        self.launch(*steps)
        self.wait_for_steps(20)
        err = self.refused("usage", "launch", "--hosts", self.hosts, "--", *TRAIN, *steps, "--run-dir", "run", environment=MPI)
        self.assertNotIn("of a lost host", err)  # this one renews its record
        self.kill_launch()
        with open(self.folder / "run/logs/.lock", "a") as lock:  # as a file server keeps it
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.launch("--max-steps", str(self.newest_checkpoint() + 1), "--resume=auto", options=["--commit-every", "never"])
            self.assertIn(b"maybe of a lost host, has locked run/logs", self.process.stderr.readline())
        self.finish(0)

    def test_a_run_that_has_gone_on_without_launch_leaves_what_a_killed_launch_has_left(self):
        steps = ["--save-every", "5", "--max-steps"]
        self.launch(*steps, "1500", options=["--commit-every", "2"])
        left = self.kill_launch()
        go_on = ["--run-dir", "run", "--lr", "1e-5", "--resume"]
        checkpoint = self.newest_checkpoint()
        _, err = self.succeed(*TRAIN, *steps, str(checkpoint + 1), *go_on)
        self.assertIn(str(left), err)
        self.assertFalse((self.folder / "run/launch.json").exists())
        self.launch(*steps, str(checkpoint + 3), "--lr", "1e-5", "--resume=auto")
        self.assertIn(f"step {checkpoint + 1} of ", self.finish(0))


if __name__ == "__main__":
    unittest.main()
