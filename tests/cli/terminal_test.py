"""What a terminal, a pipe, a narrow window and another language change in what is printed: only what they should."""

import os
import pty
import re
import shutil
import struct
import subprocess
import termios
import fcntl
import unittest

from program import DATA, MODEL, PROGRAM, SECONDS, Case, events

RUN = ["train", "-m", MODEL, "--data", DATA, "--limit", "320", "--batch-size", "32", "--device", "cpu", "--threads", "1",
       "--epochs", "2", "--log-every", "5", "--save-every", "never"]


class Terminal(Case):
    def on_terminal(self, columns, *arguments, **environment):
        """What the program writes to a terminal of so many columns, on both streams."""
        try:
            ours, theirs = pty.openpty()
        except OSError as error:  # a root without /dev/pts
            self.skipTest(f"no terminal can be opened here: {error}")
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        clean = {name: value for name, value in os.environ.items()
                 if not name.startswith("PIPETRAIN_") and name not in ("COLUMNS", "NO_COLOR")}
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
        os.close(ours)
        self.assertEqual(process.wait(SECONDS), 0, content)
        return content.decode()

    def test_live_lines_fit_the_window(self):
        long = [*RUN, "--epochs", "40", "--log-every", "200", "--gpus", "2"]
        for columns, colour in [(80, True), (40, False)]:
            text = self.on_terminal(columns, *long, "--run-dir", f"run{columns}", **({} if colour else {"NO_COLOR": "1"}))
            live = re.findall(r"\r\x1b\[K(step [^\r\n]*)\r?\n(busy [^\r\n]*)(?=\r\x1b\[K\x1b\[1A\r\x1b\[K)", text)
            self.assertGreaterEqual(len(live), 2, text)
            for step, bars in live:
                self.assertLess(len(step), columns)
                self.assertRegex(step, r"^step +\d+/400  loss \d\.\d{4}")
                self.assertEqual("\x1b[34m" in bars, colour)
                self.assertRegex(re.sub(r"\x1b\[\d+m", "", bars), r"^busy( [01] [█▉▊▋▌▍▎▏░]+ +\d+%){2}$")
                self.assertLess(len(re.sub(r"\x1b\[\d+m", "", bars)), columns)
            self.assertIn("ETA", live[-1][0])
            lasting = re.findall(r"\r\x1b\[K(step[^\r\n]*)\r\n(?!busy)", text)
            self.assertEqual([int(line.split("/")[0].split()[-1]) for line in lasting], [1, 200, 400])
            for line in lasting:
                self.assertLess(len(line), columns)

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
        for language in ["C", "de_DE.UTF-8"]:
            _, err = self.succeed(*RUN, "--run-dir", language, environment={"LC_ALL": language})
            # What was measured differs from run to run; its form does not.
            lines.append([re.sub(r" +[\d.]+ (ms|samples/s)|  (MFU|data) [\d.]+%|  ETA \S+", r" N \1", line)
                          for line in err.splitlines() if line.startswith("step")])
        self.assertEqual(lines[0], lines[1])
        self.assertEqual(len(lines[0]), 5)
        self.assertRegex(lines[0][1], r"^step  5/20  ep 0\.50  loss \d\.\d{4}  acc \d+\.\d%  lr \d\.\de-\d\d N ms N samples/s")
        outputs = []
        for language in ["C", "de_DE.UTF-8"]:
            out, _ = self.succeed("eval", MODEL, "--data", DATA, "--device", "cpu", "--json", environment={"LC_ALL": language})
            outputs.append(re.sub(r'"seconds": [^,\n]*', "", out))
        self.assertEqual(outputs[0], outputs[1])
        self.assertEqual(self.succeed("train", "--help", environment={"LC_ALL": "de_DE.UTF-8"}), self.succeed("train", "--help"))

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
