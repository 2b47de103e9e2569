"""A last micro-batch of fewer samples trains as the others do, whatever is computed otherwise for its size."""

import random
import unittest

from onnx_file import FLOAT, INT64, model, node, tensor, value_info
from program import Case, events

RUN = ["--data", "rows.csv", "--device", "cpu", "--threads", "1", "--shuffle=false", "--optimizer", "sgd", "--lr", "0.5",
       "--val-split", "0", "--run-dir", "run", "--overwrite", "--no-cache", "--save-every", "never"]


def table(name, *dims):
    count = 1
    for dim in dims:
        count *= dim
    made = random.Random(name)
    return tensor(name, dims, [made.uniform(-1, 1) for _ in range(count)])


def network(nodes, *initializers):
    """Two tokens of four features, and three classes from their eight results."""
    return model([node("Reshape", ["x", "tokens_shape"], ["tokens"]), *nodes, node("Reshape", ["out", "row"], ["flat"]),
                  node("MatMul", ["flat", "head"], ["y"], "head")],
                 [value_info("x", ["batch", 8])], [value_info("y", ["batch", 3])],
                 [tensor("tokens_shape", [3], [0, 2, 4], INT64), tensor("row", [2], [0, -1], INT64), *initializers])


def class_token():
    """A token that all samples share, as in vision transformers."""
    return network([node("Shape", ["x"], ["samples"], start=0, end=1), node("Concat", ["samples", "one_token"], ["shape"], axis=0),
                    node("Expand", ["token", "shape"], ["tokens_of_all"], "expand"),
                    node("Concat", ["tokens_of_all", "tokens"], ["out"], axis=1)],
                   table("token", 1, 1, 4), tensor("one_token", [2], [1, 4], INT64), table("head", 12, 3))


def repeated_token(*nodes, of=(1, 1, 4)):
    """The same of another operator than Expand: `nodes` make it of the token and of `shape`, (samples, 1, 4)."""
    return network([node("Shape", ["x"], ["samples"], start=0, end=1), node("Concat", ["samples", "one_token"], ["shape"], axis=0),
                    *nodes, node("Concat", ["tokens_of_all", "tokens"], ["out"], axis=1)],
                   table("token", *of), tensor("one_token", [2], [1, 4], INT64), table("head", 12, 3))


def filled(value, shape="shape", kind=FLOAT):
    return node("ConstantOfShape", [shape], ["filled"], value=tensor("value", [1], [value], kind))


REPEATED = {
    "added to zeros": repeated_token(filled(0), node("Add", ["token", "filled"], ["tokens_of_all"])),
    "times ones": repeated_token(filled(1), node("Mul", ["filled", "token"], ["tokens_of_all"])),
    "row of a table": repeated_token(filled(1, "samples", INT64), node("Gather", ["token", "filled"], ["tokens_of_all"]), of=(3, 1, 4)),
    "product with ones": repeated_token(filled(1), node("MatMul", ["filled", "token"], ["tokens_of_all"]), of=(4, 4)),
    "tiled": repeated_token(node("Concat", ["samples", "ones"], ["repeats"], axis=0), node("Constant", [], ["ones"], value=tensor("v", [2], [1, 1], INT64)),
                            node("Tile", ["token", "repeats"], ["tokens_of_all"])),
}


def token_of_two_readers():
    """As queries of detectors, which are added in every layer."""
    return network([node("Shape", ["x"], ["samples"], start=0, end=1), node("Concat", ["samples", "one_token"], ["shape"], axis=0),
                    node("Expand", ["token", "shape"], ["tokens_of_all"], "expand"), node("Add", ["tokens", "tokens_of_all"], ["moved"], "moved"),
                    node("Concat", ["tokens_of_all", "moved"], ["out"], axis=1)],
                   table("token", 1, 1, 4), tensor("one_token", [2], [1, 4], INT64), table("head", 12, 3))


def token_of_windows():
    """A weight whose inner axis has two rows for each sample, as the state of a recurrence over windows."""
    return network([node("Shape", ["x"], ["samples"], start=0, end=1), node("Concat", ["samples", "samples"], ["both"], axis=0),
                    node("ReduceSum", ["both"], ["rows"], keepdims=1), node("Concat", ["two", "rows", "four"], ["shape"], axis=0),
                    node("Expand", ["token", "shape"], ["wide"], "expand"), node("Transpose", ["wide"], ["turned"], perm=[1, 0, 2]),
                    node("Reshape", ["turned", "windows"], ["of_samples"]), node("Concat", ["of_samples", "tokens"], ["out"], axis=1)],
                   table("token", 2, 1, 4), tensor("two", [1], [2], INT64), tensor("four", [1], [4], INT64),
                   tensor("windows", [3], [-1, 4, 4], INT64), table("head", 24, 3))


def token_with_offset():
    """A node that repeats one weight, and only scales another."""
    return network([node("Shape", ["x"], ["samples"], start=0, end=1), node("Concat", ["samples", "four"], ["shape"], axis=0), filled(1),
                    node("Gemm", ["filled", "token", "offset"], ["made"], "made", beta=0.5), node("Reshape", ["made", "one_token"], ["tokens_of_all"]),
                    node("Concat", ["tokens_of_all", "tokens"], ["out"], axis=1)],
                   table("token", 4, 4), table("offset", 4), tensor("four", [1], [4], INT64), tensor("one_token", [3], [-1, 1, 4], INT64),
                   table("head", 12, 3))


