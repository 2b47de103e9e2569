"""Training on two hosts: bits, links, and what becomes of a run whose network fails."""

import os
import pathlib
import signal
import subprocess
import time
import unittest

from dense_model import dense
from program import DATA, MODEL, PROGRAM, SECONDS, Case, environment_of_user, parse
from two_hosts import TwoHosts, why_not

RUN = ["train", "--device", "cpu", "--threads", "1", "--no-pin", "--log-every", "1", "--save-every", "never"]
DIGITS = [*RUN, "-m", MODEL, "--data", DATA, "--limit", "320", "--batch-size", "32"]


class Hosts(Case):
    @classmethod
    def setUpClass(cls):
        reason = why_not()
        if reason:
            raise unittest.SkipTest(reason)
        super().setUpClass()

    def hosts(self, *cable):
        hosts = TwoHosts(*cable)
        self.addCleanup(hosts.close)
        return hosts

    def start_on(self, hosts, *arguments, count=2, **options):
        environment = environment_of_user() | {"PIPETRAIN_CACHE_DIR": self.cache}
        command = hosts.mpirun("-n", str(count), "-x", "PIPETRAIN_CACHE_DIR", PROGRAM, *arguments, **options)
        process = subprocess.Popen(command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.addCleanup(hosts.close)  # first: what runs there has the pipes, too
        return process

    def run_on(self, hosts, *arguments, **options):
        process = self.start_on(hosts, *arguments, **options)
        out, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 0, err.decode())
        return out.decode(), err.decode()

    def steps(self):
        path = self.folder / "run" / "events.jsonl"
        return path.read_text().count('"event":"step"') if path.exists() else 0

    def wait_for_steps(self, process, count):
        end = time.monotonic() + SECONDS
        while self.steps() < count:
            self.assertIsNone(process.poll(), "it has ended")
            self.assertLess(time.monotonic(), end, "it does not get on")
            time.sleep(0.05)

    def content(self, run):
        return (self.folder / run / "trained.onnx").read_bytes()

    def test_the_bits_are_those_of_one_process(self):
        hosts = self.hosts(1000, 1000)
        for name, more in (("stages", ["--stages", "2"]), ("replicas", ["--replicas", "2"]), ("zero", ["--stages", "2", "--schedule", "zb-h1"])):
            self.succeed(*DIGITS, *more, "--max-steps", "4", "--run-dir", f"{name}-1")
            self.run_on(hosts, *DIGITS, *more, "--max-steps", "4", "--run-dir", name)
            self.assertEqual(self.content(name), self.content(f"{name}-1"), name)

    def test_a_slow_network_is_crossed_where_little_is_sent(self):
        """By work alone the cut would be in front of layer 3, where 512 numbers cross; behind layer 1 there are 8."""
        (self.folder / "narrow.onnx").write_bytes(dense([64, 512, 8, 512, 512, 10]))
        run = [*RUN, "-m", "narrow.onnx", "--data", "synthetic", "--batch-size", "256", "--stages", "2", "--max-steps", "4"]
        first = {}
        for name, cable in (("slow", (100, 50)), ("fast", (20, 100000))):
            self.run_on(self.hosts(*cable), *run, "--run-dir", name, "--no-cache")
            plan = parse((self.folder / name / "plan.json").read_text())
            first[name] = str(plan["stages"][1])
        self.assertRegex(first["slow"], "layer2|relu1")

    def test_doctor_measures_the_cable(self):
        out, _ = self.run_on(self.hosts(5000, 100), "doctor", "--json")
        mpi = parse(out)["mpi"]
        self.assertEqual((mpi["processes"], mpi["hosts"]), (2, 2))
        link = mpi["links_between_hosts"]
        self.assertGreater(link["latency_seconds"], 0.005)  # the cable's own; a busy machine adds to it
        self.assertLess(link["bytes_per_second"], 15e6)  # 12.5e6, and bursts
        self.assertGreater(link["bytes_per_second"], 1e6)
        self.assertIsNone(mpi["links_on_host"])

    def test_hosts_that_cannot_be_connected_are_an_error(self):
        hosts = self.hosts(100, 1000)
        process = self.start_on(hosts, *DIGITS, "--stages", "2", "--run-dir", "run", network=hosts.add_separate_networks())
        _, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 5, err.decode())
        self.assertEqual(err.decode().count("error: node2 cannot connect to another host of this run; "), 1)
        self.assertFalse((self.folder / "run").exists())

    def test_a_cut_cable_ends_the_command(self):
        hosts = self.hosts(100, 1000)
        process = self.start_on(hosts, *DIGITS, "--stages", "2", "--epochs", "100000", "--comm-timeout", "3", "--run-dir", "run")
        self.wait_for_steps(process, 3)
        hosts.cut()
        _, err = process.communicate(timeout=SECONDS)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("process 1 on node2 has been silent", err.decode())

    def test_a_short_cut_is_survived(self):
        hosts = self.hosts(100, 1000)
        process = self.start_on(hosts, *DIGITS, "--stages", "2", "--epochs", "100000", "--max-time", "8s", "--comm-timeout", "30",
                                "--run-dir", "run")
        self.wait_for_steps(process, 3)
        hosts.cut()
        time.sleep(2)
        hosts.mend()
        steps = self.steps()
        _, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 0, err.decode())
        self.assertGreater(self.steps(), steps)

    def test_a_killed_host_ends_the_command(self):
        hosts = self.hosts(100, 1000)
        process = self.start_on(hosts, *DIGITS, "--stages", "2", "--epochs", "100000", "--comm-timeout", "100000", "--run-dir", "run")
        self.wait_for_steps(process, 3)
        hosts.kill_all_on(2)
        process.communicate(timeout=SECONDS)  # long before a silence would be noticed
        self.assertNotEqual(process.returncode, 0)

    def launch_on(self, hosts, *arguments, err=subprocess.PIPE):
        command, settings = hosts.launch(PROGRAM, *arguments)
        process = subprocess.Popen(command, cwd=self.folder, env=environment_of_user() | settings | {"PIPETRAIN_CACHE_DIR": self.cache},
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.addCleanup(hosts.close)
        return process

    def last_step(self, run):
        path = self.folder / run / "journal.txt"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return max((int(line.split()[0]) for line in lines if line and line[0] != "#"), default=0)

    def test_a_launched_run_survives_kills(self):
        hosts = self.hosts(100, 1000)
        run = [*DIGITS[:-2], "--batch-size", "32", "--stages", "2", "--save-every", "10", "--max-steps", "600", "--comm-timeout", "10"]
        self.succeed(*run, "--run-dir", "whole")
        process = self.launch_on(hosts, "--min", "2", "--max-restarts", "5", "--", *run, "--run-dir", "run")
        for kill in (lambda: os.kill(hosts.training_on(2)[0], signal.SIGKILL), lambda: hosts.kill_all_on(2),
                     lambda: os.kill(hosts.training_on(1)[0], signal.SIGKILL)):
            self.wait_for_steps(process, self.steps() + 20)
            kill()
        _, err = process.communicate(timeout=SECONDS)
        err = err.decode()
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(err.count("restarting it"), 3, err)
        self.assertEqual(self.content("run"), self.content("whole"))

    def test_a_launched_run_goes_on_without_a_lost_host(self):
        hosts = self.hosts(100, 1000)
        run = [*DIGITS[:-2], "--batch-size", "32", "--stages", "2", "--save-every", "10", "--max-steps", "600", "--comm-timeout", "3"]
        self.succeed(*run, "--run-dir", "whole")
        process = self.launch_on(hosts, "--", *run, "--run-dir", "run")
        self.wait_for_steps(process, 20)
        hosts.cut()
        _, err = process.communicate(timeout=SECONDS)
        err = err.decode()
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("10.88.0.2 does not answer and is left out", err)
        self.assertIn("1 process on one host: 10.88.0.1", err)
        self.assertEqual(self.content("run"), self.content("whole"))

    def test_the_host_of_a_killed_process_is_left_out(self):
        """Process 0 is on the host of mpirun, also if that is not the first one in the list."""
        hosts = self.hosts(100, 1000)
        listed = hosts.folder / "hosts"
        listed.write_text("".join(reversed(listed.read_text().splitlines(keepends=True))))
        run = [*DIGITS[:-2], "--batch-size", "32", "--stages", "2", "--save-every", "10", "--max-steps", "300", "--comm-timeout", "10"]
        process = self.launch_on(hosts, "--", *run, "--run-dir", "run")
        self.wait_for_steps(process, 20)
        os.kill(hosts.training_on(2)[0], signal.SIGKILL)
        _, err = process.communicate(timeout=SECONDS)
        err = err.decode()
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("10.88.0.2 is left out for 10 s", err)
        self.assertIn("1 process on one host: 10.88.0.1", err)

    def test_a_lost_host_had_the_weights_of_replicas_that_do_not_wait(self):
        """The second host has a copy of the commits of process 0, which goes on alone."""
        hosts = self.hosts(100, 1000)
        run = [*DIGITS, "--replica-mode", "async", "--max-steps", "2000", "--save-every", "1000000", "--comm-timeout", "3"]
        process = self.launch_on(hosts, "--commit-every", "5", "--", *run, "--run-dir", "run")
        self.wait_for_steps(process, 60)
        hosts.cut()
        _, err = process.communicate(timeout=SECONDS)
        err = err.decode()
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("1 process on one host: 10.88.0.1", err)
        events = [parse(line) for line in (self.folder / "run" / "events.jsonl").read_text().splitlines()]
        starts = [number for number, event in enumerate(events) if event["event"] == "run_start"]
        self.assertEqual(len(starts), 2)
        next_step = next(event["step"] for event in events[starts[1]:] if event["event"] == "step")
        self.assertGreater(next_step, 30, "it did not begin again")
        self.assertIn("bit-identical", self.succeed("verify", "--replay", "run")[0])

    def test_backup_workers_keep_the_hosts_that_they_need(self):
        """Of four processes on two hosts a run with one backup worker needs three: a killed one does not cost its host."""
        hosts = self.hosts(100, 1000, 2)
        run = [*DIGITS[:-2], "--batch-size", "48", "--replica-mode", "backup:1", "--max-steps", "600", "--save-every", "1000000"]
        process = self.launch_on(hosts, "--commit-every", "5", "--", *run, "--run-dir", "run")
        self.wait_for_steps(process, 20)
        os.kill(hosts.training_on(2)[0], signal.SIGKILL)
        _, err = process.communicate(timeout=SECONDS)
        err = err.decode()
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(err.count("restarting it"), 1, err)
        self.assertNotIn("left out", err)
        self.assertIn("bit-identical", self.succeed("verify", "--replay", "run")[0])

    def wait_for_text(self, process, said, text, count=1):
        end = time.monotonic() + 2 * SECONDS
        while said.read_text().count(text) < count:
            self.assertIsNone(process.poll(), said.read_text())
            self.assertLess(time.monotonic(), end, said.read_text())
            time.sleep(0.05)

    def test_a_host_that_cannot_join_does_not_end_the_run(self):
        """It has another build: a copy of the program whose linker would have named it otherwise."""
        hosts = self.hosts(100, 1000)
        note = b"\4\0\0\0\x14\0\0\0\3\0\0\0GNU\0"
        before, after = pathlib.Path(PROGRAM).read_bytes().split(note)
        other = self.folder / "other"
        other.write_bytes(before + note + bytes([after[0] ^ 255]) + after[1:])
        other.chmod(0o755)
        agent = hosts.folder / "agent"
        agent.write_text(agent.read_text().replace("hostname node2;", f"hostname node2; mount --bind {other} {PROGRAM};"))
        listed = hosts.folder / "hosts"
        both = listed.read_text()
        listed.write_text(both.splitlines()[0] + "\n")
        said = self.folder / "said"
        with said.open("w") as err:
            process = self.launch_on(hosts, "--", *DIGITS, "--stages", "2", "--max-steps", "1000000", "--run-dir", "run", err=err)
        self.wait_for_steps(process, 20)
        listed.write_text(both)
        self.wait_for_text(process, said, "10.88.0.2 is there: training saves, and goes on there")
        self.wait_for_text(process, said, "training on hosts that include 10.88.0.2 failed before its first step (exit code 2); this host is left out for 10 s")
        self.wait_for_steps(process, self.steps() + 20)
        process.terminate()
        process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, said.read_text())
        self.assertIn("is another build of pipetrain", said.read_text())

    def test_a_host_that_returns_is_taken_in(self):
        hosts = self.hosts(100, 1000)
        run = [*DIGITS, "--stages", "2", "--max-steps", "1000000", "--comm-timeout", "3"]
        said = self.folder / "said"
        with said.open("w") as err:
            process = self.launch_on(hosts, "--commit-every", "10", "--", *run, "--run-dir", "run", err=err)

        self.wait_for_steps(process, 20)
        hosts.cut()
        self.wait_for_text(process, said, "1 process on one host: 10.88.0.1")
        hosts.mend()
        self.wait_for_text(process, said, "10.88.0.2 is there: training saves, and goes on there")
        self.wait_for_text(process, said, "2 processes on hosts: 10.88.0.1, 10.88.0.2", 2)
        self.wait_for_steps(process, self.steps() + 20)
        process.terminate()
        process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, said.read_text())
        last = self.last_step("run")
        alone = self.start(*run, "-q", "--run-dir", "alone")
        self.addCleanup(alone.kill)
        while self.last_step("alone") <= last:
            self.assertIsNone(alone.poll())
            time.sleep(0.05)
        alone.terminate()
        alone.communicate(timeout=SECONDS)
        out, _ = self.succeed("verify", "alone", "--against", "run")
        self.assertEqual(out, f"bit-identical: {last} steps\n")


if __name__ == "__main__":
    unittest.main()
