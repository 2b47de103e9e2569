"""Where the time of pipetrain's step goes: a training run says how its steady steps divide among kinds of kernels, the
optimizer and idle time; `pipetrain profile` says how fast single kernels are next to a large matrix product."""

import json
import re

from pipetrain_run import pipetrain, run, training_flags

# Operators that consist of multiplications and additions, by prefixes of their names.
PRODUCTS = ("MatMul", "Conv", "Lstm", "LSTM", "Gru", "GRU", "Rnn", "RNN", "Recurrent", "Attention", "Einsum")
PARTS = ("forward", "input gradient", "weight gradient")
# What `train` prints: "shares   matmul/conv 81.0 % · element-wise 9.1 % · …".
SHARE = re.compile(r"([a-z/-]+) ([0-9.]+) %")
PEAK = re.compile(r"^peak: ([0-9.]+) Gflop/s", re.MULTILINE)


def shares(binary, model, folder, threads, steps, bf16):
    """Shares of a steady step's time by kind, the rate of products by part, and the slowest kernels.

    Rates are flops per second; `peak` is that of a large product, measured by the same command.
    """
    found = pipetrain(binary, model, folder, threads, steps, bf16=bf16, cache="cache", quiet=False)
    line = [line for line in found["log"].splitlines() if "shares " in line][-1]  # earlier runs in the folder have theirs
    flags = training_flags(model, folder, threads, 1, bf16)
    # `profile` accepts only the flags of the model, the data and the batch.
    kept = without(flags, {"--optimizer", "--lr", "--momentum", "--lr-schedule"}, {"--no-shuffle"})
    cache = {"PIPETRAIN_CACHE_DIR": str(folder / "cache")}
    nodes = json.loads(run([binary, "profile", *kept, "--json"], cache)[0])["nodes"]
    peak = 1e9 * float(PEAK.search(run([binary, "profile", *kept], cache)[0])[1])
    step = sorted(found["step_ms"])[len(found["step_ms"]) // 2]
    return {
        "step_ms": step,
        "shares": {kind: float(percent) / 100 for kind, percent in SHARE.findall(line)},
        "peak": peak,
        "rates": rates_of_products(nodes),
        "slowest": [kernel(node) for node in sorted(nodes, key=lambda node: -node["seconds"])[:5]],
    }


def rates_of_products(nodes):
    """FLOP/s of all products of a part together; parts without any are left out."""
    out = {}
    for part in PARTS:
        mine = [node for node in nodes if node["part"] == part and node["op"].startswith(PRODUCTS) and node["flops"] > 0]
        seconds = sum(node["seconds"] for node in mine)
        if seconds > 0:
            out[part] = sum(node["flops"] for node in mine) / seconds
    return out


def kernel(node):
    rate = node["flops"] / node["seconds"] if node["seconds"] > 0 and node["op"].startswith(PRODUCTS) else None
    return {"name": node["name"], "op": node["op"], "part": node["part"], "ms": 1e3 * node["seconds"], "rate": rate}


def without(flags, with_value, alone):
    """Flags without the given ones and their values."""
    kept, skip = [], False
    for word in flags:
        if skip:
            skip = False
        elif word in with_value:
            skip = True
        elif word not in alone:
            kept.append(word)
    return kept
