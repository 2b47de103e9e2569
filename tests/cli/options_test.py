"""The option table and what is written from it: help, manual page, completions, reference, configuration files."""

import os
import pathlib
import re
import shutil
import subprocess
import unittest

from program import MODEL, PROGRAM, Case, events

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
REFERENCE = REPOSITORY / "docs" / "cli.md"
MOST_OPTIONS = 80  # of train


def options_in(help_text):
    return re.findall(r"^  (?:-., )?(--[a-z0-9-]+)", help_text, re.MULTILINE)


class Documents(Case):
    def test_the_reference_is_what_the_table_says(self):
        out, _ = self.succeed("help", "--markdown")
        self.assertEqual(REFERENCE.read_text(), out, "docs/cli.md is old: pipetrain help --markdown > docs/cli.md")

    def test_every_setting_that_messages_name_is_an_option(self):
        named = {name for path in (REPOSITORY / "src").rglob("*") if path.suffix in {".h", ".cpp", ".cu"}
                 for name in re.findall(r'\bsetting\("([^"]*)"\)', path.read_text())}
        self.assertGreater(len(named), 50)
        # Aliases are only in completions, settings of other options' values only in the reference.
        written = self.succeed("help", "--markdown")[0] + self.succeed("completion", "bash")[0]
        options = set(re.findall(r"--([a-z0-9-]+)", written))
        self.assertEqual(named - options, set())

    def test_train_stays_small(self):
        out, _ = self.succeed("train", "--help")
        self.assertLessEqual(len(options_in(out)), MOST_OPTIONS)
        self.assertGreater(len(options_in(out)), 40)

    def test_every_command_has_help_manual_and_completion(self):
        short, _ = self.succeed("--help", environment={"COLUMNS": "999"})
        names = re.search(r"^Commands: (.*)$", short, re.MULTILINE)[1].split()
        manual, _ = self.succeed("help", "--man")
        bash, _ = self.succeed("completion", "bash")
        for name in names:
            out, _ = self.succeed("help", name)
            self.assertIn(f"pipetrain {name}", out)
            self.assertIn(f'.B "{name}', manual)
            for option in options_in(out):
                self.assertIn(option.replace("-", r"\-"), manual)
                self.assertIn(option, bash)
        self.assertLessEqual(len(short.splitlines()), 40)

    def test_help_of_a_shared_option_is_that_of_the_command(self):
        for name, option, says in [("train", "output", "trained model"), ("report", "output", "the page; default: RUN/report.html"),
                                   ("predict", "output", "the outputs"), ("plan", "output", "the plan, as JSON"),
                                   ("tune", "output", "the configuration"), ("train", "data", "training data:"),
                                   ("eval", "data", "data, which has to be given: image folders, npz, CSV, tokens, text and others; see --format; default: none\n"),
                                   ("simulate", "schedule", "the only schedule to simulate"),
                                   ("plan", "schedule", "pipeline schedule, see: pipetrain schedule list; auto: the best in simulation; default: auto; "
                                                        "1f1b with -o, --json, --split or --replicas; the plan's with --plan"),
                                   ("new", "seed", "seed of the weights"),
                                   ("schedule", "width", "columns of the timeline"), ("new", "width", "width of the layers")]:
            with self.subTest(command=name, option=option):
                out, _ = self.succeed("help", name, environment={"COLUMNS": "999"})
                self.assertRegex(out, rf"(?m)^  (-., )?--{option} \S+ +{re.escape(says)}")

    def test_help_is_wrapped_to_the_terminal(self):
        for columns in (80, 120):
            out, _ = self.succeed("help", "train", environment={"COLUMNS": str(columns)})
            texts = [line for line in out.splitlines() if line.startswith(" " * 42)]
            self.assertGreater(len(texts), 40)
            self.assertGreater(max(map(len, texts)), columns - 10)
            short, _ = self.succeed("--help", environment={"COLUMNS": str(columns)})
            names = re.search(r"^Commands: ((?:.|\n)*)\nHelp of", short, re.MULTILINE)[1].split()
            for page in [short, *(self.succeed("help", name, environment={"COLUMNS": str(columns)})[0] for name in names)]:
                self.assertEqual([line for line in page.splitlines() if len(line) > columns], [])

    def test_the_short_help_is_whole(self):
        out, _ = self.succeed("--help", environment={"COLUMNS": "400"})
        for line in out.splitlines():
            self.assertEqual(line.count("("), line.count(")"), line)
        self.assertRegex(out, r"--device cpu\s+the same on CPU cores")

    def test_the_manual_page_is_clean_roff(self):
        if not shutil.which("groff"):
            self.skipTest("no groff")
        out, _ = self.succeed("help", "--man")
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww"], input=out.encode(), capture_output=True)
        self.assertEqual(done.stderr.decode(), "")
        self.assertIn("--optimizer", re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout.decode()))

    def test_bash_completes_commands_options_and_values(self):
        script, _ = self.succeed("completion", "bash")
        path = self.write("completion.bash", script)

        def complete(*words):
            command = (f'source {path}; COMP_WORDS=(pipetrain {" ".join(words)}); COMP_CWORD={len(words)}; '
                       '_pipetrain; printf "%s\\n" "${COMPREPLY[@]}"')
            out = subprocess.run(["bash", "-c", command], cwd=self.folder, capture_output=True, text=True, check=True).stdout
            return [line for line in out.splitlines() if line]

        self.assertEqual(complete("simu"), ["simulate"])
        self.assertEqual(complete("eval", "--asse"), ["--assert"])
        self.assertEqual(complete("train", "--asse"), [])
        self.assertEqual(complete("train", "--optimizer", "ada"), ["adamw", "adam", "adagrad"])
        self.assertEqual(complete("train", "--schedule", "zb-"), ["zb-h1", "zb-h2", "zb-v"])
        self.assertEqual(complete("train", "--format", "c"), ["csv", "cifar10", "cifar100"])
        self.assertEqual(complete("train", "--augment", "mix"), ["mixup"])
        self.assertIn("dgx-h100x8.json", complete("plan", "--topology", "dgx-h1"))
        self.assertEqual(complete("new", "res"), ["resnet18", "resnet50"])
        self.assertEqual(complete("data", "ins"), ["inspect"])
        self.assertEqual(complete("schedule", "show", "zb-v"), ["zb-v"])
        # Bash makes three words of --name=value.
        self.assertEqual(complete("train", "--optimizer", "=", "ada"), ["adamw", "adam", "adagrad"])
        self.assertEqual(complete("--device", "=", "cu"), ["cuda"])
        self.assertIn("cpu", complete("train", "--device", "="))
        # The files that an option or a command takes, and folders on the way to them.
        for name in ["m.onnx", "m.toml", "m.json", "m.svg"]:
            self.write(name, "")
        (self.folder / "models").mkdir()
        for words, found in [(["train", "--config"], ["m.json", "m.toml", "models"]), (["eval"], ["m.onnx", "models"]),
                             (["train", "--plan"], ["m.json", "models"]), (["plan", "--svg"], ["m.svg", "models"]),
                             (["report"], ["models"]), (["doctor"], []), (["new"], ["mlp", "mobilenet"])]:
            self.assertEqual([path.rpartition("/")[2] for path in complete(*words, f"{self.folder}/m" if found != ["mlp", "mobilenet"] else "m")],
                             found, words)
        self.assertIn("completion.bash", complete("train", "--data", f"{self.folder}/comp")[0])
        self.write("my net.onnx", "")
        self.assertEqual(complete("eval", f"{self.folder}/my"), [f"{self.folder}/my net.onnx"])

    def test_other_shells_have_scripts_too(self):
        for shell, sign in [("zsh", "#compdef pipetrain"), ("fish", "complete -c pipetrain")]:
            out, _ = self.succeed("completion", shell)
            self.assertIn(sign, out)
            if shell == "zsh":
                # OPTION[HELP]:MESSAGE:ACTION, where other colons have a backslash.
                specs = re.findall(r"^        '(\*?--.*)'$", out, re.MULTILINE)
                self.assertGreater(len(specs), 100)
                for spec in specs:
                    self.assertIn(len(re.findall(r"(?<!\\):", spec)), (0, 2), spec)
            else:
                # tune takes the options of train.
                self.assertTrue(re.search(r"_from train [^';]*\btune\b[^']*' -l epochs ", out))
            if shutil.which(shell):
                subprocess.run([shell, "-n", self.write(shell, out)], check=True)
        self.refused("usage", "completion", "tcsh", says="bash, zsh or fish")


