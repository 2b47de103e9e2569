"""The results of a check, written while it runs: five files in one folder, each of at most a few MiB.

    gpu-check.md      verdicts and figures, as docs/gpu-status.md takes them
    results.jsonl     the same, a line for each step
    failures.log      the end of what failing programs said
    kernels.json      how many kernels ran, by family, operator, type and by whom
    measurements.json profiles by node and benchmarks
"""

import dataclasses
import datetime
import json
import threading

from gpu_check.steps import Outcome

MOST_LOGGED = 8 << 20  # bytes of failures.log
MOST_OF_ONE = 40_000  # characters of one failure


class Results:
    def __init__(self, folder, gpu):
        self.folder, self.gpu = folder, gpu
        self.lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self.outcomes = {}  # the latest of each step
        self.place = {"gpu": gpu.text, "version": gpu.doctor.get("version", ""), "build": gpu.build}
        for line in self.lines("results.jsonl"):
            fields = json.loads(line)
            place = {name: fields.pop(name, None) for name in self.place}
            if place == self.place:  # not those of another GPU or build, or of a rehearsal
                self.keep(Outcome(**fields, output=""))

    def lines(self, name):
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def keep(self, outcome):
        self.outcomes[outcome.stage, outcome.name] = outcome

    def add(self, outcome):
        with self.lock:
            self.keep(outcome)
            fields = dataclasses.asdict(outcome)
            fields.pop("output")
            with open(self.folder / "results.jsonl", "a") as file:
                file.write(json.dumps({**fields, **self.place}) + "\n")
            if outcome.verdict == "failed":
                self.log_failure(outcome)
            (self.folder / "gpu-check.md").write_text(self.report())

    def log_failure(self, outcome):
        path = self.folder / "failures.log"
        if path.exists() and path.stat().st_size > MOST_LOGGED:
            return
        with open(path, "a") as file:
            file.write(f"=== stage {outcome.stage}: {outcome.name}: {outcome.reason}\n{outcome.output[-MOST_OF_ONE:]}\n")

    def update(self, name, key, value):
        """Sets one key of a JSON file."""
        with self.lock:
            path = self.folder / name
            known = json.loads(path.read_text()) if path.exists() else {}
            path.write_text(json.dumps({**known, key: value}, indent=1) + "\n")

    def report(self):
        lines = [f"`scripts/gpu-check`, {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC", "",
                 f"- GPU: {self.gpu.text}", f"- pipetrain {self.gpu.doctor.get('version', 'does not start')}"]
        if self.gpu.build:
            lines.append(f"- build {self.gpu.build}")
        for stage in sorted({stage for stage, _ in self.outcomes}):
            steps = [outcome for outcome in self.outcomes.values() if outcome.stage == stage]
            lines += ["", f"Stage {stage}: {verdict_of(steps, self.gpu.word)}", ""]
            for step in steps:
                lines.append(f"- {line_of(step)}")
                lines += [f"  - {figure}" for figure in step.figures]
        return "\n".join(lines) + "\n"


def line_of(step):
    reason = f": {step.reason}" if step.reason else ""
    again = f" ({step.again})" if step.again else ""
    return f"{step.verdict if step.verdict != 'failed' else 'FAILED'}: {step.name}{reason}{again} ({step.seconds:.1f} s)"


def has_failed(steps):
    """A stage in which nothing ran counts as failed."""
    return any(step.verdict == "failed" for step in steps) or all(step.verdict == "skipped" for step in steps)


def verdict_of(steps, word):
    """`word`: the verdict of successful steps."""
    counts = {verdict: sum(step.verdict == verdict for step in steps) for verdict in (word, "failed", "skipped")}
    return f"{'FAILED' if has_failed(steps) else word} ({counts[word]} {word}, {counts['failed']} failed, {counts['skipped']} skipped)"
