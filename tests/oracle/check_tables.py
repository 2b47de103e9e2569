#!/usr/bin/env python3
"""Compares tables with categories and gaps, and metrics, with scikit-learn.

    check_tables.py PIPETRAIN

Two generated tables, one with a number and one with words as labels, are trained with the same network shape by
pipetrain and by scikit-learn's pipeline of imputer, scaler, one-hot encoder and MLP. The encodings must agree to 1e-6,
R² on the test table to 0.02 and accuracy to one point. All metrics of `eval --details` are computed again from the rows
of `predict`, to 1e-5. Exit code 1 if anything fails, 77 without scikit-learn.
"""

import csv
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

try:
    from sklearn import metrics
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
except ImportError:
    print("skipped: scikit-learn is not installed")
    sys.exit(77)

warnings.filterwarnings("ignore")
NUMBERS, WORDS = ["age", "income", "rooms"], ["city", "grade"]
CITIES = np.array(["Oslo", "Paris", "Rome, Italy", "Bern", "Wien", "Graz"], dtype=object)
GRADES = np.array(["low", "middle", "high"], dtype=object)
HIDDEN = 32
failures = 0


def check(what, holds, detail=""):
    global failures
    failures += not holds
    print(f"{'ok    ' if holds else 'FAILED'}  {what}{'  ' + detail if detail else ''}", flush=True)


def run(program, *arguments, cwd):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=900, cwd=cwd)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode} from: {program} {' '.join(map(str, arguments))}\n{done.stderr[-2000:]}")
    return done.stdout


def make_table(rows, random):
    """Columns as text, '' where a cell is missing; the number and the word that they lead to."""
    age = random.uniform(18, 90, rows)
    income = random.lognormal(10, 0.5, rows)
    rooms = random.integers(1, 9, rows).astype(float)
    city = random.choice(len(CITIES), rows, p=[0.3, 0.25, 0.2, 0.1, 0.1, 0.05])
    grade = random.choice(len(GRADES), rows)
    offset = np.array([1.5, -1.0, 0.3, 2.0, -2.0, 0.0])[city] + np.array([-1.0, 0.0, 1.5])[grade]
    value = offset + np.sin(age / 12) + 1.2 * np.log(income / 22000) + 0.3 * rooms + random.normal(0, 0.3, rows)
    kind = np.where(value > 2.4, "c", np.where(value > 0.9, "a", "b"))
    columns = {"id": [str(i) for i in range(rows)], "age": [f"{x:.2f}" for x in age], "income": [f"{x:.1f}" for x in income],
               "city": list(CITIES[city]), "rooms": [f"{x:.0f}" for x in rooms], "grade": list(GRADES[grade])}
    for name, share in [("age", 0.06), ("income", 0.04), ("city", 0.05), ("grade", 0.03)]:
        for row in np.flatnonzero(random.random(rows) < share):
            columns[name][row] = random.choice(["", "NA"])
    return columns, value, kind


def write_csv(path, columns):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values()))


def write_network(path, width, outputs, random):
    """Two layers, begun as scikit-learn begins them."""
    def layer(name, rows, columns):
        bound = np.sqrt(6 / (rows + columns))
        return [onnx.numpy_helper.from_array(random.uniform(-bound, bound, size).astype(np.float32), f"{name}.{kind}")
                for kind, size in [("weight", (rows, columns)), ("bias", (columns,))]]

    nodes = [helper.make_node("Gemm", ["x", "one.weight", "one.bias"], ["h"]), helper.make_node("Relu", ["h"], ["a"]),
             helper.make_node("Gemm", ["a", "two.weight", "two.bias"], ["out"])]
    graph = helper.make_graph(nodes, "mlp", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width])],
                              [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["batch", outputs])],
                              layer("one", width, HIDDEN) + layer("two", HIDDEN, outputs))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def preparation():
    numbers = make_pipeline(SimpleImputer(strategy="mean"), StandardScaler())
    words = make_pipeline(SimpleImputer(strategy="most_frequent", missing_values=None), OneHotEncoder(handle_unknown="ignore", sparse_output=False))
    return ColumnTransformer([("numbers", numbers, list(range(len(NUMBERS)))), ("words", words, [3, 4])])


def features(columns):
    gaps = {"", "NA"}
    numbers = [[np.nan if cell in gaps else float(cell) for cell in columns[name]] for name in NUMBERS]
    words = [[None if cell in gaps else cell for cell in columns[name]] for name in WORDS]
    return np.array([list(row) for row in zip(*numbers, *words)], dtype=object)


def compare_encoding(model, prepared):
    """What the trained model says of its columns, with what scikit-learn has fitted."""
    stored = next(entry.value for entry in onnx.load(model).metadata_props if entry.key == "pipetrain.columns")
    columns = {column["name"]: column for column in json.loads(stored)["columns"]}
    check("the columns are those that were chosen", list(columns) == ["age", "income", "city", "rooms", "grade"], str(list(columns)))
    scaler = prepared.named_transformers_["numbers"][1]
    off = max(max(abs(columns[name]["mean"] - scaler.mean_[i]) / scaler.scale_[i], abs(columns[name]["deviation"] / scaler.scale_[i] - 1))
              for i, name in enumerate(NUMBERS))
    check("means and deviations", off < 1e-6, f"off by {off:.1e} of a deviation")
    imputer, encoder = prepared.named_transformers_["words"]
    for i, name in enumerate(WORDS):
        check(f"words of {name}", columns[name]["words"] == list(encoder.categories_[i]))
        check(f"filling of {name}", columns[name]["word"] == imputer.statistics_[i], columns[name]["word"])