class Parsing(Case):
    def printed(self, *arguments, **options):
        out, _ = self.succeed(*arguments, "--print-config", **options)
        return [line for line in out.splitlines() if line and not line.startswith("#")]

    def test_names_may_be_written_in_several_ways(self):
        same = ["optimizer = \"sgd\"", "momentum = 0.5", "batch-size = 32"]
        for words in [["--optimizer", "sgd", "--momentum", "0.5", "--batch-size", "32"],
                      ["--optimizer=sgd:momentum=0.5", "-b", "32"],
                      ["--batch_size=32", "--optimizer", "sgd", "--momentum=0.5"]]:
            self.assertEqual(sorted(self.printed("train", *words)),
                             sorted(same) if "sgd:" not in str(words) else
                             sorted(["optimizer = \"sgd:momentum=0.5\"", "batch-size = 32"]))
        self.assertEqual(self.printed("--shuffle=false"), self.printed("--no-shuffle"))

    def test_options_may_stand_before_the_command(self):
        out, _ = self.succeed("--gpus", "3", "plan", "--print-config")
        self.assertIn("pipetrain plan --config", out)
        self.assertIn("gpus = 3", out)
        for words in (["--resume", "runs/latest", "train"], ["--resume", "train"]):
            out, _ = self.succeed(*words, "--epochs", "3", "--print-config")
            self.assertIn("epochs = 3", out)
            self.assertNotIn("model", out)

    def test_a_file_that_is_no_command_is_a_model(self):
        for name in ("NET.ONNX", "net"):
            shutil.copy(MODEL, self.folder / name)
            _, err = self.succeed(name, "--device", "cpu", "--dry-run")
            self.assertIn(name, err)
        self.refused("usage", "trian", "net", says="did you mean train?")
        self.refused("usage", "missing.ONNX", says='unknown command "missing.ONNX"')

    def test_arguments_that_nothing_reads_are_refused(self):
        self.refused("usage", "doctor", "x", says='unexpected argument "x"')
        self.refused("usage", "help", "train", "x", says="help takes one command")

    def test_parts_are_checked_like_options(self):
        self.refused("usage", "train", "--optimizer", "sgd:momentun=1", says=["momentun", "did you mean momentum?"])
        for words, meant in [(["--optimizer", "sgd:momentm=0.9"], "momentum"), (["--loss", "cross-entropy:smoothin=0.1"], "smoothing"),
                             (["--tokenizer", "vocab.txt:colunm=review"], "column"), (["--lora", "rnk=4"], "rank")]:
            self.refused("usage", "train", "-m", MODEL, *words, says=f"did you mean {meant}?")
        self.refused("usage", "train", "-m", MODEL, "--lora", "alpha=8", says=["--lora", "rank"])
        for path in ("a:b=c.txt:column=x", "runs/wd=1:ed=2/vocab.txt"):
            self.assertEqual(self.printed("--tokenizer", path), [f'tokenizer = "{path}"'])
        self.refused("usage", "train", "--optimizer", "sgd:momentum=much", says=["--momentum", '"much"'])
        self.refused("usage", "train", "--lr", says="--lr needs a value")
        self.refused("usage", "eval", "--momentum", "1", says=["--momentum", "train"])

    def test_a_setting_in_a_value_is_checked_against_the_command(self):
        for command, option, value, part in [("eval", "-b", "8:drop-last=true", "--drop-last"), ("profile", "-b", "8:drop_last=true", "--drop-last"),
                                             ("eval", "--loss", "cross-entropy:smoothing=0.3", "--label-smoothing"),
                                             ("schedule", "--replicas", "2,1:mode=async", "--replica-mode")]:
            self.refused("usage", command, "x", option, value, says=f'{part} is not an option of "{command}"')
        config = self.write("c.toml", 'batch-size = "8:drop-last=true"\n')  # which may be for several commands
        self.assertEqual(self.printed("eval", "--config", config), ['batch-size = "8:drop-last=true"'])

    def test_command_line_before_environment_before_files(self):
        first = self.write("first.toml", 'lr = 1\nseed = 1\ndevice = "cuda"\nbatch_size = 8\n')
        second = self.write("second.toml", "lr = 2  # more\nseed = 2\n")
        lines = self.printed("--config", first, "--config", second, "--lr", "3", environment={"PIPETRAIN_DEVICE": "cpu"})
        self.assertEqual(sorted(lines), ["batch-size = 8", 'device = "cpu"', "lr = 3", "seed = 2"])
        lines = self.printed("--device", "reference", environment={"PIPETRAIN_DEVICE": "cpu", "PIPETRAIN_CONFIG": first})
        self.assertEqual(sorted(lines), ["batch-size = 8", 'device = "reference"', "lr = 1", "seed = 1"])

    def test_a_name_of_another_tool_means_the_same_in_a_file(self):
        config = self.write("c.toml", 'log_dir = "logs"\n')
        self.assertEqual(self.printed("--config", config), ['log-to = "tensorboard:logs"'])
        self.assertEqual(self.printed("--log_dir", "logs"), ['log-to = "tensorboard:logs"'])

    def test_a_file_may_be_written_by_other_programs(self):
        config = self.write("c.toml", '\ufeffbatch-size = 32\r\nfreeze = [  # two\n  "a,]*",\n\n  # and\n  "b*",\n]  # end\nseed = 1\n')
        self.assertEqual(self.printed("--config", config), ['freeze = ["a,]*", "b*"]', "batch-size = 32", "seed = 1"])
        for text, line in (("seed = 1\nfreeze = [\n  'a*'\n", 3), ("freeze = [\n'a*'\nseed = 1\n", 3), ("freeze = [", 1)):
            self.refused("usage", "-m", MODEL, "--config", self.write("c.toml", text), says=f"line {line}:")

    def test_a_part_in_a_file_may_be_a_list(self):
        config = self.write("c.toml", 'lr-schedule = "multistep"\nlr-milestones = [30, 60]\nlora = 2\nlora-targets = ["a*", "b*"]\n')
        lines = self.printed("--config", config)
        for line in ('lr-milestones = "30,60"', 'lora-targets = "a*,b*"'):
            self.assertIn(line, lines)
        self.assertEqual(sorted(self.printed("--config", self.write("again.toml", "\n".join(lines) + "\n"))), sorted(lines))

    def test_a_part_in_a_file_does_not_outlive_its_option(self):
        config = self.write("c.toml", 'optimizer = "sgd"\nmomentum = 0.5\n')
        self.assertEqual(self.printed("--config", config, "--optimizer", "adam"), ['optimizer = "adam"'])
        self.assertEqual(self.printed("--config", config, "--momentum", "0.9"),
                         ['optimizer = "sgd"', "momentum = 0.9"])
        config = self.write("c.toml", 'lr-schedule = "multistep:gamma=0.3"\nlr-milestones = ["30%"]\nmin-lr = 0.001\n')
        self.assertEqual(self.printed("--config", config, "--lr-schedule", "cosine"),
                         ['lr-schedule = "cosine"', "min-lr = 0.001"])
        zb = self.write("zb.toml", 'schedule = "zb"\nmemory-units = 3\n')
        self.assertEqual(self.printed("--config", zb, "--schedule", "gpipe"), ['schedule = "gpipe"'])
        self.assertEqual(self.printed("--config", config, "--lr-schedule", "multistep:at=50%"),
                         ['lr-schedule = "multistep:at=50%"', "min-lr = 0.001"])

    def test_a_value_replaces_the_parts_that_are_written_in_it(self):
        config = self.write("c.toml", 'lr-schedule = "cosine:min=0.1"\nbatch-size = "8:drop-last=true"\n')
        self.assertEqual(self.printed("--config", config, "--lr-schedule", "linear", "-b", "32"), ["batch-size = 32", 'lr-schedule = "linear"'])
        self.assertEqual(self.printed("--config", config, "--min-lr", "0.2")[1:], ['lr-schedule = "cosine:min=0.1"', "min-lr = 0.2"])

    def test_a_list_replaces_the_one_that_is_written_in_a_value(self):
        config = self.write("c.toml", 'lr-schedule = "multistep:at=30%,60%,gamma=0.3"\n')
        self.assertEqual(self.printed("--config", config, "--lr-milestones", "50%"),
                         ['lr-schedule = "multistep:gamma=0.3"', 'lr-milestones = "50%"'])
        config = self.write("c.toml", 'lr-schedule = "multistep:at=30%,60%"\n')
        self.assertEqual(self.printed("--config", config, "--lr-milestones", "50%"), ['lr-schedule = "multistep"', 'lr-milestones = "50%"'])

    def test_a_part_in_a_file_holds_where_its_option_has_another_value(self):
        config = self.write("c.toml", 'optimizer = "sgd"\nmomentum = 0.5\nbatch-size = 8\ndrop-last = true\npin = false\n')
        lines = self.printed("--config", config, "--optimizer", "sgd", "-b", "32", "--threads", "2")
        self.assertEqual(sorted(lines), sorted(['optimizer = "sgd"', "momentum = 0.5", "batch-size = 32", "drop-last = true",
                                                "threads = 2", "pin = false"]))

    def test_the_command_line_puts_rivals_in_a_file_out_of_force(self):
        for file, given, left in [("max-steps = 5", ["--epochs", "2"], "epochs = 2"),
                                  ("max-steps = 5", ["--epochs", "0"], "epochs = 0"),
                                  ("epochs = 2", ["--max-steps", "5"], "max-steps = 5"),
                                  ("micro-batch-size = 8", ["--micro-batches", "4"], "micro-batches = 4"),
                                  ("val-split = 0.2", ["--val-data", "v.csv"], 'val-data = "v.csv"'),
                                  ('plan = "two.json"', ["--gpus", "3"], "gpus = 3"),
                                  ("replicas = \"2\"", ["--plan", "two.json"], 'plan = "two.json"'),
                                  ('schedule = "zb"\nmemory-units = 3', ["--plan", "two.json"], 'plan = "two.json"'),
                                  ('recompute = "all"', ["--plan", "two.json"], 'plan = "two.json"')]:
            self.assertEqual(self.printed("--config", self.write("c.toml", file + "\n"), *given), [left])
        config = self.write("c.toml", 'val-data = "v.csv"\n')
        self.assertEqual(self.printed("--config", config, "--val-split", "0"), ['val-data = "v.csv"', "val-split = 0"])
        config = self.write("c.toml", 'gpus = 4\nreplicas = "auto"\n')
        self.assertEqual(self.printed("--config", config, "--gpus", "2"), ["gpus = 2", 'replicas = "auto"'])

    def test_a_printed_file_says_the_same_again(self):
        words = ["--freeze", "conv*", "--freeze", 'odd"name', "--lr-schedule", "multistep:at=30%,60%,gamma=0.5",
                 "--dim", "n=3", "--warmup", "5%", "--no-shuffle"]
        out, _ = self.succeed("train", *words, "--print-config")
        again, _ = self.succeed("train", "--config", self.write("again.toml", out), "--print-config")
        self.assertEqual(out, again)
        every, _ = self.succeed("train", *words, "--print-config=all")
        self.assertIn("# epochs = 1", every)
        self.assertGreater(len(every.splitlines()), len(out.splitlines()) + 30)

    def test_a_printed_file_has_the_model_that_is_an_argument(self):
        for command in ([], ["eval"], ["plan"], ["tune"]):
            self.assertEqual(self.printed(*command, "net.onnx", "-b", "8"), ['model = "net.onnx"', "batch-size = 8"])
        self.assertEqual(self.printed("verify", "run", "--against", "other"), ['against = "other"'])
        self.assertEqual(self.printed("completion", "bash"), [])

    def test_a_printed_file_has_what_several_options_add_up_to(self):
        for words, lines in [(["--optimizer", "sgd:momentum=0.9", "--optimizer", "rmsprop"], ['optimizer = "rmsprop"']),
                             (["--momentum", "0.5", "--optimizer", "sgd:momentum=0.9"], ['optimizer = "sgd:momentum=0.9"']),
                             (["--on-nan", "stop", "--on-error", "nan=skip"], ['on-error = "nan=skip"']),
                             (["--on-error", "bad-sample=skip", "--on-error", "nan=skip"], ['on-error = ["bad-sample=skip", "nan=skip"]']),
                             (["--drop-columns", "a", "--drop-columns", "b,c"], ['drop-columns = "a,b,c"'])]:
            self.assertEqual(self.printed("train", *words), lines)
            self.assertEqual(self.printed("train", "--config", self.write("c.toml", "\n".join(lines) + "\n")), lines)

    def test_a_section_is_for_its_command(self):
        config = self.write("c.toml", "seed = 3\n[verify]\nbatch_size = 7\n[train]\nepochs = 2\n")
        self.assertEqual(self.printed("verify", "--config", config), ["batch-size = 7", "seed = 3"])
        self.assertEqual(self.printed("train", "--config", config), ["epochs = 2", "seed = 3"])

    def test_a_section_replaces_what_the_lines_above_it_say(self):
        for above, below, left in [('lr-schedule = "multistep:at=2,4"', 'lr-schedule = "multistep:at=6"', ['lr-schedule = "multistep:at=6"']),
                                   ('lr-schedule = "multistep"\nlr-milestones = [2, 4]', "lr-milestones = [6]",
                                    ['lr-schedule = "multistep"', "lr-milestones = 6"]),
                                   ('optimizer = "sgd:momentum=0.8"', 'optimizer = "sgd"', ['optimizer = "sgd"']),
                                   ('optimizer = "sgd"\nmomentum = 0.8', 'optimizer = "adam"', ['optimizer = "adam"']),
                                   ("epochs = 5", "max-steps = 8", ["max-steps = 8"]),
                                   ('freeze = "a*"\nfreeze = "b*"', 'freeze = "c*"', ['freeze = "c*"'])]:
            config = self.write("c.toml", f"{above}\n[eval]\nthreads = 3\n[train]\n{below}\n")
            self.assertEqual(self.printed("train", "--config", config), left)
        config = self.write("c.toml", 'momentum = 0.9\noptimizer = "sgd:momentum=0.8"\n')
        self.assertEqual(self.printed("train", "--config", config), ['optimizer = "sgd:momentum=0.8"'])

    def test_a_run_trains_by_the_section_alone(self):
        def trained(config):
            self.succeed("-m", MODEL, "--config", self.write("c.toml", config), "--device", "cpu", "--max-steps", "4", "-q", "-o", "t.onnx", "--overwrite")
            return (self.folder / "t.onnx").read_bytes()

        for above, below in [('optimizer = "sgd:momentum=0.8"', 'optimizer = "sgd"'), ('lr-schedule = "multistep:at=1"', 'lr-schedule = "multistep:at=3"')]:
            self.assertEqual(trained(f"{above}\n[train]\n{below}\n"), trained(f"{below}\n"))

    def test_mistakes_in_a_file_name_the_line(self):
        for text, says in [("seed = 1\nlrr = 2\n", ["line 2", '"lrr"', "did you mean lr?"]),
                           ("seed = one\n", ["line 1", "--seed", '"one"']),
                           ("seed 1\n", ["line 1", "KEY = VALUE"]),
                           ('loss = "mse\n', ["line 1", "closing"]),
                           ("\n[trian]\n", ["line 2", "did you mean train?"]),
                           ("lr = [1, 2]\n", ["line 1", "one value"]),
                           ("class-weights = [1, 2]\n", ["line 1", "--class-weights takes one value"]),
                           ('on-nan = ["stop", "skip"]\n', ["line 1", "--on-nan takes one value"]),
                           ("seed = 1\nlr = 1\nseed = 2\n", ["line 3", "--seed", "already", "line 1"]),
                           ("[train]\nbatch-size = 1\nbatch_size = 1\n", ["line 3", "--batch-size", "line 2"]),
                           ("momentum = 0.5\nmomentum = 0.6\n", ["line 2", "--momentum", "line 1"]),
                           ("help = true\n", ["line 1", "help"])]:
            self.refused("usage", "train", "-m", MODEL, "--config", self.write("c.toml", text), says=["c.toml", *says])
        self.refused("usage", "train", "--config", "nowhere.toml", says="nowhere.toml")

    def test_a_section_may_replace_what_holds_for_all_commands(self):
        config = self.write("c.toml", "seed = 3\nfreeze = 'a*'\nfreeze = 'b*'\n[train]\nseed = 4\n")
        self.assertEqual(self.printed("train", "--config", config), ['freeze = ["a*", "b*"]', "seed = 4"])

    def test_a_configuration_that_is_no_file_is_refused(self):
        os.mkfifo(self.folder / "pipe.toml")
        for path, says in [(self.folder, "is a directory"), ("/dev/zero", "larger than"),
                           (self.folder / "pipe.toml", "is a pipe that nothing writes to")]:
            self.refused("usage", "train", "-m", MODEL, "--config", path, says=[str(path), says])
        self.assertEqual(self.printed("train", "--config", "/dev/null"), [])

    def test_a_wrong_value_in_the_environment_names_the_variable(self):
        self.refused("usage", "-m", MODEL, environment={"PIPETRAIN_DEVICE": "gpu"}, says=["PIPETRAIN_DEVICE", '"gpu"', "cpu"])

    def test_the_run_records_every_option(self):
        self.succeed("train", "-m", MODEL, "--device", "cpu", "--max-steps", "1", "--log-every", "3", "--momentum", "0.5",
                     "--optimizer", "sgd", "--run-dir", "run", "-q")
        start = events((self.folder / "run/events.jsonl").read_text())[0]
        self.assertEqual(start["config"]["log-every"], "3")
        self.assertEqual(start["config"]["momentum"], "0.5")
        self.assertEqual(start["config"]["optimizer"], "sgd")
        out, _ = self.succeed("train", "--config", "run/config.toml", "--print-config")
        self.assertIn("max-steps = 1", out)
        self.assertIn(os.path.basename(MODEL), out)