def rows_of_samples():
    """A weight of two rows for each sample: its gradient has no size of its own."""
    return network([node("Shape", ["x"], ["samples"], start=0, end=1), node("Concat", ["samples", "samples"], ["rows"], axis=0),
                    node("ReduceSum", ["rows"], ["twice"], keepdims=1), filled(1, "twice", INT64), node("Gather", ["token", "filled"], ["found"]),
                    node("Reshape", ["found", "pairs"], ["added"]), node("Add", ["tokens", "added"], ["out"])],
                   table("token", 3, 4), tensor("pairs", [3], [-1, 2, 4], INT64), table("head", 8, 3))


def shared_query():
    """Attention of a query that all samples share: with one sample it has the shapes of any attention."""
    return network([node("MatMul", ["tokens", "wk"], ["key"], "key"), node("Transpose", ["key"], ["turned"], perm=[0, 2, 1]),
                    node("MatMul", ["query", "turned"], ["scores"], "scores"), node("Softmax", ["scores"], ["shares"], axis=-1),
                    node("MatMul", ["tokens", "wv"], ["value"], "value"), node("MatMul", ["shares", "value"], ["out"], "mix")],
                   table("query", 1, 2, 4), table("wk", 4, 4), table("wv", 4, 4), table("head", 8, 3))


def squeezed_scores():
    """A Squeeze without axes, which leaves one sample its axis."""
    return model([node("Reshape", ["x", "one_row"], ["row"]), node("MatMul", ["row", "head"], ["scores"], "head"), node("Squeeze", ["scores"], ["y"])],
                 [value_info("x", ["batch", 8])], [value_info("y", ["batch", 3])],
                 [tensor("one_row", [3], [0, 1, 8], INT64), table("head", 8, 3)])


def normalized():
    return model([node("BatchNormalization", ["x", "gain", "bias", "mean", "variance"], ["n"], "norm"), node("MatMul", ["n", "head"], ["y"], "head")],
                 [value_info("x", ["batch", 8])], [value_info("y", ["batch", 3])],
                 [*(tensor(name, [8], [value] * 8) for name, value in (("gain", 1), ("bias", 0), ("mean", 0), ("variance", 1))), table("head", 8, 3)])


class UnevenBatches(Case):
    def write_run(self, network, samples):
        made = random.Random(samples)
        self.write("rows.csv", "".join(",".join([*(f"{made.uniform(-1, 1):.3f}" for _ in range(8)), str(row % 3)]) + "\n"
                                       for row in range(samples)))
        self.write("net.onnx", network)

    def losses(self, network, samples, batch, micro_batch, *options):
        self.write_run(network, samples)
        self.succeed("train", "net.onnx", *RUN, "--epochs", "4", "--batch-size", str(batch), "--micro-batch-size", str(micro_batch), *options)
        return [event["loss"] for event in events((self.folder / "run/events.jsonl").read_text()) if event["event"] == "step"]

    def same(self, network, samples, batch, sizes, *options):
        expected, *others = [self.losses(network, samples, batch, size, *options) for size in sizes]
        for found in others:
            self.assertEqual(len(found), len(expected))
            for one, other in zip(found, expected):
                self.assertAlmostEqual(one, other, delta=1e-5)

    def test_a_token_of_all_samples(self):
        self.same(class_token(), samples=6, batch=4, sizes=(1, 2, 4))
        self.same(class_token(), samples=9, batch=9, sizes=(3, 8))

    def test_a_token_on_another_stage_than_its_reader(self):
        self.same(class_token(), 9, 9, (3, 8), "--stages", "2", "--split", "out")

    def test_a_token_of_two_readers(self):
        self.same(token_of_two_readers(), samples=9, batch=9, sizes=(3, 8))
        self.same(token_of_two_readers(), 9, 9, (3, 8), "--stages", "2", "--split", "moved")

    def test_a_token_that_other_operators_repeat(self):
        for name, network in REPEATED.items():
            with self.subTest(name):
                self.same(network, 9, 9, (8, 5, 4), "--stages", "2", "--split", "out")

    def test_a_token_of_the_windows_of_samples(self):
        self.same(token_of_windows(), samples=9, batch=9, sizes=(3, 8))

    def test_a_token_with_an_offset(self):
        self.same(token_with_offset(), samples=9, batch=9, sizes=(3, 8))

    def test_searches_leave_out_the_size_that_repeats_nothing(self):
        """With one sample the token is its own expansion, so that micro-batches of one sample lack a node of the others."""
        self.write_run(class_token(), samples=64)
        run = ["net.onnx", "--device", "cpu", "--gpus", "2", "--batch-size", "8"]
        self.assertIn("<- chosen", self.succeed("plan", *run)[0])
        self.succeed("plan", *run, "--schedule", "auto", "--json")
        self.succeed("tune", *run, "--data", "rows.csv", "--val-split", "0", "--threads", "1", "--allow-numeric", "--budget", "10s", "-o", "fast.toml")

    def test_what_to_do_where_it_does_not_train(self):
        self.write_run(rows_of_samples(), samples=9)
        self.refused("usage", "train", "net.onnx", *RUN, "--batch-size", "9", "--micro-batch-size", "8",
                     says="use a --micro-batch-size that divides --batch-size, and --drop-last unless it divides the number of samples, too")
        self.losses(rows_of_samples(), 9, 9, 3)

    def test_a_query_of_all_samples(self):
        self.same(shared_query(), samples=9, batch=9, sizes=(3, 8))

    def test_a_squeeze_without_axes(self):
        self.same(squeezed_scores(), samples=9, batch=9, sizes=(3, 8, 1))

    def test_a_norm_of_one_sample_is_named(self):
        for size, says in ((8, True), (3, False)):
            self.write_run(normalized(), samples=9)
            _, err = self.succeed("train", "net.onnx", *RUN, "--batch-size", "9", "--micro-batch-size", str(size))
            self.assertEqual('"norm" normalizes one value of each channel in a micro-batch of 1, ' in err, says)


if __name__ == "__main__":
    unittest.main()
