#!/usr/bin/env python3
"""Runs ONNX's official test cases with pipetrain's kernels and says what passed, failed and was refused.

    run_cases.py RUN_CASE CASES_FOLDER [--table OPERATORS.md [--write]] [--light] [--list]

The cases are files of the onnx wheel that requirements.txt beside this script names (later wheels have no node cases);
if CASES_FOLDER has none, pip fetches that wheel. With --table, the table of operators made from the registry and the
results is compared with the file, or written to it with --write. With --light, the zoo's networks with constant
weights are run instead. --list prints every case that did not pass. Exit code 1 if a case fails or the table is out of
date.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, version_converter

from operator_table import OLDEST_OPSET, table_text

SUITES = ["node", "simple", "pytorch-operator", "pytorch-converted"]


def fetch_cases(folder):
    """Returns the folder of the official cases, fetching them beneath `folder` if they are not there."""
    requirements = Path(__file__).with_name("requirements.txt")
    data = folder / requirements.read_text().strip().replace("==", "-")
    if not data.is_dir():
        with tempfile.TemporaryDirectory() as wheels:
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
                            "--dest", wheels, "--requirement", requirements], check=True)
            (wheel,) = Path(wheels).glob("*.whl")
            unpacked = Path(wheels) / "unpacked"
            with zipfile.ZipFile(wheel) as archive:
                members = [name for name in archive.namelist() if name.startswith("onnx/backend/test/data/")]
                archive.extractall(unpacked, members)
            folder.mkdir(parents=True, exist_ok=True)
            shutil.move(unpacked / "onnx/backend/test/data", data)
    return data


def standard_opset(model):
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), None)


def converted(case, model, work):
    """The case with its model brought to the oldest opset that pipetrain reads, by ONNX's own converter."""
    try:
        newer = version_converter.convert_version(model, OLDEST_OPSET)
    except Exception:  # the converter does not know every operator; pipetrain then refuses the case itself
        return case
    folder = work / case.parent.name / case.name
    folder.mkdir(parents=True)
    onnx.save(newer, folder / "model.onnx")
    for data in case.glob("test_data_set_*"):
        (folder / data.name).symlink_to(data)
    return folder


def graph_inputs(model):
    stored = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in stored]


def write_light_cases(data, work):
    """The light networks as case folders: their input is a ramp, as in ONNX's own runner."""
    cases = []
    for path in sorted(data.glob("light/*.onnx")):
        folder = work / path.stem
        (folder / "test_data_set_0").mkdir(parents=True)
        shutil.copy(path, folder / "model.onnx")
        for i, value in enumerate(graph_inputs(onnx.load(path))):
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            count = int(np.prod(shape))
            ramp = (np.arange(count).reshape(shape) / count).astype(np.float32)
            (folder / f"test_data_set_0/input_{i}.pb").write_bytes(numpy_helper.from_array(ramp).SerializeToString())
        shutil.copy(path.with_name(f"{path.stem}_output_0.pb"), folder / "test_data_set_0/output_0.pb")
        cases.append(folder)
    return cases


def run(program, cases, *options):
    """Results of `cases` in their order: (status, gradient, cpu, reason)."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as names:
        names.writelines(f"{case}\n" for case in cases)
        names.flush()
        done = subprocess.run([program, *options, "--list", names.name], stdout=subprocess.PIPE, text=True)
    results = []
    for line in done.stdout.splitlines():
        status, _, gradient, cpu, reason = line.split("\t")
        results.append((status, gradient, cpu, reason))
    if len(results) != len(cases):
        sys.exit(f"{program} answered for {len(results)} of {len(cases)} cases, exit code {done.returncode}")
    return results


def sees_wrong_numbers(program, case, work):
    """Whether a case with one wrong number in its expected output fails: otherwise nothing here means anything."""
    folder = work / "wrong"
    shutil.copytree(case, folder)
    path = folder / "test_data_set_0/output_0.pb"
    tensor = onnx.TensorProto.FromString(path.read_bytes())
    values = numpy_helper.to_array(tensor).copy()
    values.flat[-1] = values.flat[-1] * 1.01 + 0.01
    path.write_bytes(numpy_helper.from_array(values).SerializeToString())
    return run(program, [folder])[0][0] == "FAIL"


def short(reason, words=14):
    parts = reason.split()
    return " ".join(parts[:words]) + (" …" if len(parts) > words else "")


def print_results(names, results, list_all):
    counts = Counter(result[0] for result in results)
    print(f"{counts['PASS']} passed, {counts['FAIL']} failed, {counts['SKIP']} skipped of {len(results)} cases")
    kinds = Counter(result[3].split(":")[0] for result in results if result[0] == "SKIP")
    for kind, count in kinds.most_common():
        print(f"  {count:5} skipped by {kind}")
    for name, (status, _, _, reason) in zip(names, results):
        if status == "FAIL" or (list_all and status != "PASS"):
            print(f"{status}  {name}  {reason if list_all else short(reason, 60)}")
    return counts["FAIL"] == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    data = fetch_cases(options.folder.resolve())
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        if options.light:
            cases = write_light_cases(data, work)
            good = print_results([case.name for case in cases], run(options.program, cases, "--cpu-only"), options.list)
            sys.exit(0 if good else 1)
        cases = [case for suite in SUITES for case in sorted((data / suite).iterdir()) if (case / "model.onnx").exists()]
        models = [onnx.load(case / "model.onnx") for case in cases]
        folders = [converted(case, model, work) if (standard_opset(model) or OLDEST_OPSET) < OLDEST_OPSET else case
                   for case, model in zip(cases, models)]
        results = run(options.program, folders)
        good = print_results([f"{case.parent.name}/{case.name}" for case in cases], results, options.list)
        if not sees_wrong_numbers(options.program, data / "node/test_add", work):
            print("FAIL  a wrong number in the expected output of test_add goes unnoticed")
            good = False
    if options.table:
        operators = subprocess.run([options.program, "--operators"], stdout=subprocess.PIPE, text=True, check=True)
        text = table_text(data.name.removeprefix("onnx-"), operators.stdout.split(), cases, models, results)
        if options.write:
            options.table.write_text(text)
        elif not options.table.exists() or options.table.read_text() != text:
            print(f"FAIL  {options.table.name} is out of date: run this script with --table {options.table.name} --write")
            good = False
    sys.exit(0 if good else 1)


main()
