"""Data files written by their usual tools (NumPy, Pillow, tarfile, json, gzip, lzma) or from the formats' descriptions, read
back by `pipetrain data convert` and compared; then forty damaged ones, each answered with one sentence and exit code 4.
usage: check_data.py PIPETRAIN"""

import gzip
import io
import json
import lzma
import os
import pathlib
import struct
import subprocess
import sys
import tarfile
import tempfile

import numpy as np
from PIL import Image

PROGRAM = sys.argv[1]
RNG = np.random.default_rng(7)
failures = []


def check(good, what):
    if not good:
        failures.append(what)
        print("FAILED:", what, file=sys.stderr)


def run(*arguments, stdin=None):
    done = subprocess.run([PROGRAM, "data", *map(str, arguments)], input=stdin, capture_output=True, timeout=120)
    return done.returncode, done.stderr.decode()


def convert(source, *options, stdin=None):
    """The arrays that pipetrain reads from `source`."""
    out = folder / "out.npz"
    code, err = run("convert", source, "-o", out, "--overwrite", "-q", *options, stdin=stdin)
    check(code == 0, f"{source} {options}: exit {code}: {err}")
    if code:
        return {}
    with np.load(out) as arrays:
        return {name: arrays[name] for name in arrays.files}


def same(what, got, want, tolerance=0):
    got, want = np.asarray(got), np.asarray(want)
    good = got.shape == want.shape and np.all(np.abs(got.astype(np.float64) - want) <= tolerance)
    check(good, f"{what}: {got.shape} {got.reshape(-1)[:8]} instead of {want.shape} {want.reshape(-1)[:8]}")


def tokens(source, *options):
    out = folder / "out.bin"
    code, err = run("convert", source, "-o", out, "--overwrite", "-q", *options)
    check(code == 0, f"{source}: exit {code}: {err}")
    content = out.read_bytes()
    magic, _, count = struct.unpack("<3i", content[:12])
    check(len(content) == 1024 + count * (2 if magic == 20240520 else 4), f"{source}: length of llm.c's file")
    return np.frombuffer(content[1024:], "<u2" if magic == 20240520 else "<u4")


# ---- CRC-32C and TFRecord, from their descriptions ----

CRC_TABLE = []
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
    CRC_TABLE.append(n)


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value):
    value &= (1 << 64) - 1
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(**features):
    out = b""
    for name, value in features.items():
        if isinstance(value, bytes):
            body = field(1, field(1, value))
        elif np.asarray(value).dtype.kind == "f":
            body = field(2, field(1, np.asarray(value, "<f4").tobytes()))
        else:
            body = field(3, field(1, b"".join(varint(int(v)) for v in np.atleast_1d(value))))
        out += field(1, field(1, name.replace("__", "/").encode()) + field(2, body))
    return field(1, out)


def tfrecord(examples):
    out = b""
    for data in examples:
        length = struct.pack("<Q", len(data))
        out += length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))
    return out


