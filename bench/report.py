"""The tables of side_by_side.py."""

import math
import os
import platform

from models import MODELS

# Relative differences of the first loss of both sides, and of the two after it, which rectifiers near zero can move.
# bf16 rounds to 8 bits.
AGREEMENT = {"fp32": (1e-5, 1e-3), "bf16": (1e-2, 5e-2)}

# The widest vectors come first.
VECTORS = {"avx512_bf16": " with AVX-512 and bfloat16", "avx512f": " with AVX-512", "avx2": " with AVX2"}


def on_threads(count):
    return f"{count} thread{'s' if count > 1 else ''}"


def machine():
    with open("/proc/cpuinfo") as file:
        lines = file.read().splitlines()

    def first(name):
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "")

    flags = first("flags").split()
    vectors = next((words for flag, words in VECTORS.items() if flag in flags), "")
    return f"{first('model name') or platform.processor()}{vectors}, {os.cpu_count()} cores"


def differences(ours, theirs):
    """Relative differences of the first losses."""
    return [abs(a - b) / abs(b) for a, b in zip(ours["losses"], theirs["losses"])] or [float("inf")]


def mark(found, ours, theirs):
    """Nothing where the losses agree, else a mark that the row is invalid."""
    first, later = AGREEMENT[found["precision"]]
    apart = differences(ours, theirs)
    return "" if apart[0] <= first and max(apart) <= later else " ✗ losses differ"


