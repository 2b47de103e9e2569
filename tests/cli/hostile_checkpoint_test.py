"""A checkpoint, plan, profile or topology from elsewhere decides nothing that its reader has not asked for: no place to write, no file to read, no number
out of range. The digest of a manifest is no secret: everything here recomputes it."""

import copy
import hashlib
import json
import os
import pathlib
import shutil
import unittest

from program import DATA, MODEL, MODELS, Case, parse

RUN = ["-m", MODEL, "--data", DATA, "--limit", "64", "--batch-size", "32", "--device", "cpu", "--threads", "1", "--shuffle"]
CONTENT = "# what was here before\n"


def sign(document):
    """The text of a manifest with the digest that belongs to it."""
    text = json.dumps({key: value for key, value in document.items() if key != "sha256"}, indent=2, ensure_ascii=False)
    text = text[:-2] + ',\n  "sha256": "'
    return text + hashlib.sha256(text.encode()).hexdigest() + '"\n}\n'


class Hostile(Case):
    def setUp(self):
        super().setUp()
        self.succeed("train", *RUN, "--max-steps", "3", "--save-every", "2", "--run-dir", "run", "-q")
        shutil.rmtree(self.folder / "run/checkpoints/step-000003")
        self.manifest = self.folder / "run/checkpoints/step-000002/manifest.json"
        self.document = parse(self.manifest.read_text())
        self.victim = self.folder / "victim"
        self.victim.write_text(CONTENT)
        (self.folder / "other-cache").mkdir()
        self.elsewhere = {"PIPETRAIN_CACHE_DIR": str(self.folder / "other-cache")}

    def set(self, *settings):
        """Puts settings into the manifest, beside or instead of those of the run."""
        document = copy.deepcopy(self.document)
        names = {setting.split("=")[0] for setting in settings}
        kept = [setting for setting in document["settings"] if setting.split("=")[0] not in names]
        document["settings"] = [*kept, *settings]
        self.manifest.write_text(sign(document))

    def check_victim(self):
        self.assertEqual(self.victim.read_text(), CONTENT)
        self.assertFalse(self.victim.is_symlink())

    def one_sentence(self, err):
        self.assertTrue(err.startswith("error: "), err)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertTrue(all(ord(character) >= 32 or character == "\n" for character in err), repr(err))


