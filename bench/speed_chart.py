#!/usr/bin/env python3
"""Draws docs/images/speed.svg: how many times as fast as PyTorch pipetrain trains on a CPU, from the tables of docs/benchmarks.md.

    python3 bench/speed_chart.py [-o FILE]

A bar spans the slowest and the fastest network of a group, a dot is a network (those beyond the axis lie at its end), the line in
the bar is the geometric mean."""

import argparse
import math
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/benchmarks.md"
IMAGE = ROOT / "docs/images/speed.svg"

WIDTH, LEFT, RIGHT, TOP, ROW, MOST = 900, 330, 720, 78, 44, 6
STYLE = """
text{font-family:system-ui,'DejaVu Sans',Helvetica,sans-serif;font-size:13px;fill:#1f2328}
.page{fill:#fff}.head{font-size:15px;font-weight:600}.soft{fill:#656d76;font-size:12px}.end{text-anchor:end}.mid{text-anchor:middle}
.grid{stroke:#d8dce1}.one{stroke:#d1242f;stroke-width:1.5}.bar{fill:#b9d2f3}.dot{fill:#3b7dd8}.mean{stroke:#1f2328;stroke-width:2}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#14171c}.soft{fill:#9aa4af}.grid{stroke:#2a2f37}.bar{fill:#25415f}.mean{stroke:#e6edf3}}
"""


def rows_below(text, heading):
    """The rows of the first table below a heading, each a dictionary from the column to the cell."""
    lines = text.splitlines()
    first = next(i for i in range(lines.index(heading), len(lines)) if lines[i].startswith("|"))
    last = next((i for i in range(first, len(lines)) if not lines[i].startswith("|")), len(lines))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[first:last]]
    return [dict(zip(cells[0], row)) for row in cells[2:]]


def groups(text):
    """(what, CPU, speeds) of every bar."""
    out = []
    # In the small tables "times as fast" stands twice: the second is that of 2 threads.
    for heading, column, cpu in [("### Zen 5, small networks", "times as fast", "Zen 5, AVX-512"),
                                 ("### Zen 4, small networks", "2 threads", "Zen 4, AVX-512"),
                                 ("### Xeon with AMX, small networks", "2 threads", "Xeon, AVX-512"),
                                 ("### AVX2, small networks", "times as fast", "AVX2 only")]:
        speeds = [float(row[column]) for row in rows_below(text, heading)]
        out.append((f"{len(speeds)} small networks, LeNet to BERT", cpu, speeds))
    for heading, cpu, narrow_cpu in [("### Zen 5", "Zen 5, AVX-512", "Zen 5, AVX512_BF16"),
                                     ("### Zen 4", "Zen 4, AVX-512", "Zen 4, AVX512_BF16"),
                                     ("### Xeon with AMX", "Xeon, AVX-512", "Xeon, AMX")]:
        speeds = {"": [], ", bfloat16": []}
        for row in rows_below(text, heading):
            kind = ", bfloat16" if row["network, batch"].endswith("bfloat16") else ""
            speeds[kind].append(float(row["times as fast"]))
        out += [(f"{len(some)} at real sizes{kind}", narrow_cpu if kind else cpu, some) for kind, some in speeds.items()]
    return out


def mean(speeds):
    return math.exp(sum(map(math.log, speeds)) / len(speeds))


def draw(bars):
    def x(speed):
        return LEFT + (RIGHT - LEFT) * min(speed, MOST) / MOST

    bottom = TOP + ROW * len(bars)
    height = bottom + 44
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img">',
           "<title>Training speed relative to PyTorch 2.15 on CPUs</title>", f"<style>{STYLE}</style>",
           f'<rect class="page" width="{WIDTH}" height="{height}"/>',
           '<text class="head" x="20" y="28">Training speed as a multiple of PyTorch 2.15, float32 unless noted</text>',
           '<text class="soft" x="20" y="48">2 threads, one stage; real sizes: fastest of eager and torch.compile where both ran. '
           'Bar: slowest to fastest. Dot: one network; at the edge: more. Line: mean.</text>']
    for step in range(int(MOST * 2) + 1):
        speed = step / 2
        kind = "one" if speed == 1 else "grid"
        out.append(f'<line class="{kind}" x1="{x(speed):.1f}" x2="{x(speed):.1f}" y1="{TOP - 8}" y2="{bottom}"/>')
        if step % 2 == 1:
            continue
        name = "1 = PyTorch" if speed == 1 else f"{speed:g}"
        out.append(f'<text class="soft mid" x="{x(speed):.1f}" y="{bottom + 20}">{name}</text>')
    for i, (what, cpu, speeds) in enumerate(bars):
        y = TOP + ROW * i + ROW / 2
        low, high, middle = min(speeds), max(speeds), mean(speeds)
        out += [f'<text class="end" x="{LEFT - 14}" y="{y - 2:.0f}">{what}</text>',
                f'<text class="soft end" x="{LEFT - 14}" y="{y + 14:.0f}">{cpu}</text>',
                f'<rect class="bar" x="{x(low):.1f}" y="{y - 9:.0f}" width="{x(high) - x(low):.1f}" height="18" rx="3"/>']
        out += [f'<circle class="dot" cx="{x(speed):.1f}" cy="{y:.0f}" r="3.5"/>' for speed in sorted(speeds)]
        out += [f'<line class="mean" x1="{x(middle):.1f}" x2="{x(middle):.1f}" y1="{y - 12:.0f}" y2="{y + 12:.0f}"/>',
                f'<text x="{RIGHT + 14}" y="{y + 5:.0f}">{low:.1f} to {high:.1f}, mean {middle:.1f}</text>']
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=IMAGE, metavar="FILE")
    arguments = parser.parse_args()
    arguments.output.write_text(draw(groups(PAGE.read_text())))


if __name__ == "__main__":
    main()
