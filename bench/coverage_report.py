"""The table of coverage.py."""

import math

import report

SAYS_LITTLE = 1e-3  # a limit above it
SAME_BITS = "the same bits"


def furthest(losses, others):
    far = [abs(a - b) / max(abs(b), 1e-12) for a, b in zip(losses, others, strict=True)]
    return max(far) if all(map(math.isfinite, far)) else math.inf


def cell(text):
    return " ".join(str(text).replace("|", "\\|").split())


def markdown(found, names):
    rows = [found["networks"][name] for name in names if name in found["networks"]]
    counts = {}
    for row in rows:
        counts[row["result"]] = counts.get(row["result"], 0) + 1
    text = f"# Coverage{' in bfloat16' if found['bf16'] else ''}{' on a GPU' if found['device'] == 'cuda' else ''}\n\n{found['date']}; " + ", ".join(f"{k} {v}" for k, v in found["versions"].items()) + ".\n\n"
    text += f"{len(rows)} of the {len(names)} networks of the list were run: "
    text += ", ".join(f"{count} {result}" for result, count in sorted(counts.items(), key=lambda x: -x[1])) + ".\n\n"
    if found["stages"] > 1:
        cut = [row for row in rows if "in_stages" in row]
        text += f"In {found['stages']} stages, {sum(row['in_stages'] == SAME_BITS for row in cut)} of {len(cut)} have the same bits.\n\n"
    comparable = found["device"] == "cpu"  # PyTorch always runs on the CPU
    speeds = [row["pytorch_ms"] / row["ms"] for row in rows if "ms" in row and comparable]
    if speeds:
        text += f"Times as fast as PyTorch eager{' with autocast to bfloat16' if found['bf16'] else ''}, 1 thread, the faster of two steps: geometric mean {report.geometric_mean(speeds):.2f}, "
        text += f"least {min(speeds):.2f}, of {len(speeds)} networks.\n\n"
    loose = [row for row in rows if row.get("matches") and row["limit"] > SAYS_LITTLE and "float64" in row]
    if loose:
        first = max(furthest(row["losses"][:1], row["float64"][:1]) for row in loose)
        text += f"{len(loose)} match within a limit above {SAYS_LITTLE:g}, which says little; their first losses are within {first:.1e} of float64: "
        text += ", ".join(row["name"] for row in loose) + ".\n\n"
    older = sum("versions" in row for row in rows)
    if older:
        text += f"{older} rows are of an earlier run with other versions.\n\n"
    distances = "losses from float32 | autocast's | |" if found["bf16"] else "losses from float64 | PyTorch's float32 | moved by a unit |"
    text += f"| network | parameters | result | {distances} ms, PyTorch's, times as fast | why |\n"
    text += "|---|---:|---|---:|---:|---:|---:|---|\n"
    for row in rows:
        keys = ("apart", "autocast_apart" if found["bf16"] else "float32_apart", "moved_apart")
        apart, theirs, moved = (f"{row[key]:.1e}" if key in row else "" for key in keys)
        times = f"{row['ms']:.1f}, {row['pytorch_ms']:.1f}, {row['pytorch_ms'] / row['ms']:.2f}" if "ms" in row and comparable else ""
        text += f"| {row['name']} | {row.get('parameters', '')} | {row['result']} | {apart} | {theirs} | {moved} | {times} | "
        notes = [row.get("reason", ""), f"on the host: {', '.join(row['host'])}" if "host" in row else "",
                 f"in stages: {row['in_stages']}" if row.get("in_stages", SAME_BITS) != SAME_BITS else ""]
        text += f"{cell('; '.join(filter(None, notes)))} |\n"
    return text