class Settings(Hostile):
    def test_what_a_run_never_saves_is_refused_by_name(self):
        victim = self.victim
        for settings in (["--output=%s" % victim, "--overwrite=true"], ["--status-file=%s" % victim], ["--metrics=%s" % victim], ["--trace=%s" % victim],
                         ["--run-dir=%s" % victim], ["--overwrite=true"], ["--tensorboard=true"], ["--max-time=1"], ["--config=%s" % victim],
                         ["--resume=%s" % victim], ["--from=%s" % victim], ["--svg=%s" % victim], ["--init=random"], ["--num-classes=3"], ["--quiet=true"],
                         ["--trace=:steps=1-2"], ["--on-checkpoint-error=warn"]):
            with self.subTest(settings[0]):
                self.set(*settings)
                err = self.refused("data", "--resume=run", "--model", MODEL, "--data", DATA, says=("manifest.json", settings[0].split("=")[0]))
                self.one_sentence(err)
                self.check_victim()

    def test_a_shells_file_stays_as_it_is(self):
        model = (MODELS / "digits-cnn.onnx").read_bytes()
        words = b"\ntouch broken-in\n"
        self.write("model.onnx", model + b"\x32" + bytes([len(words)]) + words)  # doc_string, field 6 of ModelProto
        self.succeed("train", "-m", "model.onnx", *RUN[2:], "--max-steps", "3", "--save-every", "2", "--run-dir", "evil", "-q")
        shutil.rmtree(self.folder / "evil/checkpoints/step-000003")
        manifest = self.folder / "evil/checkpoints/step-000002/manifest.json"
        document = parse(manifest.read_text())
        document["settings"] += [f"--output={self.victim}", "--overwrite=true"]
        manifest.write_text(sign(document))
        self.refused("data", "--resume=evil", says="--output")
        self.check_victim()

    def test_settings_that_are_not_known_are_refused_by_name(self):
        for setting in ("--frobnicate=1", "-o=%s" % self.victim, "--learning-rate=1", "lr=1", "--lr\n=1", ""):
            with self.subTest(setting):
                self.set(setting)
                name = setting.split("=")[0].replace("\n", "\\x0a")
                err = self.refused("data", "--resume=run", "--model", MODEL, "--data", DATA, says=("manifest.json", "settings", f'"{name}"'))
                self.one_sentence(err)
                self.check_victim()

    def test_files_outside_of_the_run_are_not_read_unless_they_are_given_again(self):
        paths = {"--model": MODEL, "--data": DATA, "--val-data": DATA, "--plan": "plan.json", "--profile": "profile.json", "--topology": "topology.json",
                 "--schedule": "my.schedule", "--sample-weights": "weights.txt"}
        given = ["--model", MODEL, "--data", DATA]
        for name, path in paths.items():
            path = str(self.folder / path)
            for value in (path, "other/../" + path.rsplit("/", 1)[1], f"run/../{path.rsplit('/', 1)[1]}"):
                with self.subTest(name, value=value):
                    self.write("topology.json", "{}")
                    self.set(f"{name}={value}")
                    rest = [word for i in (0, 2) if given[i] != name for word in given[i:i + 2]]
                    if name == "--topology" and value.startswith("other"):
                        continue
                    err = self.refused("usage", "--resume=run", *rest, says=(f" {name}={value}", "manifest.json"))
                    self.one_sentence(err)

    def test_settings_behind_a_colon_hide_no_path(self):
        self.set(f"--profile={self.folder}/x.json:cache=false", f"--schedule={self.folder}/x.schedule:virtual-stages=2")
        self.refused("usage", "--resume=run", "--model", MODEL, "--data", DATA, says=("--profile=", "--schedule="))
        self.set(f"--plan={self.folder}/secret:x/../../run/plan.json")
        self.refused("usage", "--resume=run", "--model", MODEL, "--data", DATA, says="--plan=")

    def test_names_that_are_no_files_are_taken(self):
        self.set("--schedule=gpipe", "--topology=laptop", "--gpus=2")
        out, err = self.succeed("--resume=run", "--model", MODEL, "--data", DATA, "--dry-run")
        self.assertIn("gpipe", err)
        self.assertIn("--topology=laptop", err)

    def test_files_in_the_runs_folder_are_taken(self):
        shutil.copy(MODEL, self.folder / "run/model.onnx")
        shutil.copy(DATA, self.folder / "run/digits.csv.gz")
        self.set(f"--model={self.folder}/run/model.onnx", "--data=run/digits.csv.gz")
        self.succeed("--resume=run", "-q", environment=self.elsewhere)

    def test_links_out_of_the_runs_folder_are_not_followed(self):
        (self.folder / "run/data").mkdir()
        (self.folder / "run/data/link.csv.gz").symlink_to(DATA)
        for value in ("run/data/link.csv.gz", "run/data/../../x.csv", "run/data/*.csv.gz"):
            self.set(f"--data={value}")
            self.refused("usage", "--resume=run", "--model", MODEL, says=f"--data={value}")

    def test_nor_those_inside_of_a_folder_of_data(self):
        (self.folder / "run/data/more").mkdir(parents=True)
        for name in ("train.csv", "more/train.csv"):
            link = self.folder / "run/data" / name
            for make in (lambda path: path.symlink_to(DATA), os.mkfifo):
                make(link)
                self.set("--data=run/data")
                self.refused("usage", "--resume=run", "--model", MODEL, says="--data=run/data")
                link.unlink()
        os.mkfifo(self.folder / "run/pipe.csv")
        self.set("--data=run/pipe.csv")
        self.refused("usage", "--resume=run", "--model", MODEL, says="--data=run/pipe.csv")

    def test_a_run_does_not_go_on_through_a_link_in_its_folder(self):
        for name in ("events.jsonl", "stderr.log", "trained.onnx", "plan.json", "tb"):
            with self.subTest(name):
                path = self.folder / "run" / name
                before = path.read_bytes() if path.exists() else None
                path.unlink(missing_ok=True)
                path.symlink_to(self.victim)
                try:
                    for arguments in (["--resume=run"], ["--resume", "--run-dir=run"]):
                        err = self.refused("usage", *arguments, "--model", MODEL, "--data", DATA, "-q", says=(f"run/{name}", "symbolic link"))
                        self.one_sentence(err)
                    self.check_victim()
                finally:
                    path.unlink()
                    if before is not None:
                        path.write_bytes(before)

    def test_nor_through_hard_links_and_pipes(self):
        ways = {"a hard link": lambda path: path.hardlink_to(self.victim), "a pipe or a device": os.mkfifo,
                "a symbolic link": lambda path: path.symlink_to("/dev/null")}
        for name in ("events.jsonl", "checkpoints/latest"):
            path = self.folder / "run" / name
            before = path.read_bytes()
            for way, make in ways.items():
                with self.subTest(name, way=way):
                    path.unlink()
                    make(path)
                    err = self.refused("usage", "--resume=run", "--model", MODEL, "--data", DATA, "-q", says=(f"run/{name}", way), environment=self.elsewhere)
                    self.one_sentence(err)
                    self.check_victim()
            path.unlink()
            path.write_bytes(before)
        self.succeed("--resume=run", "--model", MODEL, "--data", DATA, "-q", environment=self.elsewhere)

    def test_pipes_in_the_place_of_files_are_not_waited_for(self):
        for path, commands in ((self.manifest, ("export", "train")), (self.manifest.parent / "weights.safetensors", ("export", "train")),
                               (self.folder / "run/events.jsonl", ("report",))):
            before = path.read_bytes()
            path.unlink()
            os.mkfifo(path)
            for command in commands:
                with self.subTest(path.name, command=command):
                    words = {"export": ["export", "run", "-o", "x.onnx"], "train": ["--resume=run"], "report": ["report", "run", "-o", "x.html"]}[command]
                    self.one_sentence(self.refused("data", *words, says=(path.name, "a pipe or a device")))
            path.unlink()
            path.write_bytes(before)

    def test_one_sentence_names_all_that_has_to_be_given_again(self):
        self.set("--data=/nowhere/\x1b[31mred.npz")
        err = self.refused("usage", "--resume=run", says=(f"--model={MODEL}", "--data=/nowhere/\\x1b[31mred.npz"))
        self.one_sentence(err)

    def test_what_is_taken_over_is_printed(self):
        self.set("--weight-decay=0.5", "--freeze=*\x1b]0;title\x07")
        err = self.refused("usage", "--resume=run", "--model", MODEL, "--data", DATA, "--epochs", "1", "--dry-run", says="no tensor")
        line = next(line for line in err.splitlines() if line.startswith("settings "))
        self.assertIn("--weight-decay=0.5", line)
        self.assertIn("--freeze=*\\x1b]0;title\\x07", line)
        self.assertIn("--batch-size=32", line)
        for given in ("--model", "--data=", "--max-steps", "--epochs"):
            self.assertNotIn(given, line)
        self.assertNotIn("\x1b", err)

    def test_export_and_eval_read_no_model_outside_either(self):
        self.set(f"--output={self.victim}")
        self.refused("data", "export", "--from", "run", "-o", "x.onnx", says="--output")
        self.refused("data", "eval", "--follow", "run", "--data", DATA, says="--output")
        self.set()
        for command in (["export", "--from", "run", "-o", "x.onnx"], ["eval", "--follow", "run", "--data", DATA]):
            err = self.refused("usage", *command, says=f"--model={MODEL}", environment=self.elsewhere)
            self.assertNotIn("--data=", err)  # neither reads what it was trained on
            self.succeed(*command, "-m", MODEL, "-q", environment=self.elsewhere)
        self.check_victim()


