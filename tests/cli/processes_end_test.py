"""The end of a run of several processes, one of which does not end."""

import os
import unittest

from process_case import DIGITS, ProcessCase
from program import PROGRAM


class ProcessesEnd(ProcessCase):
    def test_a_process_that_stops_at_the_end_does_not_hold_up_the_others(self):
        run = [*DIGITS, "--stages", "2", "--max-steps", "2", "--run-dir", "run", "--comm-timeout", "2"]
        code, _, err = self.run_in(1, *run, ":", "-n", "1", "env", f"LD_PRELOAD={self.preloaded(os.environ['STOP_AT_END'])}", PROGRAM, *run)
        self.assertNotEqual(code, 0, err)
        self.assertIn("error: all work is done and all files are written, but a process has not ended for 15 s", err)
        self.assertTrue((self.folder / "run" / "trained.onnx").exists())


if __name__ == "__main__":
    unittest.main()
