"""What a terminal, a pipe, a narrow window and another language change in what is printed: only what they should."""

import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import termios
import fcntl
import unittest

from program import DATA, MODEL, MODELS, PROGRAM, SECONDS, Case, environment_of_user, events

RUN = ["train", "-m", MODEL, "--data", DATA, "--limit", "320", "--batch-size", "32", "--device", "cpu", "--threads", "1",
       "--epochs", "2", "--log-every", "5", "--save-every", "never"]


GOLDEN = """
pipetrain 0.1.0 · digits-cnn.onnx · 35418 trainable parameters in ~
data     models/digits.csv.gz: CSV, without a header · labels from the last column · 256 training samples, 64 validation samples
loss     classifier (cross-entropy, 10 classes) on output "logits"
batch    32 = 4 micro-batches x 8 samples
plan     1f1b · 1 stage x 1 thread · predicted step ~
step 1/16 ~
step 5/16 ~
val  8/16  ep   1.00  loss # acc #  (64 samples, ~
step 10/16 ~
step 15/16 ~
step 16/16 ~
val  16/16  ep   2.00  loss # acc #  (64 samples, ~
done     16 steps in ~
saved    run/trained.onnx: the best~
"""

DRAWINGS = {80: """
device 0 │F0F1F2        B0▓▓F3B1▓▓F4B2▓▓F5B3▓▓  B4▓▓  B5▓▓│
device 1 │  F0F1    B0▓▓F2B1▓▓F3B2▓▓F4B3▓▓F5B4▓▓  B5▓▓    │
device 2 │    F0B0▓▓F1B1▓▓F2B2▓▓F3B3▓▓F4B4▓▓F5B5▓▓        │
         0                                              24
F░ forward  B▓ backward
""", 40: """
device 0 │░░░    B0░B1░B2░B3 B4 B5│
device 1 │ ░░  B0░B1░B2░B3░B4 B5  │
device 2 │  ░B0░B1░B2░B3░B4░B5    │
         0                      24
F░ forward  B▓ backward
"""}
SUMMARY = """1f1b · 3 stages on 3 devices · 6 micro-batches
makespan 24 · bubble 25.0 % (theory: 25.0 %)
in flight 3 2 1 · weight copies 1 1 1 · staleness 0 0 0
"""