class Own(Hostile):
    def test_ones_own_run_goes_on_without_a_word(self):
        self.succeed("--resume=run", "-q")
        self.succeed("export", "--from", "run", "-o", "x.onnx", "-q")

    def test_on_another_machine_its_files_are_given_again(self):
        err = self.refused("usage", "--resume=run", says=(f"--model={MODEL}", f"--data={DATA}"), environment=self.elsewhere)
        self.one_sentence(err)
        self.assertNotIn("--threads", err)
        self.succeed("--resume=run", "--model", MODEL, "--data", DATA, "-q", environment=self.elsewhere)

    def test_a_changed_manifest_is_not_ones_own(self):
        self.assertIn("hmac_sha256", self.document)
        for document in ({**self.document, "total_steps": 4}, {**self.document, "hmac_sha256": "0" * 64},
                         {key: value for key, value in self.document.items() if key != "hmac_sha256"}):
            self.manifest.write_text(sign(document))
            self.refused("usage", "--resume=run", says="--data=")
        self.manifest.write_text(sign(self.document))
        self.succeed("--resume=run", "-q")

    def test_nothing_can_be_put_behind_what_is_signed(self):
        text = self.manifest.read_text()
        mark = text.index('"hmac_sha256": "') + len('"hmac_sha256": "') + 64
        forged = text[:mark] + '","step":0,"a":"'
        self.assertEqual(len(forged), len(text) - 64 - len('"\n}\n'))
        self.manifest.write_text(forged + hashlib.sha256(forged.encode()).hexdigest() + '"\n}\n')
        self.refused("data", "--resume=run", says="manifest.json")

    def test_without_a_place_for_the_key_a_run_saves_and_goes_on_with_its_files_given(self):
        nowhere = {"PIPETRAIN_CACHE_DIR": "/dev/null/none"}
        self.succeed("train", *RUN, "--max-steps", "1", "--run-dir", "b", "-q", environment=nowhere)
        self.assertNotIn("hmac", (self.folder / "b/checkpoints/step-000001/manifest.json").read_text())
        self.refused("usage", "--resume=b", "--max-steps", "2", says=f"--data={DATA}", environment=nowhere)
        self.succeed("--resume=b", "--max-steps", "2", "--model", MODEL, "--data", DATA, "-q", environment=nowhere)

    def test_a_key_that_others_can_read_proves_nothing(self):
        (key,) = self.keys()
        self.assertEqual(key.stat().st_mode & 0o777, 0o600)
        key.chmod(0o644)
        self.addCleanup(key.chmod, 0o600)
        self.refused("usage", "--resume=run", says="--data=")

    def keys(self):
        return list(pathlib.Path(self.cache).glob("*.key"))


