"""What holds for every command, whatever it is given: it ends in time, in little memory and without a crash, and what it says is plain text."""

import io
import os
import re
import signal
import struct
import subprocess
import threading
import zipfile

from program import EXIT, PROGRAM, Case, environment_of_user

MOST_SECONDS = 5  # of CPU
MOST_WAITED = 240  # of the clock, on a busy machine: what has not ended by then waits for ever
MOST_BYTES = 1 << 30


def npz(members, method=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members:
            with archive.open(name, "w", force_zip64=True) as file:
                for piece in content:
                    file.write(piece)
    return out.getvalue()


def npy_header(descr, shape):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


class HostileCase(Case):
    def finish(self, *arguments, most_seconds=MOST_SECONDS):
        """Runs a command to its end; returns exit code and stderr after checking what holds for each."""
        clean = environment_of_user()
        clean |= {"PIPETRAIN_CACHE_DIR": self.cache, "OMP_WAIT_POLICY": "passive"}
        errors = self.folder / "stderr"
        with errors.open("wb") as stderr:
            process = subprocess.Popen([PROGRAM, *arguments], cwd=self.folder, env=clean, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=stderr)
            watch = threading.Timer(MOST_WAITED, os.kill, (process.pid, signal.SIGKILL))
            watch.start()
            _, status, usage = os.wait4(process.pid, 0)
            watch.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        text = errors.read_bytes().decode()  # an error if that is not UTF-8
        self.assertGreaterEqual(process.returncode, 0, f"ended by signal {-process.returncode}\n{text}")
        self.assertLess(usage.ru_utime, most_seconds, text)
        self.seconds = usage.ru_utime
        self.assertLess(usage.ru_maxrss << 10, MOST_BYTES, text)
        self.assertIsNone(re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text), repr(text))
        return process.returncode, text

    def refused_as(self, kind, parts, *arguments):
        code, text = self.finish(*arguments)
        self.assertEqual(code, EXIT[kind], text)
        self.assertEqual(text.count("error: "), 1, text)
        for part in parts:
            self.assertIn(part, text)
