"""Every hostile model file ends in one sentence on stderr and exit code 3: no crash, no wait, no control characters."""

import os
import resource
import subprocess
import unittest

from program import EXIT, Case

WRITE_HOSTILE_MODELS = os.environ["WRITE_HOSTILE_MODELS"]
MOST_CPU_SECONDS = 10  # what waits is ended by run_program()


def cpu_seconds():
    """Used by the programs that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class HostileFiles(Case):
    def hostile_files(self):
        listed = subprocess.run([WRITE_HOSTILE_MODELS, str(self.folder / "hostile")], capture_output=True, text=True,
                                check=True, timeout=120).stdout
        for line in listed.splitlines():
            yield line.split("\t")

    def check(self, command, path, *more):
        """Runs a command on a file; returns exit code and stderr."""
        before = cpu_seconds()
        code, _, err = self.run_program(command, path, *more)
        self.assertLess(cpu_seconds() - before, MOST_CPU_SECONDS)
        self.assertGreaterEqual(code, 0, f"ended by signal {-code}\n{err}")
        self.assertTrue(all(ord(character) >= 32 or character == "\n" for character in err), repr(err))
        self.assertLess(len(err), 2000)
        return code, err

    def test_each_is_refused_with_a_sentence(self):
        counts = {"bytes": 0, "graph": 0}
        for path, kind, message in self.hostile_files():
            with self.subTest(os.path.basename(path)):
                code, err = self.check("inspect", path)
                if kind == "graph" and code == 0:
                    # The file reads well and a flag or a number decides: then training refuses it.
                    code, err = self.check("train", path, "--max-steps", "1", "--loss", "mse")
                    self.assertIn(code, EXIT.values(), err)
                else:
                    self.assertEqual(code, EXIT["model"], err)
                self.assertTrue(err.startswith("error: "), err)
                self.assertEqual(err.count("error: "), 1, err)
                self.assertIn(message, err)
                # What is wrong stands in one line; lines that follow say where.
                self.assertTrue(all(line.startswith("  ") for line in err.splitlines()[1:]), err)
                counts[kind] += 1
        self.assertGreaterEqual(counts["bytes"], 150)
        self.assertGreaterEqual(counts["graph"], 50)


if __name__ == "__main__":
    unittest.main()