class Numbers(Hostile):
    def refuse(self, place, value):
        """Puts a value at a place such as ("best", "step") of the manifest; None: takes it away."""
        document = copy.deepcopy(self.document)
        at = document
        for key in place[:-1]:
            at = at.setdefault(key, {}) if isinstance(at, dict) else at[key]
        at[place[-1]] = value
        self.manifest.write_text(sign(document))
        err = self.refused("data", "--resume=run", "--model", MODEL, "--data", DATA, "--quiet", says=("manifest.json", str(place[-1])))
        self.one_sentence(err)

    def test_each_has_a_range(self):
        tensor = ("files", 0, "tensors", 0)
        best = {"step": 1, "metric": "loss", "value": 1.0, "stalled": 0}
        scale = {"value": 1024.0, "finite_steps": 0, "skipped": 0}
        self.document |= {"best": best, "unmeasured": {"metric": "auc", "validations": 0}, "loss_scale": scale}
        cases = [(("step",), -1), (("step",), 10**18), (("step",), 1.5), (("step",), "2"), (("step",), 1e300), (("step",), 2**64), (("step",), 3),
                 (("total_steps",), -1), (("total_steps",), 10**18), (("total_steps",), None), (("batches_per_epoch",), 0),
                 (("batches_per_epoch",), 10**18), (("learning_rate",), "1"), (("learning_rate",), 1e308), (("learning_rate",), -1e308),
                 (("seconds",), -1), (("seconds",), 1e308), (("reason",), 3),
                 (("loss_scale", "value"), -1), (("loss_scale", "value"), 0), (("loss_scale", "value"), 1e308), (("loss_scale", "finite_steps"), 10**18),
                 (("loss_scale", "skipped"), 10**18), (("best", "step"), 10**18), (("best", "value"), None), (("best", "metric"), "beauty"),
                 (("best", "stalled"), -1), (("unmeasured", "metric"), "beauty"), (("unmeasured", "validations"), 10**18), (("schedule", "cuts"), [3, 3]), (("schedule", "cuts"), [0]), (("schedule", "cuts"), [2**40]),
                 (("schedule", "order"), [-1]), (("schedule", "order"), [2**40]), (("schedule", "order"), ["0"]), (("schedule", "order"), 7),
                 (("schedule", "round_start"), 7), (("schedule", "round_start"), -1), (("schedule", "round_start"), 0),
                 (("schedule", "round_batches"), 10**18), (("schedule", "updates"), [10**18]), (("schedule", "updates"), 7),
                 (("numbers",), []), (("numbers", "seed"), 1), (("numbers", "seed"), {}), (("settings",), {}), (("settings", 0), 7),
                 ((*tensor, "crc32c"), "zz"), ((*tensor, "crc32c"), ""), ((*tensor, "crc32c"), "100000000"), ((*tensor, "crc32c"), "-1"),
                 ((*tensor, "crc32c"), 5), ((*tensor, "offset"), -1), ((*tensor, "offset"), 2**63), ((*tensor, "bytes"), -1),
                 ((*tensor, "bytes"), 1e308), (("files", 0, "bytes"), -1), (("files", 0, "sha256"), "short"), (("files", 0, "name"), "../weights"),
                 (("model", "fingerprint"), 1), (("data", "fingerprint"), None), (("random", "counter"), -1), (("unheard-of",), 1),
                 (("schedule", "unheard-of"), 1), ((*tensor, "unheard-of"), 1)]
        for place, value in cases:
            with self.subTest(place=place, value=value):
                self.refuse(place, value)

    def test_values_nested_without_end_are_refused(self):
        text = sign({**self.document, "step": "deep"}).replace('"deep"', "[" * 100000 + "]" * 100000)
        text = text[:text.rindex('"sha256": "') + len('"sha256": "')]
        self.manifest.write_text(text + hashlib.sha256(text.encode()).hexdigest() + '"\n}\n')
        for command in (["--resume=run"], ["export", "run", "-o", "x.onnx"]):
            self.one_sentence(self.refused("data", *command, says=("manifest.json", "nested")))

    def test_a_later_format_is_one_sentence(self):
        self.document["schema"] = "pipetrain.checkpoint/2"
        self.manifest.write_text(sign(self.document))
        err = self.refused("data", "--resume=run", says=("manifest.json", "pipetrain.checkpoint/2", "later version"))
        self.one_sentence(err)