class Suggestions(Case):
    def test_an_option_of_another_tool_is_known_by_its_meaning(self):
        for given, meant in {"--amp": "--precision bf16", "--num-epochs": "--epochs", "--gradient-accumulation-steps": "--micro-batches",
                             "--val": "--val-split", "--save-dir": "--run-dir", "--wd": "--weight-decay", "--devices": "--gpus",
                             "--early-stopping-patience": "--patience", "--resume-from-checkpoint": "--resume=PATH"}.items():
            with self.subTest(given):
                self.refused("usage", "train", given, "1", says=f"did you mean {meant}?")

        self.refused("usage", "train", "--weights", "x", says="did you mean --model?")

    def test_settings_that_nothing_uses_are_told(self):
        run = ["train", "-m", MODEL, "--device", "cpu", "--max-steps", "1"]
        _, err = self.succeed(*run, "--lr-step", "2", "--lr-gamma", "0.5", "--lr-power", "2", "--momentum", "0.8",
                              "--run-dir", "a")
        for option, whose in (("--lr-step", "--lr-schedule cosine"), ("--lr-gamma", "--lr-schedule cosine"), ("--lr-power", "--lr-schedule cosine"),
                              ("--momentum", "--optimizer adamw")):
            self.assertIn(f"warning: {option} is not used by {whose}\n", err)
        _, err = self.succeed(*run, "--lr-schedule", "step", "--lr-step", "2", "--lr-gamma", "0.5", "--optimizer", "sgd", "--momentum", "0.8",
                              "--precision", "fp16", "--loss-scale", "128", "--run-dir", "b")
        self.assertNotIn("is not used by", err)

    def test_values_are_known_without_their_dashes(self):
        self.refused("usage", "-m", "m.onnx", "--schedule", "zbv", says="did you mean 'zb-v'")
        self.refused("usage", "-m", "m.onnx", "--optimizer", "AdamW", says='did you mean "adamw"?')


if __name__ == "__main__":
    unittest.main()
