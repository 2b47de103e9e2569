"""How several processes end, what each of them saves, and that any number of processes goes on with it."""

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import unittest

from process_case import DIGITS, MPIRUN, RUN, STREAM, ProcessCase, tensors
from program import DATA, MODEL, PROGRAM, SECONDS, environment_of_user, events


class ProcessesCheckpoints(ProcessCase):
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

    def test_stages_of_a_stream_are_kept_where_processes_can_share_them(self):
        run = [*RUN, "-m", MODEL, "--data", DATA, "--limit", "320", "--batch-size", "32", "--schedule", "pipedream-vertical"]
        self.train_in(4, *run, "--max-steps", "20", "--run-dir", "four")
        for processes, stages in ((2, 4), (3, 4), (5, 5)):
            with self.subTest(processes=processes):
                err = self.train_in(processes, "--resume=four/checkpoints/step-000020", "--max-steps", "30", "--run-dir", f"in-{processes}")
                self.assertIn("resume   ", err)
                plan = next(event for event in events((self.folder / f"in-{processes}" / "events.jsonl").read_text()) if event["event"] == "plan")
                self.assertEqual(len(plan["stages"]), stages)

    def test_a_run_goes_on_in_any_number_of_processes(self):
        run = [*DIGITS, "--max-steps", "12", "--save-every", "6", "--keep", "9"]
        self.train_in(2, *run, "--run-dir", "whole")
        half = str(self.folder / "whole" / "checkpoints" / "step-000006")
        self.train_in(4, *run, f"--resume={half}", "--run-dir", "four")
        self.succeed(*run, f"--resume={half}", "--run-dir", "one")
        self.assertEqual(self.content("four"), self.content("whole"))
        self.assertEqual(self.content("one"), self.content("whole"))

    def test_replicas_that_were_chosen_stay_in_as_many_processes(self):
        run = [*RUN, "-m", MODEL, "--data", DATA, "--limit", "320", "--batch-size", "32"]
        self.train_in(2, *run, "--max-steps", "2", "--run-dir", "run")
        path = self.folder / "run/checkpoints/step-000002/manifest.json"
        manifest = json.loads(path.read_text())
        # As if the other division had been found: a stage in both processes, or one in each.
        other, cuts = ("1,1", [1]) if manifest["numbers"]["replicas"] == "2" else ("2", [])
        manifest["numbers"]["replicas"] = other
        manifest["schedule"]["cuts"] = cuts
        for key in ("sha256", "hmac_sha256"):
            manifest.pop(key, None)
        text = json.dumps(manifest, indent=2)[:-2] + ',\n  "sha256": "'
        path.write_text(text + hashlib.sha256(text.encode()).hexdigest() + '"\n}\n')
        self.train_in(2, *run, "--resume=run", "--max-steps", "4")
        resumed = json.loads((self.folder / "run/checkpoints/step-000004/manifest.json").read_text())
        self.assertEqual(resumed["numbers"]["replicas"], other)

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

    def test_each_process_takes_the_weights_that_match(self):
        self.train_in(2, *DIGITS, "--max-steps", "10", "--run-dir", "run")
        self.train_in(2, *DIGITS, "--num-classes", "12", "--max-steps", "1", "--run-dir", "twelve")
        err = self.train_in(2, *DIGITS, "-m", "twelve/model.onnx", "--resume=run", "--resume-weights-only", "--lr", "0", "--max-steps", "1",
                            "--run-dir", "other")
        self.assertEqual(err.count("tensors begin as in a new run"), 1, err)
        before, after = (tensors(self.folder / run, "weights") for run in ("run/checkpoints/step-000010", "other/checkpoints/step-000001"))
        self.assertEqual(set(before), set(after))
        for name, value in before.items():
            if not name.startswith("head") and "running" not in name:
                self.assertEqual(after[name], value, name)

    def test_the_last_step_is_validated_and_its_update_looked_at(self):
        self.train_in(2, *DIGITS, "--val-split", "0.2", "--max-steps", "6", "--save-every", "3", "--keep", "all", "--run-dir", "run")
        self.train_in(2, "train", "--resume=run/checkpoints/step-000003", "--max-steps", "3", "--run-dir", "rest")
        found = events((self.folder / "rest/events.jsonl").read_text())
        self.assertEqual([event["step"] for event in found if event["event"] == "val"], [3])
        code, _, err = self.run_in(2, *DIGITS, "--precision", "fp16", "--loss-scale", "1e30", "--max-steps", "1", "--run-dir", "bad")
        self.assertEqual(code, 6, err)
        self.assertIn("is not finite after step 1, the last one", err)

    def test_a_killed_process_ends_all_and_loses_nothing(self):
        process = self.start_in(2, *DIGITS, "--epochs", "100000", "--save-every", "5", "--comm-timeout", "100000", "--run-dir", "run")
        self.wait_for_file("run/checkpoints/latest", process)
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


if __name__ == "__main__":
    unittest.main()