class Documents(Case):
    """Plans, profiles and topologies: what is wrong in them is named, and they name no place to write."""
    PLANNED = ["-m", MODEL, "--device", "cpu", "--threads", "1"]

    def setUp(self):
        super().setUp()
        self.succeed("profile", *self.PLANNED, "-o", "profile.json", "-q")
        self.succeed("plan", *self.PLANNED, "--gpus", "2", "--profile", "profile.json", "-o", "plan.json", "-q")
        self.write("topology.json", json.dumps({
            "schema": "pipetrain.topology/1", "name": "two", "source": "made up", "levels": [{"name": "l", "count": 2, "bytes_per_second": 1e9, "latency_seconds": 1e-6}],
            "device": {"memory_bytes": 1e9, "flops_per_second": 1e9, "memory_bytes_per_second": 1e9, "speed": [1, 1]}}))

    def numbers(self, value, path=()):
        """The places of all numbers, truth values and texts in a document."""
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from self.numbers(inner, (*path, key))
        elif isinstance(value, list):
            for index, inner in enumerate(value[:2]):
                yield from self.numbers(inner, (*path, index))
        else:
            yield path, value

    def mutants(self, document):
        for path, value in self.numbers(document):
            if isinstance(value, str):
                bad = [7, None, []]
            elif isinstance(value, bool):
                bad = [7, "yes", None]
            else:
                bad = ["1", None, [], True, -1, -1e308, 1e308]
            for replacement in bad:
                changed = copy.deepcopy(document)
                at = changed
                for key in path[:-1]:
                    at = at[key]
                at[path[-1]] = replacement
                yield path, replacement, changed

    def check(self, name, *command):
        document = parse((self.folder / name).read_text())
        count = 0
        for path, value, changed in self.mutants(document):
            with self.subTest(path=path, value=value):
                self.write(name, json.dumps(changed))
                err = self.refused("usage", *command, says=name)
                field = next((str(key) for key in reversed(path) if isinstance(key, str)), "")
                self.assertIn(field, err)
                self.assertEqual(err.count("error: "), 1, err)
                count += 1
        for place in ((), ("stages", 0), ("nodes", 0), ("levels", 0), ("device",), ("stages", 0, "memory")):
            changed = copy.deepcopy(document)
            at = changed
            try:
                for key in place:
                    at = at[key]
            except KeyError:
                continue
            if not isinstance(at, dict):
                continue
            at["output"] = str(self.folder / "victim")
            with self.subTest(place=place):
                self.write(name, json.dumps(changed))
                self.refused("usage", *command, says=(name, '"output"'))
                count += 1
        self.assertFalse((self.folder / "victim").exists())
        self.write(name, json.dumps(document))
        self.succeed(*command)
        return count

    def test_plans(self):
        self.assertGreaterEqual(self.check("plan.json", "train", *self.PLANNED, "--plan", "plan.json", "--dry-run", "-q"), 120)

    def test_profiles(self):
        self.assertGreaterEqual(self.check("profile.json", "plan", *self.PLANNED, "--profile", "profile.json", "-q"), 80)

    def test_topologies(self):
        self.assertGreaterEqual(self.check("topology.json", "plan", *self.PLANNED, "--gpus", "2", "--topology", "topology.json", "--profile", "profile.json", "-q"), 50)

    def test_a_later_format_is_one_sentence(self):
        for name, command in (("plan", "--plan"), ("profile", "--profile"), ("topology", "--topology")):
            self.write(f"{name}.json", json.dumps({"schema": f"pipetrain.{name}/2"}))
            err = self.refused("usage", "plan", *self.PLANNED, command, f"{name}.json", says=(f"{name}.json", f"pipetrain.{name}/2", "later version"))
            self.assertEqual(err.count("\n"), 1, err)


if __name__ == "__main__":
    unittest.main()