def check_metrics(found, expected):
    for name, value in expected.items():
        check(f"{name} {found[name]:.6f}", abs(found[name] - value) < 1e-5 * max(1, abs(value)), f"scikit-learn {value:.6f}")


def main(program):
    random = np.random.default_rng(5)
    train, train_value, train_kind = make_table(3000, random)
    test, test_value, test_kind = make_table(6000, random)
    prepared = preparation().fit(features(train))
    width = prepared.transform(features(test)).shape[1]
    table = ["--drop-columns", "id", "--categories", "one-hot", "--missing", "mean", "--scale", "standard"]
    settings = ["--device", "cpu", "--threads", "1", "--optimizer", "adam", "--weight-decay", "0", "--batch-size", "64", "--epochs", "40", "--lr", "3e-3", "--quiet"]
    sizes = dict(hidden_layer_sizes=(HIDDEN,), alpha=0, batch_size=64, max_iter=40, learning_rate_init=3e-3, n_iter_no_change=1000, random_state=0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def both(task, train_labels, test_labels, outputs):
            write_csv(folder / f"{task}-train.csv", train | {task: train_labels})
            write_csv(folder / f"{task}-test.csv", test | {task: test_labels})
            write_network(folder / f"{task}.onnx", width, outputs, np.random.default_rng(1))
            run(program, "train", f"{task}.onnx", "--data", f"{task}-train.csv", "--label-column", task, *table, *settings,
                "-o", f"{task}-trained.onnx", "--run-dir", f"{task}-run", cwd=folder)
            compare_encoding(folder / f"{task}-trained.onnx", prepared)
            # Without the labels, and with the columns the other way round.
            write_csv(folder / "new.csv", dict(reversed(test.items())))
            run(program, "predict", f"{task}-trained.onnx", "--data", "new.csv", "-o", "rows.jsonl", "--quiet", cwd=folder)
            rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
            report = json.loads(run(program, "eval", f"{task}-trained.onnx", "--data", f"{task}-test.csv", "--details", "--json", "--quiet", cwd=folder))
            return rows, report

        rows, report = both("value", [f"{x:.6f}" for x in train_value], [f"{x:.6f}" for x in test_value], 1)
        guess = np.array([row["out"][0] for row in rows])
        check_metrics(report, {"mae": metrics.mean_absolute_error(test_value, guess), "r2": metrics.r2_score(test_value, guess)})
        other = MLPRegressor(**sizes).fit(prepared.transform(features(train)), train_value)
        score = other.score(prepared.transform(features(test)), test_value)
        check(f"R² {report['r2']:.4f}, scikit-learn's network {score:.4f}", abs(report["r2"] - score) < 0.02)

        rows, report = both("kind", list(train_kind), list(test_kind), 3)
        names = sorted(set(train_kind))
        guess = np.array([row["class_name"] for row in rows])
        shares = np.array([[row["probabilities"][kind] for kind in names] for row in rows])
        check("probabilities add up to 1", np.abs(shares.sum(axis=1) - 1).max() < 1e-5)
        check("the class is the likeliest", all(names[i] == kind for i, kind in zip(shares.argmax(axis=1), guess)))
        check_metrics(report, {
            "accuracy": metrics.accuracy_score(test_kind, guess), "f1": metrics.f1_score(test_kind, guess, average="macro"),
            "auc": metrics.roc_auc_score(test_kind, shares / shares.sum(axis=1, keepdims=True), multi_class="ovr", labels=names),
            "miou": metrics.jaccard_score(test_kind, guess, average="macro")})
        parts = metrics.precision_recall_fscore_support(test_kind, guess, labels=names)
        for i, found in enumerate(report["classes"]):
            check(f"class {names[i]}", found["class"] == names[i] and found["samples"] == parts[3][i])
            check_metrics(found, {"precision": parts[0][i], "recall": parts[1][i], "f1": parts[2][i]})
        run(program, "eval", "kind-trained.onnx", "--data", "kind-test.csv", "--confusion", "matrix.csv", "--quiet", cwd=folder)
        matrix = list(csv.reader(open(folder / "matrix.csv")))
        check("confusion matrix with names", matrix[0][1:] == names and [row[0] for row in matrix[1:]] == names and
              [[int(cell) for cell in row[1:]] for row in matrix[1:]] == metrics.confusion_matrix(test_kind, guess, labels=names).tolist())
        other = MLPClassifier(**sizes).fit(prepared.transform(features(train)), train_kind)
        score = other.score(prepared.transform(features(test)), test_kind)
        check(f"accuracy {report['accuracy']:.4f}, scikit-learn's network {score:.4f}", abs(report["accuracy"] - score) < 0.01)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()))
