"""docs/operators.md: what pipetrain can import, from the registry and from the results of the official cases."""

import re
from collections import Counter, defaultdict

import onnx

OLDEST_OPSET = 7  # of the files that pipetrain reads; cases of older ones are converted before they are run

HEAD = """# Operators

Made by `tests/conformance/run_cases.py` from the registry of importers and the official test cases of ONNX {version}; the
test `conformance/node` fails when it is out of date.

- **versions**: versions of the operator (the opset in which that form began) of which an official case passes. Files
  from opset 7 on are read; a form of which ONNX has no case may be imported as well.
- **gradient**, **CPU**: whether every canonical operator it becomes has a gradient rule, and a CPU kernel of its own
  (otherwise the reference kernel runs): "some" where that depends on its form or types; "–" where
  no official case shows it, as of operators on integers or booleans and of those that fold away at import.
- **passed**, **refused**: official cases whose graph is this operator alone. None fails: that would fail the test.

{passed} of {total} cases pass; {refused} are refused:

{kinds}

## Imported

| operator | versions | gradient | CPU | passed | refused | reasons |
|---|---|---|---|---:|---:|---|
"""

NETWORKS_HEAD = """
## Networks of other people's code

`bench/coverage.py` trains every one of an alphabetical list of networks of torchvision, transformers, timm and diffusers
([benchmarks](benchmarks.md#coverage) has the counts). Besides the operators below, pipetrain refuses, each time in one
sentence that names the node:

| what | why | what to do |
|---|---|---|
| If, Loop, Scan and sequences whose condition, count or place depends on data | they become the nodes that they run before training begins | export with fixed sizes, or write the choice with Where |
| results whose shape depends on data, such as NonZero of activations (boxes that are kept, experts that are chosen) | memory is planned before the first step | `--output-node` before it, or a mask instead |
| strings, complex numbers, sparse tensors; float8, int4 and other types of inference | no kernel, and nothing to train | |
| a sequence or optional as the result of the model | losses are of tensors | export the tensors |
| random numbers that the file fixes by a seed | no other generator repeats them | |

PyTorch's exporter folds arithmetic on parameters into constants unless it is told `optimize=False`: weight standardization, rows
of position tables, tokens repeated for each sample of a fixed batch. The folded tensors are trained, but they are other
parameters than PyTorch's, so the losses drift apart from the second step on. `optimize=False` and a free number of samples keep them.
"""

MISSING_HEAD = """
## Not imported

Operators of ONNX that the official cases use and pipetrain refuses by name, with the number of cases that would need
them.

"""

# Why an operator is missing, by the beginning of its name; the rest has no reason but that no network needed it so far.
WHY_MISSING = {
    "Sequence": "sequences are not tensors",
    "TfIdf": "strings",
    "String": "strings",
    "Regex": "strings",
    "ImageDecoder": "decodes files",
    "Quantize": "quantised inference, which cannot be trained",
    "Dequantize": "quantised inference, which cannot be trained",
    "DynamicQuantize": "quantised inference, which cannot be trained",
    "QLinear": "quantised inference, which cannot be trained",
    "ConvInteger": "quantised inference, which cannot be trained",
    "MatMulInteger": "quantised inference, which cannot be trained",
    "NonMaxSuppression": "the shape of its result depends on data, and it has no gradient",
    "TensorScatter": "caches of inference",
    "If": "control flow",
    "Loop": "control flow",
    "Scan": "control flow",
    "ai.onnx.preview": "not part of the standard",
}


def why_missing(name):
    return next((why for start, why in WHY_MISSING.items() if name.startswith(start)), "no network needed it so far")

KINDS = {
    "operator": "operator",
    "type": "element type, sequence or optional",
    "opset": "opset below 7",
    "form": "form of an operator",
    "random": "random numbers, which no other generator can repeat",
}


def kind_of(reason):
    return reason.split(":")[0]


def short_reason(reason):
    """The reason without names that only the case has."""
    kind, _, text = reason.partition(": ")
    if kind == "type":
        found = re.search(r"element type (\w+)|its type is (\w+)|has no kernel for (\w+)", text)
        if found:
            return next(name for name in found.groups() if name)
        return "not a tensor" if "not a tensor" in text else text
    if kind == "random":
        return "random numbers"
    if kind == "operator":
        return "needs " + text
    if "do not broadcast" in text:
        return "shapes that do not broadcast since opset 7"
    return text


def listed(counts):
    return "; ".join(f"{name} ({count})" if count > 1 else name for name, count in sorted(counts.items()))


def answer(values):
    """yes, no or some, from what the cases say."""
    known = set(values) - {"-"}
    if not known:
        return "–"
    return known.pop() if len(known) == 1 else "some"


def version_of(node, model):
    opset = max(OLDEST_OPSET, next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")))
    try:
        return onnx.defs.get_schema(node.op_type, opset, "").since_version
    except onnx.defs.SchemaError:
        return None


def table_text(version, operators, cases, models, results):
    """The document; `version` is of the onnx wheel that the cases are from."""
    by_operator = defaultdict(list)
    for case, model, result in zip(cases, models, results):
        if len(model.graph.node) == 1 and model.graph.node[0].domain in ("", "ai.onnx"):
            node = model.graph.node[0]
            by_operator[node.op_type].append((version_of(node, model), result))
    statuses = Counter(result[0] for result in results)
    kinds = Counter(kind_of(result[3]) for result in results if result[0] == "SKIP")
    why = [f"{count} by {KINDS.get(kind, kind)}" for kind, count in kinds.most_common()]
    text = HEAD.format(version=version, passed=statuses["PASS"], total=len(results), refused=statuses["SKIP"],
                       kinds="\n".join(f"- {line}" for line in why))
    for name in sorted(operators):
        rows = by_operator.get(name, [])
        passed = [(version, result) for version, result in rows if result[0] == "PASS"]
        refused = Counter(short_reason(result[3]) for _, result in rows if result[0] == "SKIP")
        versions = sorted({version for version, _ in passed if version})
        text += "| {} | {} | {} | {} | {} | {} | {} |\n".format(
            name, ", ".join(map(str, versions)) or "–", answer([r[1] for _, r in passed]),
            answer([r[2] for _, r in passed]), len(passed), sum(refused.values()), listed(refused).replace("|", "\\|"))
    missing = Counter()
    for result in results:
        if result[0] == "SKIP" and kind_of(result[3]) == "operator":
            missing.update(name for name in result[3].partition(": ")[2].split(", ") if " " not in name)
    text += NETWORKS_HEAD + MISSING_HEAD
    text += "| operator | cases | why |\n|---|---:|---|\n"
    text += "".join(f"| {name} | {count} | {why_missing(name)} |\n"
                    for name, count in sorted(missing.items(), key=lambda x: (-x[1], x[0])))
    return text
