"""scripts/check_sizes.py finds files and functions that are too long and give no reason, in the sources, tests and scripts."""
import os, pathlib, subprocess, sys, tempfile, unittest

SOURCES = pathlib.Path(os.environ["PIPETRAIN_SOURCES"])
LINE = "  ++count;\n"


def check(text, name="file.cpp"):
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, name).write_text(text)
        done = subprocess.run([sys.executable, SOURCES / "scripts/check_sizes.py", folder], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


class Sizes(unittest.TestCase):
    def passes(self, text):
        self.assertEqual(check(text), (0, ""))

    def refused(self, text, words):
        code, out = check(text)
        self.assertEqual(code, 1, out)
        self.assertIn(words, out)

    def test_the_sources_pass(self):
        folders = [SOURCES / name for name in ("src", "tests", "bench", "scripts")]
        done = subprocess.run([sys.executable, SOURCES / "scripts/check_sizes.py", *folders], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_a_long_file_fails_without_its_reason(self):
        self.passes("int x;\n" * 500)
        self.refused("int x;\n" * 501, "file.cpp: 501 lines")
        self.passes("// One file because it is generated.\n" + "int x;\n" * 501)
        self.refused("int x;\n" * 501 + "// One file because nobody reads that far.\n", "502 lines")

    def test_scripts_are_files_too(self):
        for name, first in (("test.py", ""), ("run.sh", ""), ("run", "#!/usr/bin/env python3\n")):
            lines = 500 - first.count("\n")
            self.assertEqual(check(first + "x = 1\n" * lines, name), (0, ""))
            code, out = check(first + "x = 1\n" * (lines + 1), name)
            self.assertEqual(code, 1, name)
            self.assertIn(f"{name}: 501 lines", out)
            self.assertEqual(check(first + "# One file because it is a table.\n" + "x = 1\n" * 501, name), (0, ""))
        # What is data has no limit.
        for name, text in (("graph.txt", "x\n"), ("h100.json", "1\n"), ("README", "x\n")):
            self.assertEqual(check(text * 501, name), (0, ""))

    def test_every_folder_is_checked(self):
        with tempfile.TemporaryDirectory() as good, tempfile.TemporaryDirectory() as bad:
            pathlib.Path(bad, "deep").mkdir()
            pathlib.Path(bad, "deep", "long.cpp").write_text("int x;\n" * 501)
            done = subprocess.run([sys.executable, SOURCES / "scripts/check_sizes.py", good, bad], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn("long.cpp: 501 lines", done.stdout)

    def test_a_long_function_fails_without_its_reason(self):
        for head, indent in [("int f(int a) {\n", ""), ("template <class T>\nint C::f(T a,\n         int b) const {\n", ""),
                             ("struct S {\nint f() override {\n", "}"), ("namespace {\nS::S(int a)\n    : a_(a), b_{a} {\n", "}"),
                             ("auto f() -> std::vector<int> {\n", ""), ("bool operator==(S a, S b) {\n", "")]:
            lines = head.count("\n") + 1 - head.startswith(("struct", "namespace"))
            body = LINE * (80 - lines)
            self.passes(head + body + "}\n" + indent)
            self.refused(head + body + LINE + "}\n" + indent, "has 81 lines")
            self.passes("// One function because it is a table.\n" + head + body + LINE + "}\n" + indent)

    def test_what_is_no_function_may_be_long(self):
        self.passes("const int table[] = {\n" + "  1,\n" * 100 + "};\nclass C {\n" + "  int f() { return 1; }\n" * 100 + "};\n")
        self.passes("enum class E {\n" + "  kA,\n" * 100 + "};\nusing A = int;\n#define MACRO(x) \\\n" + "  f({x}); \\\n" * 100 + "  g()\nint x;\n")

    def test_braces_in_literals_and_comments_do_not_count(self):
        self.passes('int f() {\n  return g("{", \'{\');  // {\n}\n/* { */\n' + "int x;\n" * 100)
        self.refused('int f() {\n  g("}", \'}\');  // }\n' + LINE * 80 + "}\n", "f has 83 lines")


if __name__ == "__main__":
    unittest.main()