def encoded(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def photo(height, width):
    """Something smooth with edges, as a photograph has."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [127 + 120 * np.sin(x / (7 + 3 * c) + y / 11 + c) for c in range(3)]
    image = np.stack(planes, -1)
    image[height // 3:, width // 2:] *= 0.5
    return Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))


def images():
    image = photo(37, 51)
    rgb = np.asarray(image).transpose(2, 0, 1)
    rgba = Image.fromarray(np.dstack([np.asarray(image), RNG.integers(0, 256, (37, 51), np.uint8)]))
    grey, palette = image.convert("L"), image.quantize(200)
    cases = [("a.png", image, {}), ("b.bmp", image, {}), ("c.ppm", image, {}), ("d.png", image, {"compress_level": 0}),
             ("e.png", rgba, {}), ("f.bmp", rgba, {})]
    (folder / "images/one").mkdir(parents=True)
    (folder / "images/two").mkdir()
    for i, (name, case, options) in enumerate(cases):
        case.save(folder / "images" / ("one" if i < 3 else "two") / name, **options)
    palette.save(folder / "images/two/g.png")
    got = convert(folder / "images")
    same("images, lossless", got["x"][:6], np.stack([rgb] * 6))
    same("palette", got["x"][6], np.asarray(palette.convert("RGB")).transpose(2, 0, 1))
    same("classes of folders", got["y"], [0] * 3 + [1] * 4)
    (folder / "grey").mkdir()
    grey.save(folder / "grey/a.png")
    grey.save(folder / "grey/b.pgm", "PPM")
    grey.save(folder / "grey/c.bmp")
    grey.convert("1").convert("L").save(folder / "grey/d.png", bits=1)
    got = convert(folder / "grey")["x"]
    same("grey", got[:3], np.stack([np.asarray(grey)[None]] * 3))
    same("one bit", got[3, 0], np.asarray(grey.convert("1").convert("L")))
    same("grey of colours", convert(folder / "images", "--channels", "1")["x"][0, 0], np.asarray(grey))
    for quality, sampling in ((95, 0), (75, 2), (30, 1)):
        for progressive in (False, True):
            content = encoded(image, "JPEG", quality=quality, subsampling=sampling, progressive=progressive)
            (folder / "one.jpg").write_bytes(content)
            # Rounding may differ between versions of the library.
            same(f"JPEG {quality} {sampling} {progressive}", convert(folder / "one.jpg")["x"][0],
                 np.asarray(Image.open(io.BytesIO(content))).transpose(2, 0, 1), 2)
    large = photo(90, 120)
    large.save(folder / "large.png")
    for size in (24, 64, 90, 150):
        for fit, box in (("stretch", (0, 0, 120, 90)), ("crop", (15, 0, 105, 90))):
            want = large.resize((size, size), Image.BILINEAR, box=box)
            same(f"resize {fit} to {size}", convert(folder / "large.png", "--image", size, "--resize", fit)["x"][0],
                 np.asarray(want).transpose(2, 0, 1), 1)


def archives():
    images = [photo(9, 7).rotate(90 * i) for i in range(4)]
    images = [image.resize((7, 9)) for image in images]
    want = np.stack([np.asarray(image).transpose(2, 0, 1) for image in images])
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        for mode in ("", ":gz", ":xz"):
            path = folder / f"shard.tar{mode.replace(':', '.')}"
            with tarfile.open(path, "w" + mode, format=form) as tar:
                for i, image in enumerate(images):
                    key = f"{'long' * 30}/{i:03d}"
                    for name, content in ((f"{key}.png", encoded(image, "PNG")), (f"{key}.cls", str(i % 3).encode())):
                        info = tarfile.TarInfo(name)
                        info.size = len(content)
                        tar.addfile(info, io.BytesIO(content))
            got = convert(path)
            same(f"{path.name} {form}", got["x"], want)
            same(f"{path.name} {form} classes", got["y"], [0, 1, 2, 0])
    records = tfrecord(example(image__encoded=encoded(image, "PNG"), image__class__label=i, name=b"n" * i)
                       for i, image in enumerate(images))
    (folder / "train.tfrecord").write_bytes(records)
    got = convert(folder / "train.tfrecord")
    same("TFRecord images", got["image/encoded"], want)
    same("TFRecord labels", got["image/class/label"], range(4))
    floats = RNG.normal(size=(5, 3)).astype(np.float32)
    (folder / "f.tfrecord.gz").write_bytes(gzip.compress(tfrecord(
        example(x=floats[i], raw=bytes([i] * 6), ids=np.arange(4) - 10 * i) for i in range(5))))
    got = convert(folder / "f.tfrecord.gz")
    same("TFRecord floats", got["x"], floats)
    same("TFRecord bytes", got["raw"], [[i] * 6 for i in range(5)])
    same("TFRecord integers", got["ids"], [np.arange(4) - 10 * i for i in range(5)])


def tables_and_tokens():
    x, y = RNG.normal(size=(6, 2, 3)).astype(np.float32), RNG.integers(0, 4, 6)
    lines = "".join(json.dumps({"x": row.tolist(), "y": int(label)}) + "\n" for row, label in zip(x, y))
    for path, content in (("a.jsonl", lines.encode()), ("b.jsonl.gz", gzip.compress(lines.encode())),
                          ("c.jsonl.xz", lzma.compress(lines.encode()))):
        (folder / path).write_bytes(content)
        got = convert(folder / path)
        same(path, got["x"], x)
        same(path, got["y"], y)
    same("standard input", convert("-", stdin=gzip.compress(lines.encode()))["x"], x)
    for savez in (np.savez, np.savez_compressed):
        savez(folder / "a.npz", x=np.asfortranarray(x), y=y.astype(">i2"))
        got = convert(folder / "a.npz")
        same("npz", got["x"], x)
        same("npz", got["y"], y)
    out = io.BytesIO()
    np.savez(out, x=x, y=y)
    same("npz from standard input", convert("-", stdin=out.getvalue())["x"], x)
    dense = RNG.normal(size=(7, 9)).astype(np.float32) * (RNG.random((7, 9)) < 0.4)
    dense[0, 8] = 1.5
    for first in (0, 1):
        dense[0, 0] = 2.5
        rows = [" ".join([str(i % 3)] + [f"{j + first}:{value!r}" for j, value in enumerate(row.tolist()) if value])
                for i, row in enumerate(dense)]
        (folder / "a.libsvm").write_text("\n".join(rows) + "\n")
        got = convert(folder / "a.libsvm")
        same(f"LibSVM from {first}", got["x"], dense)
        same("LibSVM labels", got["y"], [0, 1, 2, 0, 1, 2, 0])
    sequences = [RNG.integers(0, 60000, n) for n in (5, 1, 9)]
    for code, dtype in ((8, "<u2"), (4, "<i4"), (5, "<i8")):
        content = np.concatenate(sequences).astype(dtype)
        content.tofile(folder / "m.bin")
        sizes = np.array([len(s) for s in sequences], "<i4")
        pointers = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype("<i8") * content.itemsize
        (folder / "m.idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, 3, 4) + sizes.tobytes() +
                                       pointers.tobytes() + np.arange(4, dtype="<i8").tobytes())
        same(f"Megatron {dtype}", tokens(folder / "m.idx"), np.concatenate(sequences))
    ragged = "".join(json.dumps({"input_ids": s.tolist()}) + "\n" for s in sequences)
    (folder / "t.jsonl").write_text(ragged)
    same("JSON Lines of tokens", tokens(folder / "t.jsonl"), np.concatenate(sequences))
    (folder / "t.txt.xz").write_bytes(lzma.compress("Grüße\n".encode() * 100))
    same("text.xz", tokens(folder / "t.txt.xz"), list("Grüße\n".encode() * 100))


def arrays_and_tables():
    """NumPy's own writers, MNIST's and CIFAR's layouts from arrays, tokens as llm.c and nanoGPT keep them."""
    x, y = RNG.normal(size=(6, 5)).astype(np.float32), RNG.integers(0, 4, 6)
    np.save(folder / "one.npy", x)
    same("npy", convert(folder / "one.npy")["one"], x)
    table = np.column_stack([x, y])
    for name, options in (("t.csv", {"delimiter": ","}), ("t.tsv", {"delimiter": "\t"}), ("h.csv", {"delimiter": ",", "header": "a,b,c,d,e,kind", "comments": ""}),
                          ("t.csv.gz", {"delimiter": ","})):
        np.savetxt(folder / name, table, fmt="%.9g", **options)
        got = convert(folder / name)
        same(name, got["x"], x)
        same(f"{name} labels", got["y"], y)
    pixels, digits = RNG.integers(0, 256, (7, 9, 8), np.uint8), RNG.integers(0, 10, 7).astype(np.uint8)
    (folder / "mnist").mkdir()
    for name, array in (("train-images-idx3-ubyte", pixels), ("train-labels-idx1-ubyte", digits)):
        head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        (folder / "mnist" / (name + ".gz")).write_bytes(gzip.compress(head + array.tobytes()))
    got = convert(folder / "mnist")
    same("IDX", got["x"].reshape(pixels.shape), pixels)
    same("IDX labels", got["y"], digits)
    colours = RNG.integers(0, 256, (5, 3, 32, 32), np.uint8)
    (folder / "cifar").mkdir()
    for i in range(1, 6):
        rows = b"".join(bytes([int(digit)]) + image.tobytes() for digit, image in zip(digits, colours))
        (folder / f"cifar/data_batch_{i}.bin").write_bytes(rows)
    got = convert(folder / "cifar")
    same("CIFAR-10", got["x"], np.concatenate([colours] * 5))
    same("CIFAR-10 labels", got["y"], np.concatenate([digits[:5]] * 5))
    ids = RNG.integers(0, 50000, 300).astype("<u2")
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(ids)
    (folder / "llmc.bin").write_bytes(header.tobytes() + ids.tobytes())
    same("llm.c tokens", tokens(folder / "llmc.bin"), ids)
    ids.tofile(folder / "plain.bin")
    same("nanoGPT tokens", tokens(folder / "plain.bin", "--token-dtype", "u16"), ids)


def damaged():
    """(file name, its content) that no reader may take; each names the row, record, line or member where there is one."""
    png, jpeg = encoded(photo(40, 40), "PNG"), encoded(photo(40, 40), "JPEG")
    bmp, ppm = encoded(photo(9, 9), "BMP"), encoded(photo(9, 9), "PPM")
    shard = io.BytesIO()
    with tarfile.open(fileobj=shard, mode="w") as tar:
        for name, content in (("0.png", png), ("0.cls", b"1"), ("1.png", png), ("1.cls", b"x")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    shard = shard.getvalue()
    records = tfrecord(example(x=[1.0, 2.0], label=i) for i in range(5))
    changed = lambda data, at: data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]
    npz = io.BytesIO()
    np.savez(npz, x=np.zeros((4, 2)), y=np.arange(4))
    npz = npz.getvalue()
    npy = io.BytesIO()
    np.save(npy, np.zeros((4, 2)))
    npy = npy.getvalue()
    rows = "".join(f'{{"x": [{i}, 1], "y": 0}}\n' for i in range(5))
    idx = struct.pack(">BBBBII", 0, 0, 8, 2, 3, 4) + bytes(12)
    llmc = np.zeros(256, "<i4")
    llmc[:3] = 20240520, 1, 100
    return [
        ("a.png", png[:100]), ("b.png", changed(png, len(png) // 2)), ("c.png", png[:20]), ("d.png", changed(png, 20)),
        ("e.jpg", jpeg[:200]), ("f.jpg", jpeg[:len(jpeg) * 2 // 3]), ("g.jpg", jpeg[:4] + bytes(100)),
        ("h.bmp", bmp[:100]), ("i.bmp", bmp[:28] + b"\x07" + bmp[29:]), ("j.ppm", ppm[:50]), ("k.ppm", b"P6\n9 x 255\n"),
        ("l.tar", shard), ("m.tar", shard[:700]), ("n.tar", changed(shard, 3)), ("o.tar", shard[:4 * 512]),
        ("p.tfrecord", changed(records, 40)), ("q.tfrecord", records[:-3]), ("r.tfrecord", changed(records, 2)),
        ("s.tfrecord", tfrecord([b"\xff\xff"])), ("t.jsonl", rows + '{"x": [1,'), ("u.jsonl", rows + '{"y": 0}\n'),
        ("v.jsonl", rows + '{"x": [1, 2, 3.5], "y": 0}\n'), ("w.jsonl", rows + "[1, 2]\n"),
        ("x.jsonl", rows + '{"x": [1, "2"], "y": 0}\n'), ("y.svm", "1 1:2\n0 1:2 1:3\n"), ("z.svm", "1 1:2\n0 2:x\n"),
        ("A.svm", "1 1:2\ncat 1:1\n"), ("B.svm", "1 1:2\n1 4000000000:1\n"), ("C.idx", b"MMIDIDX\0\0" + bytes(8)),
        ("D.idx", b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1 << 40, 1)),
        ("E.idx", b"MMIDIDX\0\0" + struct.pack("<QBQQiq", 1, 8, 1, 0, 5, 0)),
        ("F.txt.gz", gzip.compress(b"hello" * 100)[:-9]), ("G.txt.xz", lzma.compress(b"hello" * 100)[:-9]),
        ("H.csv.gz", changed(gzip.compress(b"1,2,0\n" * 100, mtime=0), 20)), ("I.npz", npz[:-30]),
        ("J.npz", changed(npz, 200)), ("K.npy", npy[:-5]), ("L.npy", npy[:40]), ("M-images-idx3-ubyte", idx[:-2]),
        ("N.csv", "1,2,0\n3,x,1\n4,5,0\n"), ("O.bin", llmc.tobytes() + bytes(50)), ("P.csv", "1,2,0\n3,1\n"),
    ]


def refusals():
    cases = damaged()
    check(len(cases) >= 40, "forty damaged files")
    where = {"l.tar": "1.cls", "n.tar": "header", "p.tfrecord": "record 0", "q.tfrecord": "record 4", "t.jsonl": "line 6",
             "u.jsonl": "line 6", "v.jsonl": "lengths", "w.jsonl": "line 6", "x.jsonl": "line 6", "y.svm": "line 2",
             "z.svm": "line 2", "A.svm": "line 2", "B.svm": "line 2", "E.idx": "sequence 0", "N.csv": "line 2",
             "P.csv": "line 2"}
    for name, content in cases:
        path = folder / "bad" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        if name.endswith(".idx"):
            path.with_suffix(".bin").write_bytes(bytes(4))
        code, err = run("convert", path, "-o", folder / "no.bin" if ".txt" in name else folder / "no.npz", "-q")
        lines = err.strip().splitlines()
        check(code == 4, f"{name}: exit {code}: {err}")
        check(len(lines) == 1 and str(path.with_suffix("")) in err and where.get(name, "") in err, f"{name}: {err}")
        check(not (folder / "no.npz").exists() and not (folder / "no.bin").exists(), f"{name}: something was written")
        path.unlink()


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    images()
    archives()
    tables_and_tokens()
    arrays_and_tables()
    refusals()
print("data files: all as their writers meant them" if not failures else f"{len(failures)} failures")
sys.exit(bool(failures))
