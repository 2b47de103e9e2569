"""Says why tests were skipped, in the words of these tests: say_skipped.py BUILD. CTest itself names them only."""

import pathlib
import re
import sys

log = pathlib.Path(sys.argv[1], "Testing/Temporary/LastTest.log")
tests = {}  # reason → names
text = next((path.read_text(errors="replace") for path in (log.with_suffix(".log.tmp"), log) if path.exists()), "")
for test in re.split(r"(?m)^\d+/\d+ Testing: ", text)[1:]:
    if reason := re.search(r"(?m)^skipped: (.*)$", test):
        tests.setdefault(reason[1], []).append(test.splitlines()[0])
for reason, names in tests.items():
    print(f"\nskipped: {reason}\n  {' '.join(names)}")
