#!/usr/bin/env python3
"""Makes an installed tree run where nothing is installed, and packs it.

bundle.py TREE --version V [--package NAME]... [--licence NAME=FOLDER]... [--tar FILE.tar.xz] [--wheel FOLDER]

TREE is what `cmake --install` wrote. The libraries that its programs and plugins need go to TREE/lib/pipetrain, where their RPATH points,
with the licences of the Debian packages that they are from. Left out are glibc's, NVIDIA's and MPI's, which must be the machine's own.
The archives are the same for the same tree, byte by byte.
"""
import argparse
import base64
import hashlib
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

OWN = "lib/pipetrain"  # where libraries are, below the tree
GLIBC = (2, 36)  # the oldest that the wheel's tag promises to run with
# Libraries of glibc and of drivers, which the target machine provides.
NOT_CARRIED = re.compile(r"(ld-linux-x86-64|libc|libm|libmvec|libdl|libpthread|librt|libresolv|libutil)\.so\.\d+$"
                         r"|lib(cuda|cudart|cublasLt|cudnn|nvrtc|mpi)\.so\.\d+$")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"}).stdout


def is_elf(path):
    if path.is_symlink() or not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def elves(tree):
    return [path for path in sorted(tree.rglob("*")) if is_elf(path)]


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", str(path)))


def resolved(path):
    """Paths of the libraries that a file needs, by name."""
    return dict(re.findall(r"^\s*(\S+) => (/\S+)", output("ldd", str(path)), re.M))


def add_libraries(tree):
    """Copies the required libraries, and returns their original paths."""
    sources = {}
    open_files = elves(tree)
    while open_files:
        path = open_files.pop()
        found = resolved(path)
        for name in needed(path):
            target = tree / OWN / name
            if NOT_CARRIED.match(name) or target.exists():
                continue
            if name not in found:
                sys.exit(f"bundle: {path} needs {name}, which is not installed")
            sources[name] = os.path.realpath(found[name])
            shutil.copyfile(sources[name], target)
            target.chmod(0o755)
            open_files.append(target)
    return sources


def package_of(path):
    """The Debian package that a file is from; dpkg knows it with or without /usr."""
    for name in (path, path.removeprefix("/usr"), "/usr" + path):
        done = subprocess.run(["dpkg-query", "--search", name], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.split(":")[0]
    sys.exit(f"bundle: {path} does not belong to a Debian package, so its licence is unknown; make bundles on Debian 12")


def add_licences(tree, packages, more):
    folder = tree / "share/doc/pipetrain/licences"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for package in sorted(packages):
        shutil.copyfile(f"/usr/share/doc/{package}/copyright", folder / package)
    for name, source in more:
        for path in sorted(pathlib.Path(source).rglob("*")):
            if path.is_file():
                shutil.copyfile(path, folder / f"{name}-{path.name}")
    # Debian's copyright files refer to common licences by path.
    names = set()
    for path in folder.iterdir():
        names |= set(re.findall(rb"/usr/share/common-licenses/([A-Za-z0-9.-]*[A-Za-z0-9])", path.read_bytes()))
    for name in sorted(names):
        source = pathlib.Path("/usr/share/common-licenses", name.decode())
        if source.is_file():
            shutil.copyfile(source, folder / source.name)


def check_glibc(tree):
    for path in elves(tree):
        for text in re.findall(r"\bGLIBC_([0-9.]+)", output("readelf", "-VW", str(path))):
            if tuple(map(int, text.split(".")))[:2] > GLIBC:
                sys.exit(f"bundle: {path} needs glibc {text}; build on Debian 12, whose glibc is {GLIBC[0]}.{GLIBC[1]}")


def mode_of(path):
    return 0o755 if path.stat().st_mode & 0o100 else 0o644


def write_tar(tree, file):
    def settle(entry):
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    # tarfile adds a folder's entries in the order of their names.
    with lzma.open(file, "wb", preset=9) as packed, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(tree, file.name.removesuffix(".tar.xz"), filter=settle)


def write_wheel(tree, folder, version):
    """The program is a script, the rest is data: pip installs both below the environment's prefix, so relative paths stay valid."""
    tag = f"py3-none-manylinux_{GLIBC[0]}_{GLIBC[1]}_x86_64"
    info, data = f"pipetrain-{version}.dist-info", f"pipetrain-{version}.data"
    record = []
    with zipfile.ZipFile(folder / f"pipetrain-{version}-{tag}.whl", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        def add(name, content, mode=0o644):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            record.append(f"{name},sha256={digest},{len(content)}\n")

        for path in sorted(tree.rglob("*")):
            if path.is_file():
                name = path.relative_to(tree).as_posix()
                place = name.replace("bin/", "scripts/", 1) if name.startswith("bin/") else "data/" + name
                add(f"{data}/{place}", path.read_bytes(), mode_of(path))
        add(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: pipetrain\nVersion: {version}\n"
            "Summary: train ONNX networks through pipeline stages\n\nA program: there is nothing to import.\n".encode())
        add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: pipetrain {version}\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
        add(f"{info}/RECORD", "".join(record + [f"{info}/RECORD,,\n"]).encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=pathlib.Path)
    parser.add_argument("--version", required=True)
    parser.add_argument("--package", action="append", default=[], help="a Debian package whose headers were compiled in")
    parser.add_argument("--licence", action="append", default=[], metavar="NAME=FOLDER", help="licence texts to include as NAME-*")
    parser.add_argument("--tar", type=pathlib.Path)
    parser.add_argument("--wheel", type=pathlib.Path)
    arguments = parser.parse_args()
    tree = arguments.tree
    (tree / OWN).mkdir(parents=True, exist_ok=True)
    packages = {package_of(path) for path in add_libraries(tree).values()} | set(arguments.package)
    add_licences(tree, packages, [text.split("=", 1) for text in arguments.licence])
    check_glibc(tree)
    if arguments.tar:
        write_tar(tree, arguments.tar)
    if arguments.wheel:
        write_wheel(tree, arguments.wheel, arguments.version)


if __name__ == "__main__":
    main()
