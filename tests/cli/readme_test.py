"""The README and the pages of docs/: their commands run as they are written, in order, in a folder with the files they name; their links lead somewhere;
the README fits on a page; the tests and files that they name exist; their words are those of CONTRIBUTING.md's glossary."""

import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import unittest

from program import MODEL, MODELS, PROGRAM, SECONDS, Case, digits, environment_of_user

SOURCE = pathlib.Path(__file__).resolve().parents[2]
README = (SOURCE / "README.md").read_text()
FIRST_MODEL = (SOURCE / "docs/first-model.md").read_text()
PAGES = sorted([*SOURCE.glob("*.md"), *SOURCE.glob("docs/*.md")])
# Options of scripts/ and bench/ that the pages name without their program.
OTHER_PROGRAMS = {"--cpus-per-task", "--any", "--bf16", "--edges", "--flags", "--length", "--list", "--long", "--models", "--only", "--parts", "--plugin", "--rounds"}
GENERATED = ("cli.md", "operators.md", "gpu-operators.md")


def commands(text):
    """The commands in blocks marked as sh; a line that ends with a backslash goes on in the next."""
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    return [line for line in blocks.replace("\\\n", " ").splitlines() if re.match(r"(build/)?pipetrain ", line)]


def anchors(page):
    """What a link to a part of a page may name, as GitHub makes it of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


class Pages(unittest.TestCase):
    def test_links_lead_somewhere(self):
        for page in PAGES:
            for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
                if re.match(r"https?:", link):
                    continue
                name, _, part = link.partition("#")
                with self.subTest(page=page.name, link=link):
                    target = page.parent / name if name else page
                    self.assertTrue(target.exists())
                    if part:
                        self.assertIn(part, anchors(target))

    def test_tests_that_are_named_exist(self):
        tests = {f"{suite}.{name}" for path in SOURCE.glob("tests/**/*_test.cpp")
                 for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", path.read_text(), re.MULTILINE)}
        suites = {name.partition(".")[0] for name in tests}
        text = (SOURCE / "ARCHITECTURE.md").read_text()
        invariants = text[text.index("## Invariants"):text.index("## Design notes")]
        named = re.findall(r"`([A-Z]\w+\.[A-Z]\w+)`", invariants)
        self.assertGreater(len(named), 40)
        self.assertEqual([name for name in named if name not in tests | {"Suite.Test"}], [])
        for invariant in re.split(r"^- ", invariants, flags=re.MULTILINE)[1:]:
            with self.subTest(invariant.splitlines()[0]):
                cited = re.findall(r"`([^`]+)`", invariant)
                self.assertTrue(any(word in tests or word in suites or word.startswith("tests/") for word in cited), "names no test")

    def test_files_that_are_named_exist(self):
        for page in (page for page in PAGES if page.name not in GENERATED):
            for name in re.findall(r"`((?:[a-z_]+/)+[a-z0-9_]+\.(?:cpp|cu|h|py|patch|sh))`", page.read_text()):
                with self.subTest(page=page.name, file=name):
                    self.assertTrue(any((SOURCE / folder / name).exists() for folder in (".", "src", "src/cuda/toolkit")))

    def test_the_chart_shows_the_benchmarks(self):
        done = subprocess.run([sys.executable, SOURCE / "bench/speed_chart.py", "-o", "/dev/stdout"], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, (SOURCE / "docs/images/speed.svg").read_text())

    def test_every_page_is_reached_from_the_index(self):
        index = (SOURCE / "docs/README.md").read_text()
        for page in SOURCE.glob("docs/*.md"):
            if page.name != "README.md":
                self.assertIn(f"({page.name})", index)

    def test_the_readme_fits_on_a_page(self):
        lines = README.splitlines()
        self.assertLessEqual(len(lines), 150)
        self.assertLessEqual(max(map(len, lines)), 120)


class Readme(Case):
    def run_line(self, line):
        clean = environment_of_user() | {"PIPETRAIN_CACHE_DIR": self.cache, "PATH": f"{self.folder}/build:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-o", "pipefail", "-c", line], cwd=self.folder, env=clean, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=SECONDS)
        self.assertEqual(done.returncode, 0, f"{line}\n{done.stdout[-500:]}\n{done.stderr[-3000:]}")

    def setUp(self):
        super().setUp()
        (self.folder / "build").mkdir()
        (self.folder / "build/pipetrain").symlink_to(PROGRAM)

    def test_every_command_of_the_first_model_runs(self):
        source = random.Random(3)
        kinds = ["setosa", "versicolor", "virginica"]
        rows = [[f"{source.gauss(1 + kind, 0.3):.2f}" for _ in range(4)] + [kinds[kind]] for kind in [0, 1, 2] * 40]
        header = "sepal length,sepal width,petal length,petal width"
        self.write("flowers.csv", header + ",species\n" + "".join(",".join(row) + "\n" for row in rows))
        self.write("new.csv", header + "\n" + "".join(",".join(row[:4]) + "\n" for row in rows[:5]))
        for name in ("cat", "dog"):
            (self.folder / "pets" / name).mkdir(parents=True)
            for i in range(20):
                self.write(f"pets/{name}/{i}.ppm", b"P6\n40 36\n255\n" + bytes(source.randrange(256) for _ in range(40 * 36 * 3)))
        # What PyTorch would have exported.
        self.run_line("pipetrain new mlp --image 2 --classes 3 -o flowers.onnx")
        self.run_line("pipetrain new lenet --image 32 --channels 3 --classes 1000 -o photos.onnx")
        lines = commands(FIRST_MODEL)
        self.assertGreaterEqual(len(lines), 8)
        for line in lines:
            with self.subTest(line):
                self.run_line(line)

    def test_the_commands_of_fine_tuning_make_a_good_model(self):
        (self.folder / "models").symlink_to(MODELS)
        self.write("five.csv", "".join(row + "\n" for row in digits() if int(row.rpartition(",")[2]) < 5))
        for line in commands((SOURCE / "docs/fine-tuning.md").read_text()):
            self.run_line(line)
        self.succeed("eval", "five.onnx", "--data", "five.csv", "--assert", "accuracy>=0.85")

    def prepare(self):
        (self.folder / "models").symlink_to(MODELS)
        rows = digits()[:400]
        # What a user would have exported and collected.
        shutil.copy(MODEL, self.folder / "net.onnx")
        self.write("train.csv", "".join(row + "\n" for row in rows))
        self.write("five.csv", "".join(row + "\n" for row in rows if int(row.rpartition(",")[2]) < 5))

    def test_every_command_of_the_readme_runs(self):
        self.prepare()
        lines = commands(README)
        self.assertGreaterEqual(len(lines), 6)
        for line in lines:
            with self.subTest(line):
                self.run_line(line)

    def test_every_option_that_the_pages_name_exists(self):
        names = re.search(r"^Commands: (.*)$", self.succeed("--help", environment={"COLUMNS": "999"})[0], re.MULTILINE)[1].split()
        options = {name: set(re.findall(r"(?m)^  (?:-., )?(--[\w-]+)|\((--[\w-]+)\)$", re.sub(r"\n {42}", " ", text)))
                   for name in names for text in [self.succeed("help", name, environment={"COLUMNS": "9999"})[0]]}
        options = {name: {option for pair in pairs for option in pair if option} for name, pairs in options.items()}
        every = set().union(*options.values())
        seen = 0
        for page in (page for page in PAGES if page.name not in (*GENERATED, "CHANGELOG.md")):
            for span in re.findall(r"^```\w*\n(.*?)^```|`([^`\n]+(?:\n[^`\n]+)?)`", page.read_text(), re.MULTILINE | re.DOTALL):
                for line in "".join(span).replace("\\\n", " ").splitlines() if span[0] else [" ".join(span[1].split())]:
                    line = line.partition(" # ")[0]
                    of_pipetrain = re.search(r"(?:^|[ /])pipetrain (.*)", line)
                    if not of_pipetrain and not line.startswith("--"):
                        continue  # another program's
                    # `launch … -- train …` has the options of two commands.
                    for part in (of_pipetrain[1] if of_pipetrain else line).split(" -- "):
                        words = part.split()
                        command = next((word for word in words if word in names), "train") if of_pipetrain else None
                        for option in re.findall(r"(?:^|\s)(--[a-z][\w-]*)", " ".join(words)):
                            option = option.replace("--no-", "--")
                            with self.subTest(page=page.name, line=line):
                                self.assertIn(option, options[command] if command else every | OTHER_PROGRAMS)
                            seen += 1
        self.assertGreater(seen, 200)

    def test_every_command_of_the_pages_runs(self):
        run = 0
        self.prepare()
        shutil.copy(MODEL, self.folder / "digits.onnx")
        for page in PAGES:
            if page.name in ("README.md", "first-model.md"):
                continue
            lines = commands(page.read_text())
            # Sentences that say a whole command.
            lines += re.findall(r"`(pipetrain (?:new|plan) [^`]*\.onnx[^`]*)`", " ".join(page.read_text().split()))
            for line in lines:
                run += 1
                with self.subTest(page=page.name, line=line):
                    self.run_line(line)
        self.assertGreaterEqual(run, 25)


if __name__ == "__main__":
    unittest.main()
