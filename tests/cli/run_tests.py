"""Runs the tests of one file, as `python3 FILE` does: run_tests.py FILE [TEST…]. Where all of them are skipped it says why and ends with 77, which CTest
counts as skipped."""

import pathlib
import sys
import unittest

SKIPPED = 77


class Result(unittest.TextTestResult):
    """Notes whether anything has passed, be it a part of a test whose other parts are skipped."""

    passed = False

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed = True

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        self.passed = self.passed or err is None


class Runner(unittest.TextTestRunner):
    resultclass = Result


def main():
    file = pathlib.Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(file.parent))
    result = unittest.main(file.stem, argv=[file.name, *sys.argv[2:]], testRunner=Runner, exit=False).result
    if not result.wasSuccessful():
        return 1
    if result.passed:
        return 0
    if not result.skipped:
        print(f"error: there are no tests in {file.name}")
        return 1
    for reason in dict.fromkeys(reason for _, reason in result.skipped):
        print(f"skipped: {reason}")
    return SKIPPED


if __name__ == "__main__":
    sys.exit(main())
