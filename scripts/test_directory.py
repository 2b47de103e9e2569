#!/usr/bin/env python3
"""Builds and runs the tests of one directory of src/: scripts/test_directory.py pipeline (or src/cli, ops/…).

They stand in the directory of the same name in tests/. A directory of tests/ whose CMake target is its own (tests/a/b: a_b_tests)
is that target; otherwise its suites are picked out of the program of the directory above. build/ has been set up (scripts/test)."""
import os, pathlib, re, subprocess, sys, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
CORES = subprocess.check_output(["bash", "-c", "source scripts/packages.sh && cores"], cwd=ROOT, text=True).strip()


def fail(message):
    sys.exit(f"error: {message}")


def programs_of(directory, known):
    """Test programs with the directory's C++ tests: its own and those of subdirectories, or that of the nearest parent directory."""
    name = directory.as_posix().replace("/", "_")
    own = [target for target in known if target == f"{name}_tests"
           or target.startswith(f"{name}_") and (ROOT / "tests" / directory / target[len(name) + 1:-len("_tests")]).is_dir()]
    if own or directory.parent == directory or directory.parent == pathlib.Path("."):
        return own
    return programs_of(directory.parent, known)[:1]


def suites_of(files):
    macro = re.compile(r"^\s*(?:TYPED_)?TEST(?:_F|_P)?\((\w+),", re.MULTILINE)
    return sorted({suite for file in files for suite in macro.findall(file.read_text())})


def run_program(program, suites):
    """Runs one process per core; returns whether all tests passed."""
    command = [str(BUILD / program), "--gtest_brief=1"]
    if suites:
        command.append("--gtest_filter=" + ":".join(form.format(suite) for suite in suites for form in ("{}.*", "*/{}.*", "{}/*", "*/{}/*")))
    count = int(CORES)
    shards = [subprocess.Popen(command, cwd=BUILD / "tests", text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env={**os.environ, "GTEST_TOTAL_SHARDS": str(count), "GTEST_SHARD_INDEX": str(shard)})
              for shard in range(count)]
    outputs = [shard.communicate()[0] for shard in shards]
    passed = all(shard.returncode == 0 for shard in shards)
    ran = sum(int(n) for output in outputs for n in re.findall(r"^\[=+\] (\d+) tests? from .* ran", output, re.MULTILINE))
    for shard, output in zip(shards, outputs):
        if shard.returncode:
            print(output, file=sys.stderr)
    print(f"{program}: {ran} tests {'passed' if passed and ran else 'FAILED'}", file=sys.stderr)
    return passed and ran > 0


def main():
    if len(sys.argv) != 2:
        fail("which directory of src/?")
    directory = pathlib.Path(os.path.normpath(sys.argv[1]))
    if directory.is_absolute() and directory.is_relative_to(ROOT):
        directory = directory.relative_to(ROOT)
    if directory.parts[0] in ("src", "tests"):
        directory = pathlib.Path(*directory.parts[1:])
    if not (ROOT / "src" / directory).is_dir() or directory == pathlib.Path("."):
        fail(f"there is no directory src/{directory.as_posix()}")
    folder = ROOT / "tests" / directory
    files = sorted(folder.rglob("*_test.cpp"))
    scripts = sorted(folder.glob("*_test.py"))
    if not files and not scripts:
        fail(f"src/{directory.as_posix()} has no tests (tests/{directory.as_posix()})")
    start = time.monotonic()
    include = "[1]_include.cmake"  # CTest's, for each test program
    known = sorted(path.name[:-len(include)] for path in (BUILD / "tests").rglob("*_tests*_include.cmake"))
    programs = programs_of(directory, known) if files else []
    if files and not programs:
        fail(f"no test program of {BUILD.name}/ has the tests in tests/{directory.as_posix()}")
    whole = sum(len(list((ROOT / "tests" / directory.parts[0]).rglob("*_test.cpp"))) for _ in programs[:1]) == len(files)
    wanted = list(programs)
    names = {f"{directory.as_posix()}/{script.name[:-len('_test.py')]}" for script in scripts}
    if scripts:
        wanted.append("pipetrain")
        if (folder / "CMakeLists.txt").exists():
            wanted.append(f"tests/{directory.as_posix()}/all")
    if subprocess.run(["cmake", "--build", BUILD, "--parallel", CORES, "--target", *wanted], stdout=sys.stderr).returncode:
        fail("the build failed (see the compiler's output above)")
    built = time.monotonic()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # several tests share the cores
    passed = all([run_program(program, [] if whole or len(programs) > 1 else suites_of(files)) for program in programs])
    if scripts:
        passed = subprocess.run(["ctest", "--test-dir", BUILD, "--parallel", CORES, "--output-on-failure", "--no-tests=error",
                                 "-R", f"^({'|'.join(sorted(names))})$"], stdout=sys.stderr).returncode == 0 and passed
    print(f"built in {built - start:.0f} s, tested in {time.monotonic() - built:.0f} s", file=sys.stderr)
    sys.exit(0 if passed else "error: tests failed")


main()