def disagreements(found):
    rows = [(row["pipetrain"], row["pytorch"]) for row in found.get("single", [])]
    rows += [(row["stages"], row["pytorch_stages"]) for row in found.get("pipeline", [])]
    return [pair for pair in rows if mark(found, *pair)]


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def milliseconds(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def gemm_rates(found):
    """FLOP/s of a matrix product by number of threads: the best of the whole run."""
    rates = {}
    for row in found.get("single", []):
        rate = row["pytorch"].get("gemm_flops_per_second", 0.0)
        rates[row["threads"]] = max(rates.get(row["threads"], 0.0), rate)
    return rates


def line(part, row):
    """One row in a few words, while the others are still running."""
    title = f"{part:<9}{row['model']:<10}"
    if part == "single":
        ours, theirs = row["pipetrain"], row["pytorch"]
        return (f"{title} {on_threads(row['threads'])}: {milliseconds(ours['step_ms'])} ms, PyTorch {milliseconds(theirs['step_ms'])} ms "
                f"({theirs['form']}), {theirs['step_ms'] / ours['step_ms']:.2f} times as fast; losses differ by "
                f"{max(differences(ours, theirs)):.0e}; others took {100 * max(ours['foreign'], theirs['foreign']):.0f} % of the machine")
    if part == "forward":
        return f"{title} {on_threads(row['threads'])}: {milliseconds(row['forward_ms'])} ms"
    if part == "pipeline":
        return title + " " + ", ".join(f"{key} {milliseconds(row[key]['step_ms'])} ms {row[key]['form']}".strip()
                                       for key in ("stages", "pytorch_stages", "one_stage", "pytorch_whole"))
    if part == "turns":
        return title + " " + ", ".join(f"{form} {milliseconds(ms)} ms" for form, ms in row["step_ms"].items()) + "; " + \
            ", ".join(f"{form} {speed['sums']:.2f} times as fast" for form, speed in row["speeds"].items())
    if part == "tax":
        return f"{title} pipetrain " + " ".join(f"{c}: {milliseconds(t)}" for c, t in row["pipetrain_ms"].items()) + \
            ", PyTorch " + " ".join(f"{c}: {milliseconds(t)}" for c, t in row["pytorch_ms"].items())
    return f"{title} {on_threads(row['threads'])}: " + ", ".join(f"{kind} {100 * share:.1f} %" for kind, share in row["shares"].items())


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def title_of(name):
    return f"{MODELS[name].title} ({MODELS[name].batch})"


def single_tables(found):
    rates = gemm_rates(found)
    forward = {(row["model"], row["threads"]): row["forward_ms"] for row in found.get("forward", [])}
    text = ""
    for threads in sorted({row["threads"] for row in found["single"]}):
        rows, speeds = [], []
        for row in found["single"]:
            if row["threads"] != threads:
                continue
            ours, theirs = row["pipetrain"], row["pytorch"]
            speed = theirs["step_ms"] / ours["step_ms"]
            speeds.append(speed)
            ideal = 1e3 * theirs["flops"] / rates[threads]
            bound = forward.get((row["model"], threads))
            rows.append([
                title_of(row["model"]) + mark(found, ours, theirs), milliseconds(ours["step_ms"]),
                milliseconds(theirs["step_ms"]) + (" cl" if theirs["form"] == "channels-last" else ""), f"{speed:.2f}",
                f"{100 * ideal / ours['step_ms']:.0f} / {100 * ideal / theirs['step_ms']:.0f}",
                f"{ours['peak_mib']:.0f} / {theirs['peak_mib']:.0f} = {ours['peak_mib'] / theirs['peak_mib']:.2f}",
                f"{ours['first_step_s']:.2f} / {theirs['first_step_s']:.2f} = {ours['first_step_s'] / theirs['first_step_s']:.2f}",
                milliseconds(bound) if bound else "–", f"{max(differences(ours, theirs)):.0e}",
                f"{100 * max(ours['foreign'], theirs['foreign']):.0f}"])
        text += f"\n## One stage, {on_threads(threads)}\n\n"
        text += table(["model (batch)", "pipetrain ms", "PyTorch ms", "times as fast", "% of GEMM rate", "peak MiB",
                       "first step s", "ORT forward ms", "losses differ", "% foreign"], rows)
        text += f"\nGeometric mean of the speeds: {geometric_mean(speeds):.2f}. GEMM rate: {rates[threads] / 1e9:.0f} GFLOP/s.\n"
    return text + "\nBoth figures where there are two: pipetrain's / PyTorch's. cl: channels-last. % foreign: share of the " \
        "machine that other programs took during the worse of the runs.\n"


def pipeline_table(found):
    rows = []
    for row in found["pipeline"]:
        ours, theirs, one, whole = (row[key] for key in ("stages", "pytorch_stages", "one_stage", "pytorch_whole"))
        error = (ours["predicted_ms"] / ours["step_ms"] - 1) if ours.get("predicted_ms") else float("nan")
        rows.append([
            title_of(row["model"]) + mark(found, ours, theirs), f"{milliseconds(ours['step_ms'])} {ours['form']}",
            f"{milliseconds(theirs['step_ms'])} {theirs['form']}", f"{theirs['step_ms'] / ours['step_ms']:.2f}",
            milliseconds(whole["step_ms"]), f"{whole['step_ms'] / ours['step_ms']:.2f}", milliseconds(one["step_ms"]),
            f"{one['step_ms'] / ours['step_ms']:.2f}", f"{100 * error:+.0f}", f"{ours['peak_mib']:.0f} / {theirs['peak_mib']:.0f}",
            f"{ours['first_step_s']:.2f} / {theirs['first_step_s']:.2f}"])
    return "\n## 2 stages × 1 thread, 8 micro-batches\n\n" + table(
        ["model (batch)", "pipetrain ms", "PyTorch pipelining ms", "times as fast", "PyTorch, 2 threads, whole batch ms",
         "times as fast", "pipetrain, 1 stage, 2 threads ms", "times as fast", "prediction off by %", "peak MiB", "first step s"], rows)


def turns_table(found):
    forms = list(found["turns"][0]["speeds"])
    rows = []
    for row in found["turns"]:
        cells = [title_of(row["model"]), str(len(row["all_step_ms"]["one stage"])), milliseconds(row["step_ms"]["one stage"])]
        for form in forms:
            speed = row["speeds"][form]
            cells += [milliseconds(row["step_ms"][form]), f"{speed['sums']:.2f}, {speed['median_turn']:.2f}"]
        rows.append(cells)
    head = ["model (batch)", "turns", "1 stage, 2 threads ms"]
    for form in forms:
        head += [f"{form} ms", "times as fast"]
    return "\n## One stage and 2 stages × 1 thread, 8 micro-batches, in turn\n\n" + table(head, rows) + \
        "\nMedian step times; times as fast by the total time of all steps, and in the median turn.\n"


def tax_table(found):
    rows = []
    counts = sorted({int(count) for row in found["tax"] for count in row["pipetrain_ms"]})
    for row in found["tax"]:
        for label, key in (("pipetrain", "pipetrain_ms"), ("PyTorch", "pytorch_ms")):
            times = {int(count): value for count, value in row[key].items()}
            rows.append([f"{title_of(row['model'])}, {label}"] + [
                "–" if count not in times else milliseconds(times[1]) if count == 1
                else f"{milliseconds(times[count])} = {times[count] / times[1]:.2f}" for count in counts])
    return "\n## Micro-batch overhead: a step's time and that over one micro-batch's, 1 thread, ms\n\n" + table(
        ["model (batch), micro-batches:", *map(str, counts)], rows)


def time_table(found):
    kinds = list(found["time"][0]["shares"])
    rows = [[f"{title_of(row['model'])}, {on_threads(row['threads'])}", milliseconds(row["step_ms"])]
            + [f"{100 * row['shares'].get(kind, 0):.1f}" for kind in kinds] for row in found["time"]]
    return "\n## Where the time of a step goes, %\n\n" + table(["model (batch)", "ms/step", *kinds], rows) + \
        "\nMeasured in the steady steps of a training run. matmul/conv: with recurrences and attention. norm/softmax: with pooling, " \
        "reductions and lookups. idle: waiting for data, and between instructions.\n" + rates_table(found)


def rate_text(rate, peak):
    return f"{rate / 1e9:.0f} = {100 * rate / peak:.0f} %"


def rates_table(found):
    parts = list(dict.fromkeys(part for row in found["time"] for part in row["rates"]))
    rows, slowest = [], []
    for row in found["time"]:
        title = f"{title_of(row['model'])}, {on_threads(row['threads'])}"
        rows.append([title, f"{row['peak'] / 1e9:.0f}"]
                    + [rate_text(row["rates"][part], row["peak"]) if part in row["rates"] else "–" for part in parts])
        kernels = [f"{one['op']} {one['name']} ({one['part']}) {milliseconds(one['ms'])} ms"
                   + (f", {rate_text(one['rate'], row['peak'])}" if one["rate"] else "") for one in row["slowest"]]
        slowest.append(f"- {title}: " + "; ".join(kernels))
    return "\n## How fast kernels are, GFLOP/s and share of a large matmul's\n\n" + \
        table(["model (batch)", "large matmul", *parts], rows) + \
        "\nAll kernels of a pass together, measured kernel by kernel; above 100 % is Winograd, which multiplies less. The slowest:\n\n" + \
        "\n".join(slowest) + "\n"


def markdown(found):
    versions = {row["pytorch"]["version"] for row in found.get("single", [])} | {
        row["pytorch_stages"]["version"] for row in found.get("pipeline", [])}
    text = f"# Side by side, {found['precision']}\n\n{found['machine']}; {found['rounds']} rounds in turn, {found['seconds']:.0f} s"
    text += "".join(f"; PyTorch {version}" for version in sorted(versions)) + ".\n"
    for part, make in (("single", single_tables), ("pipeline", pipeline_table), ("turns", turns_table), ("tax", tax_table), ("time", time_table)):
        if found.get(part):
            text += make(found)
    if found["failed"]:
        text += "\n## Not run\n\n"
        for failure in found["failed"]:
            reason = failure["reason"].strip().splitlines()[-1]
            text += f"- {failure['part']}, {failure['model']}: {reason}\n"
    return text
