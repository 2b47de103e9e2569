"""Where the time of pipetrain's step goes: its trace says what is forward, backward, update and waiting; its profile of
single kernels says how the first two divide among kinds of kernels."""

import json

from pipetrain_run import pipetrain, run, training_flags

# By the first words of the canonical operators' names; what is in no list counts as element by element.
PRODUCTS = ("MatMul", "Conv", "Lstm", "LSTM", "Gru", "GRU", "Rnn", "RNN", "Recurrent", "Attention", "Einsum")
REORDERS = ("Reorder", "Transpose", "Concat", "Split", "Slice", "Expand", "Pad", "Reshape", "Copy")
ROWS = ("BatchNorm", "LayerNorm", "RmsNorm", "RMSNorm", "Softmax", "LogSoftmax", "MaxPool", "AveragePool", "GlobalAveragePool",
        "GlobalMaxPool", "Reduce", "Gather", "Scatter", "SumTo", "CumSum")


TRACED_STEPS = 6  # the last three are in the trace


def kind_of(operator):
    for kind, names in (("products", PRODUCTS), ("reorders", REORDERS), ("rows", ROWS)):
        if operator.startswith(names):
            return kind
    return "elementwise"


def shares(binary, model, folder, threads, bf16):
    """Shares of a step's time by kind, and the slowest kernels."""
    trace = folder / "trace.json"
    pipetrain(binary, model, folder, threads, TRACED_STEPS, bf16=bf16, trace=trace, cache="cache")
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("pid") == 1 and event["ph"] == "X"]

    def seconds(*kinds):
        return sum(event["dur"] for event in events if event["cat"] in kinds) / 1e6

    steps = sum(event["cat"] == "step" for event in events)
    step, update, compute = seconds("step"), seconds("update"), seconds("forward", "backward")
    flags = training_flags(model, folder, threads, 1, bf16)
    # `profile` takes the flags of the model, the data and the batch only.
    kept = without(flags, {"--optimizer", "--lr", "--momentum", "--lr-schedule"}, {"--no-shuffle"})
    out, _ = run([binary, "profile", *kept, "--json"], {"PIPETRAIN_CACHE_DIR": str(folder / "cache")})
    nodes = json.loads(out)["nodes"]
    total = sum(node["seconds"] for node in nodes)
    found = {}
    for node in nodes:
        kind = kind_of(node["op"])
        found[kind] = found.get(kind, 0.0) + node["seconds"]
    scale = compute / step / total
    slowest = sorted(nodes, key=lambda node: -node["seconds"])[:5]
    return {
        "step_ms": 1e3 * step / steps,
        "shares": {**{kind: found.get(kind, 0.0) * scale for kind in ("products", "rows", "elementwise", "reorders")},
                   "optimizer": update / step, "wait": max(0.0, 1 - (compute + update) / step)},
        "kernels_alone_over_compute": total * steps / compute,
        "slowest": [f"{node['op']} {node['name']} ({node['part']}) {1e3 * node['seconds']:.2f} ms" for node in slowest],
    }


def without(flags, with_value, alone):
    """Flags without some of them and their values."""
    kept, skip = [], False
    for word in flags:
        if skip:
            skip = False
        elif word in with_value:
            skip = True
        elif word not in alone:
            kept.append(word)
    return kept
