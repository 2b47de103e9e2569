#!/usr/bin/env python3
"""Trains networks of torchvision, transformers and timm at real sizes, with pipetrain and PyTorch in turn.

    bench/real_sizes.py --torch-python PYTHON [--models resnet50-224 … | --more] [--threads 2] [--rounds 3] [--precision fp32 bf16] [-o NAME]

PYTHON has torch, torchvision, transformers, onnx, onnxscript and numpy, and timm and diffusers for --more. Each network is
exported once by PyTorch's default exporter with random weights. Then pipetrain, PyTorch eager and torch.compile, of images each in the default layout and
channels-last, take turns on the same batch: SGD with momentum, one micro-batch. After the first round only the forms
close to the best of their program go on. NAME.md and NAME.json hold the step times, memory, the time from the command to
the first step, the share of the rate of a matrix product, and how far the losses of three steps differ; --adamw adds the
memory with AdamW. Needs the standard library only.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import report
from models import ALL_MODELS, MORE_MODELS, REAL_MODELS
from pipetrain_run import RunFailed, run
from side_by_side import Bench


class RealBench(Bench):
    def __init__(self, arguments, folder, precision):
        super().__init__(arguments, folder)
        self.bf16 = precision == "bf16"
        self.precision = precision

    def prepare(self, name):
        folder = self.folder / name
        if not (folder / "batch.npz").exists() or not (folder / "model.onnx").exists():
            folder.mkdir(parents=True, exist_ok=True)
            run([self.arguments.torch_python, Path(__file__).with_name("prepare_real.py"), name, folder])
            os.sync()  # or the file is written to disk during the first run
        for path in folder.glob("model.onnx*"):  # or the first run waits for the disk
            with open(path, "rb") as file:
                while file.read(1 << 24):
                    pass

    def forms(self, name, threads, *flags):
        out = {"default": lambda: self.pytorch(name, threads, *flags)}
        if ALL_MODELS[name].images:
            out["channels-last"] = lambda: self.pytorch(name, threads, *flags, "--channels-last")
        return out

    def single(self, name, threads):
        programs = {"pipetrain": {"": lambda: self.ours(name, threads)}, "pytorch": self.forms(name, threads)}
        if not self.arguments.eager_only:
            programs["compiled"] = self.forms(name, threads, "--compile")
        row = {"model": name, "threads": threads, "precision": self.precision, **self.in_turn(programs)}
        if self.arguments.adamw:
            row["adamw_mib"] = {"pipetrain": self.ours(name, threads, steps=1, optimizer="adamw")["peak_mib"],
                                "pytorch": self.pytorch(name, threads, "--optimizer", "adamw", steps=1)["peak_mib"]}
        return row


def best_of(row):
    return min((row[side] for side in ("pytorch", "compiled") if side in row), key=lambda side: side["step_ms"])


def pair(values):
    return " / ".join(values)


def cells(row, rate):
    ours, model = row["pipetrain"], ALL_MODELS[row["model"]]
    sides = [row[side] for side in ("pytorch", "compiled") if side in row]
    agreed = {"precision": row["precision"]}
    memory = min(side["peak_mib"] for side in sides)
    share = ours["flops"] / (ours["step_ms"] / 1e3) / rate if rate and ours.get("flops") else None
    return [f"{model.title} ({model.batch})" + report.mark(agreed, ours, row["pytorch"]), report.milliseconds(ours["step_ms"]),
            *(f"{report.milliseconds(side['step_ms'])} ({side['form']})" for side in sides),
            f"{best_of(row)['step_ms'] / ours['step_ms']:.2f}",
            f"{ours['peak_mib']:.0f} / {memory:.0f} = {ours['peak_mib'] / memory:.2f}",
            pair(f"{row['adamw_mib'][side]:.0f}" for side in ("pipetrain", "pytorch")) if "adamw_mib" in row else "",
            pair(f"{side['first_step_s']:.1f}" for side in [ours, *sides]),
            f"{100 * share:.0f}" if share else "", f"{max(report.differences(ours, row['pytorch'])):.0e}",
            f"{100 * max(side['foreign'] for side in [ours, *sides]):.0f}"]


def markdown(found):
    text = f"# Networks at real sizes\n\n{found['machine']}; PyTorch {found.get('version', '?')}; {found['rounds']} round(s).\n"
    for precision in found["precisions"]:
        for threads in sorted({row["threads"] for row in found["single"]}):
            rows = [row for row in found["single"] if row["precision"] == precision and row["threads"] == threads]
            if not rows:
                continue
            rate = max(row["pytorch"].get("gemm_flops_per_second", 0.0) for row in rows) if precision == "fp32" else 0.0
            peers = ["eager, ms", *(["torch.compile, ms"] if "compiled" in rows[0] else [])]
            head = ["network (batch)", "pipetrain, ms", *peers, "times as fast as the best", "peak MiB, ours / best", "with AdamW",
                    "first step s, ours / " + " / ".join(peer.split(",")[0] for peer in peers), "% of GEMM rate", "losses differ", "% foreign"]
            speeds = [best_of(row)["step_ms"] / row["pipetrain"]["step_ms"] for row in rows]
            text += f"\n## {precision}, {report.on_threads(threads)}\n\n" + report.table(head, [cells(row, rate) for row in rows])
            text += f"\nGeometric mean: {report.geometric_mean(speeds):.2f} times as fast as the best form of PyTorch.\n"
    for failure in found["failed"]:
        text += f"\nFailed: {failure['model']}, {failure['precision']}: {failure['reason'].splitlines()[-1]}\n"
    return text


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="\n".join(__doc__.splitlines()[2:]),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    root = Path(__file__).resolve().parents[1]
    parser.add_argument("--pipetrain", type=Path, default=root / "build" / "pipetrain")
    parser.add_argument("--torch-python", default=sys.executable)
    parser.add_argument("--models", nargs="+", choices=[*REAL_MODELS, *MORE_MODELS], default=list(REAL_MODELS), metavar="MODEL")
    parser.add_argument("--more", dest="models", action="store_const", const=list(MORE_MODELS),
                        help="43 further networks instead, of torchvision, timm, transformers and diffusers")
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--length", type=float, default=1.0, help="factor on the number of steps of a run")
    parser.add_argument("--precision", nargs="+", choices=["fp32", "bf16"], default=["fp32"])
    parser.add_argument("--eager-only", action="store_true", help="leave torch.compile out")
    parser.add_argument("--adamw", action="store_true", help="measure the memory with AdamW, too")
    parser.add_argument("--exported", type=Path, help="an existing folder for the exported networks, which are kept for other runs")
    parser.add_argument("-o", "--output", type=Path, default=Path("real_sizes"), help="name of the two files, without .md")
    return parser.parse_args()


def main():
    arguments = parse()
    arguments.pipetrain = arguments.pipetrain.resolve()
    found = {"machine": report.machine(), "rounds": arguments.rounds, "precisions": arguments.precision, "single": [], "failed": []}
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.exported or temporary
        for name in arguments.models:
            for precision in arguments.precision:
                bench = RealBench(arguments, Path(folder), precision)
                for threads in arguments.threads:
                    try:
                        bench.prepare(name)
                        row = bench.single(name, threads)
                    except RunFailed as failure:
                        found["failed"].append({"model": name, "precision": precision, "reason": str(failure)})
                        print(f"{name}: {failure}", file=sys.stderr, flush=True)
                        continue
                    row["pipetrain"].setdefault("flops", row["pytorch"].get("flops"))
                    found["version"] = row["pytorch"].get("version")
                    found["single"].append(row)
                    print(precision, report.line("single", row), flush=True)
                    arguments.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
            if not arguments.exported:
                run(["rm", "-rf", Path(folder) / name])
    found["seconds"] = time.monotonic() - start
    arguments.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    arguments.output.with_suffix(".md").write_text(markdown(found))
    print(f"wrote {arguments.output.with_suffix('.md')} and .json in {found['seconds']:.0f} s")
    apart = [row for row in found["single"] if report.mark({"precision": row["precision"]}, row["pipetrain"], row["pytorch"])]
    return 1 if found["failed"] or apart else 0


if __name__ == "__main__":
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    sys.exit(main())