class Terminal(Case):
    def on_terminal(self, columns, *arguments, interrupt_after=None, code=0, **environment):
        """What the program writes to a terminal of so many columns, on both streams. It gets SIGINT once it has written `interrupt_after`."""
        try:
            ours, theirs = pty.openpty()
        except OSError as error:  # a root without /dev/pts
            self.skipTest(f"no terminal can be opened here: {error}")
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        clean = {name: value for name, value in environment_of_user().items() if name not in ("COLUMNS", "NO_COLOR")}
        clean |= {"PIPETRAIN_CACHE_DIR": self.cache, "TERM": "xterm"} | environment
        process = subprocess.Popen([PROGRAM, *arguments], cwd=self.folder, env=clean, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
        os.close(theirs)
        content = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            content += piece
            if interrupt_after and interrupt_after in content:
                process.send_signal(signal.SIGINT)
                interrupt_after = None
        os.close(ours)
        self.assertEqual(process.wait(SECONDS), code, content)
        return content.decode()

    def test_live_lines_fit_the_window(self):
        long = [*RUN, "--epochs", "40", "--log-every", "200", "--gpus", "2"]
        for columns, colour in [(80, True), (40, False)]:
            text = self.on_terminal(columns, *long, "--run-dir", f"run{columns}", **({} if colour else {"NO_COLOR": "1"}))
            live = re.findall(r"\r\x1b\[K(step [^\r\n]*)\r?\n(busy [^\r\n]*)(?=\r\x1b\[K\x1b\[1A\r\x1b\[K)", text)
            self.assertGreaterEqual(len(live), 2, text)
            for step, bars in live:
                self.assertLess(len(step), columns)
                self.assertRegex(step, r"^step +\d+/400  loss +\d\.\d{4}")
                self.assertEqual("\x1b[34m" in bars, colour)
                self.assertRegex(re.sub(r"\x1b\[\d+m", "", bars), r"^busy( [01] [█▉▊▋▌▍▎▏░]+ +\d+%){2}$")
                self.assertLess(len(re.sub(r"\x1b\[\d+m", "", bars)), columns)
            self.assertIn("ETA", live[-1][0])
            lasting = re.findall(r"\r\x1b\[K(step[^\r\n]*)\r\n(?!busy)", text)
            self.assertEqual([int(line.split("/")[0].split()[-1]) for line in lasting], [1, 200, 400])
            for line in lasting:
                self.assertLess(len(line), columns)

    def test_the_answer_to_a_signal_stays(self):
        text = self.on_terminal(100, *RUN, "--epochs", "1000000", "--log-every", "10000000", "--save-every", "1000000", "--gpus", "2", "--run-dir",
                                "run", interrupt_after=b"\x1b[1A", code=130)
        _, answer, rest = text.partition("finishing the step and saving; a second signal stops at once\r\n")
        self.assertTrue(answer, text)
        self.assertFalse(rest.startswith("\r\x1b[K\x1b[1A"), rest)

    def test_the_lasting_lines_are_the_same_everywhere(self):
        """The transcript of a run, with what is measured masked, on terminals of two widths, in a pipe and in another language."""
        def masked(text):
            # Lines that were too long for the window.
            text = re.sub(r"(?<!\r)\r?\n {9}(?=\S)", " ", text)
            # Live lines, which later ones have replaced.
            text = re.sub(r"\r\x1b\[Kstep [^\r\n]*(\r?\nbusy [^\r\n]*)?(?=\r\x1b\[K(\x1b\[1A)?)", "", text)
            lines = text.replace("\r\x1b[K", "").replace("\x1b[1A", "").replace("\r\n", "\n").replace(str(MODELS), "models").splitlines()
            if lines[-1] == "":
                lines.pop()
            measured = r"^(step +\d+/\d+) .*|( in) \d.*|(, profiled on) .*|(predicted step) .*|(samples,) .*s\)|^(0 +\S+ +\S+ M) .*"
            # Times that a busy machine makes differ much from those predicted are explained.
            lines = [line for line in lines if not line.startswith(("time ", "bubble ", "    +", "    -", "     +", "     -"))]
            kept = [re.sub(measured, lambda found: found[found.lastindex] + " ~", line) for line in lines]
            kept = [re.sub("^(step|val) +", lambda found: f"{found[1]:<4} ", line) for line in kept]
            kept = [re.sub("the best.*", "the best~", line) for line in kept]
            return re.sub(r"(loss|acc) +[\d.]+ ?%?", r"\1 #", "\n".join(kept))
        run = [*RUN, "--val-split", "0.2", "--overwrite", "--run-dir", "run"]
        transcript = GOLDEN.strip("\n")
        for columns, environment in [(80, {}), (40, {}), (80, {"NO_COLOR": "1"}), (80, self.german())]:
            self.assertEqual(masked(self.on_terminal(columns, *run, **environment)), transcript, (columns, environment))
        self.assertEqual(masked(self.succeed(*run)[1]), transcript)

    def test_messages_break_between_words(self):
        for columns in (80, 120):
            text = self.on_terminal(columns, *RUN, "--val-split", "0.2", "--run-dir", f"run{columns}", "--limit", "321")
            text = text.replace("\x1b[K", "").replace("\x1b[1A", "").replace("\r", "\n")
            self.assertEqual([line for line in text.split("\n") if len(re.sub(r"\x1b\[\d+m", "", line)) > columns and " " in line.strip()], [])
        self.assertIn("labels from the last column", self.on_terminal(200, *RUN, "--run-dir", "wide").replace("\r\n", "\n"))

    def test_a_drawing_is_as_wide_as_the_window(self):
        show = ["schedule", "show", "1f1b", "--stages", "3", "--micro-batches", "6"]
        for columns, drawing in DRAWINGS.items():
            self.assertEqual(self.on_terminal(columns, *show, NO_COLOR="1").replace("\r\n", "\n"), drawing.lstrip("\n") + SUMMARY)

    def test_a_short_run_prints_few_lines(self):
        short = [word for word in RUN if word not in ("--log-every", "5")]
        command = [*short, "--val-split", "0.2", "--epochs", "4", "--lr", "0.1", "--overwrite", "--run-dir", "run"]
        _, err = self.succeed(*command)
        # A busy machine may make the prediction so wrong that it is explained.
        lines = [line for line in err.splitlines() if not line.startswith(("time ", "bubble ", "    "))]
        self.assertLessEqual(len(lines), 10, err)
        for part in ("step", "val", "done", "saved"):
            self.assertEqual(len([line for line in err.splitlines() if line.startswith(part + " ")]), 2 if part == "step" else 1, err)
        # With -v all that is known is said.
        _, err = self.succeed(*command, "-v")
        for part in ("  input \"x\"", "device   1 stage", "memory   ", "shares   ", "(predicted "):
            self.assertIn(part, err)

    def test_a_long_run_prints_a_line_a_second_at_most(self):
        short = [word for word in RUN if word not in ("--log-every", "5")]
        _, err = self.succeed(*short, "--epochs", "1000000", "--max-time", "3", "--run-dir", "run")
        steps = [line for line in err.splitlines() if line.startswith("step")]
        self.assertLessEqual(len(steps), 5, err)
        self.assertGreaterEqual(len(steps), 2, err)
        columns = {tuple(m.start() for m in re.finditer(r"  (ep|loss|acc|lr) ", line)) for line in steps}
        self.assertEqual(len(columns), 1, steps)

    def test_a_dumb_terminal_gets_plain_lines(self):
        text = self.on_terminal(80, *RUN, "--run-dir", "run", TERM="dumb")
        self.assertNotIn("\x1b", text)
        self.assertEqual([int(step) for step in re.findall(r"^step +(\d+)/20 ", text, re.MULTILINE)], [1, 5, 10, 15, 20])

    def test_a_pipe_gets_plain_lines(self):
        _, err = self.succeed(*RUN, "--run-dir", "run")
        self.assertNotIn("\x1b", err)
        self.assertNotIn("\r", err)
        self.assertEqual([int(step) for step in re.findall(r"^step +(\d+)/20 ", err, re.MULTILINE)], [1, 5, 10, 15, 20])

    def test_colours_only_where_they_are_wanted(self):
        show = ["schedule", "show", "1f1b", "--stages", "2", "--micro-batches", "2"]
        self.assertIn("\x1b[", self.on_terminal(80, *show))
        self.assertNotIn("\x1b[", self.on_terminal(80, *show, NO_COLOR="1"))
        self.assertNotIn("\x1b[", self.on_terminal(80, *show, PIPETRAIN_NO_COLOR="1"))
        self.assertNotIn("\x1b[", self.on_terminal(80, *show, TERM="dumb"))
        self.assertNotIn("\x1b[", self.on_terminal(80, *show, "--color", "never"))
        self.assertNotIn("\x1b[", self.succeed(*show)[0])
        self.assertIn("\x1b[", self.succeed(*show, "--color", "always")[0])

    def test_another_language_changes_nothing(self):
        lines = []
        languages = [{"LC_ALL": "C"}, self.german()]
        for language in languages:
            _, err = self.succeed(*RUN, "--run-dir", language["LC_ALL"], environment=language)
            # What was measured differs from run to run; its form does not.
            lines.append([re.sub(r" +[\d.]+ (ms|samples/s)|  MFU +[\d.]+%|  ETA \S+", r" N \1", re.sub(r"  data \d+%", "", line.replace(" us ", " ms ")))
                          for line in err.splitlines() if line.startswith("step")])
        self.assertEqual(lines[0], lines[1])
        self.assertEqual(len(lines[0]), 5)
        self.assertRegex(lines[0][1], r"^step  5/20  ep   0\.50  loss  \d\.\d{4}  acc +\d+\.\d\d%  lr \d\.\de-\d\d N ms N samples/s")
        outputs = []
        for language in languages:
            out, _ = self.succeed("eval", MODEL, "--data", DATA, "--device", "cpu", "--json", environment=language)
            outputs.append(re.sub(r'"seconds": [^,\n]*', "", out))
        self.assertEqual(outputs[0], outputs[1])
        self.assertEqual(self.succeed("train", "--help", environment=languages[1]), self.succeed("train", "--help"))

    def test_jq_reads_a_run_that_diverged(self):
        self.refused("diverged", *RUN, "--optimizer", "sgd", "--lr", "1e30", "--run-dir", "run")
        text = (self.folder / "run/events.jsonl").read_text()
        bad = [e for e in events(text) if e["event"] == "step" and e["loss"] is None]
        self.assertEqual(bad[-1]["nonfinite"][0], "loss")
        if not shutil.which("jq"):
            self.skipTest("no jq")
        done = subprocess.run(["jq", "-r", ".event"], input=text, capture_output=True, text=True, check=True)
        self.assertEqual(len(done.stdout.split()), len(text.splitlines()))


if __name__ == "__main__":
    unittest.main()
