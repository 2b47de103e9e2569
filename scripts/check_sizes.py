#!/usr/bin/env python3
"""Fails for a file of more than 500 lines and a function of more than 80 that do not say why.

check_sizes.py FOLDER... [--longest]    --longest also prints the ten longest files and functions

Files are those of C, C++, CUDA, Python and the shell; functions those of C, C++ and CUDA. The reason is a comment that begins
"One file because" in the first lines of the file, or "One function because" right before or inside the function.
"""
import pathlib, re, sys

MOST_LINES_OF_FILE, MOST_LINES_OF_FUNCTION = 500, 80
HEAD = 25  # lines in which a file gives its reason
WITH_FUNCTIONS = {".c", ".h", ".cpp", ".cu", ".cuh"}
SUFFIXES = WITH_FUNCTIONS | {".py", ".sh"}
TOKEN = re.compile(r'''//[^\n]*|/\*.*?\*/|(?<!\w)R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])*'|^[ \t]*\#(?:\\\n|[^\n])*''',
                   re.DOTALL | re.MULTILINE)


def code_of(text):
    """The text with comments, literals and preprocessor lines as blanks."""
    return TOKEN.sub(lambda token: re.sub(r"[^\n]", " ", token[0]), text)


def functions(text):
    """(name, first line, last line) of every function that is not inside another one."""
    code, scopes, start = code_of(text), [], 0
    for place in re.finditer(r"[{};]", code):
        inside = scopes and scopes[-1][0] != "scope"
        if place[0] == "{":
            before = code[start:place.start()].strip()
            if inside:
                scopes.append(("block", 0, ""))
            elif re.search(r"\b(namespace|class|struct|union|enum)\b[^()]*$|\bextern\s*$", before):
                scopes.append(("scope", 0, ""))
            else:
                # A body's brace comes after a space, an initialiser's after a name or "=".
                named = re.search(r"([\w:~]+|operator\W+)\s*\(", before)
                kind = "function" if named and code[place.start() - 1].isspace() and before[-1] not in "=,{" else "block"
                first = code.count("\n", 0, start + len(code[start:]) - len(code[start:].lstrip())) + 1
                scopes.append((kind, first, named[1] if named else ""))
        elif place[0] == "}" and scopes:
            kind, first, name = scopes.pop()
            if kind == "function":
                yield name, first, code.count("\n", 0, place.start()) + 1
            if kind == "block":  # an initialiser: what it belongs to goes on
                continue
        if not scopes or scopes[-1][0] == "scope":
            start = place.end()


def is_source(path):
    """Scripts without a suffix begin with "#!"."""
    if path.suffix:
        return path.suffix in SUFFIXES
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def main():
    folders = [pathlib.Path(argument) for argument in sys.argv[1:] if argument != "--longest"]
    paths = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file() and is_source(path)]
    bad, files, all_functions = 0, [], []
    for path in paths:
        lines = path.read_text().splitlines()
        files.append((len(lines), str(path)))
        if len(lines) > MOST_LINES_OF_FILE and not any("One file because" in line for line in lines[:HEAD]):
            print(f"{path}: {len(lines)} lines, more than {MOST_LINES_OF_FILE}: divide it, or begin with a comment \"One file because …\"")
            bad += 1
        for name, first, last in functions(path.read_text()) if path.suffix in WITH_FUNCTIONS else ():
            length = last - first + 1
            all_functions.append((length, f"{path}:{first} {name}"))
            around = lines[max(0, first - 6):last]
            if length > MOST_LINES_OF_FUNCTION and not any("One function because" in line for line in around):
                print(f"{path}:{first}: {name} has {length} lines, more than {MOST_LINES_OF_FUNCTION}: divide it, or say \"One function because …\" above it")
                bad += 1
    if "--longest" in sys.argv:
        for length, name in sorted(files, reverse=True)[:10] + sorted(all_functions, reverse=True)[:10]:
            print(f"{length:6} {name}")
    sys.exit(bool(bad))


main()
