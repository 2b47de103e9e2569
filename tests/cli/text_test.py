"""Training from raw text: a tokenizer's file in, a model that knows it out; eval, predict, generate and resume follow."""

import json
import random
import unittest

import onnx_file
from program import Case, fields, parse

TINY = ["--layers", "2", "--width", "16", "--heads", "2", "--vocab", "40", "--context", "8"]
RUN = ["--batch-size", "4", "--micro-batches", "2", "--device", "cpu", "--threads", "1", "--lr", "1e-2", "--lr-schedule", "constant"]
LETTERS = "abcdefgh"


def byte_pairs(**more):
    """A tokenizer.json of byte-level BPE."""
    tokens = ["<|endoftext|>", *LETTERS, "Ġ", "Ċ", "ab", "cd", "Ġab", "Ġcd", "ef"]
    return json.dumps({
        "added_tokens": [{"id": 0, "content": "<|endoftext|>", "special": True, "normalized": False}],
        "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "post_processor": None, "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": ["a b", "c d", "Ġ ab", "Ġ cd", "e f"]}} | more)


def word_pieces():
    return "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "##s", "very", "!"]) + "\n"


def metadata(path):
    entries = (dict((n, c) for n, _, c in fields(content)) for n, _, content in fields(path.read_bytes()) if n == 14)
    return {entry[1].decode(): entry[2].decode() for entry in entries}


class NextTokens(Case):
    def setUp(self):
        super().setUp()
        made = random.Random(1)
        texts = [" ".join("".join(made.choice(["ab", "cd", "ef", "g"]) for _ in range(3)) for _ in range(6)) for _ in range(40)]
        self.write("texts.jsonl", "".join(json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(texts)))
        self.write("tokenizer.json", byte_pairs())
        self.succeed("new", "gpt", *TINY, "-o", "gpt.onnx")

    def train(self, run, *more):
        return self.succeed("train", "gpt.onnx", "--data", "texts.jsonl", "--tokenizer", "tokenizer.json", *RUN, "--run-dir", run, *more)

    def test_a_model_knows_its_tokenizer(self):
        _, err = self.train("run", "--max-steps", "6", "--val-split", "0.2", "-o", "out.onnx", "-v")
        self.assertIn("40 texts \"text\"", err)
        self.assertIn("byte-level BPE", err)
        known = metadata(self.folder / "out.onnx")["pipetrain.texts"]
        self.assertIn("name=tokenizer.json", known)
        self.assertEqual((self.folder / "run/tokenizer.json").read_bytes(), (self.folder / "tokenizer.json").read_bytes())
        # Beside the model, and the same as ids.
        found = parse(self.succeed("eval", "out.onnx", "--data", "texts.jsonl", "--device", "cpu", "--json")[0])
        self.succeed("data", "convert", "texts.jsonl", "--tokenizer", "tokenizer.json", "-o", "texts.bin")
        ids = parse(self.succeed("eval", "out.onnx", "--data", "texts.bin", "--device", "cpu", "--json")[0])
        self.assertEqual(found["loss"], ids["loss"])
        # Another one.
        self.write("other.json", byte_pairs(normalizer={"type": "NFC"}))
        for command in (["eval", "out.onnx", "--data", "texts.jsonl"], ["predict", "out.onnx", "--data", "texts.jsonl"],
                        ["generate", "out.onnx", "--prompt", "ab"]):
            self.refused("data", *command, "--tokenizer", "other.json", "--device", "cpu", says=["not the tokenizer", '"tokenizer.json"'])
        (self.folder / "tokenizer.json").unlink()
        self.refused("usage", "generate", "out.onnx", "--prompt", "ab", says=["--tokenizer FILE", '"tokenizer.json"'])
        self.succeed("eval", "run/trained.onnx" if (self.folder / "run/trained.onnx").exists() else "out.onnx",
                     "--data", "texts.bin", "--device", "cpu")

    def test_validation_texts_are_converted_by_themselves(self):
        (self.folder / "both").mkdir()
        for part in ("train", "validation"):
            self.write(f"both/{part}.jsonl", (self.folder / "texts.jsonl").read_text())
        _, err = self.succeed("data", "convert", "both", "--tokenizer", "tokenizer.json", "-o", "both.bin")
        self.assertIn("both.bin has the training part only; convert the validation files by themselves", err)

    def test_other_layouts_and_files(self):
        self.write("plain.txt", "ab cd ef\nab ab\n" * 20)
        self.write("held.csv", "text,n\nab cd,1\n\"ef, ab\",2\ngab cd ab cd ab cd,3\n")
        for data, settings in (("plain.txt", "tokenizer.json"), ("plain.txt", "tokenizer.json:document=line,layout=pad"),
                               ("texts.jsonl", "tokenizer.json:layout=pad,column=text")):
            self.succeed("train", "gpt.onnx", "--data", data, "--tokenizer", settings, "--val-data", "held.csv", "--max-steps", "2", *RUN)
        out, _ = self.succeed("data", "inspect", "held.csv", "--tokenizer", "tokenizer.json:layout=pad")
        self.assertIn("a row of 8 tokens for each text", out)
        self.assertIn("attention_mask", out)

    def test_texts_need_the_tokenizer_of_the_training(self):
        (self.folder / "models").mkdir()
        self.train("run", "--max-steps", "2", "--save-every", "2step", "-o", "models/out.onnx")
        self.write("plain.txt", "ab cd ef\nab ab\n" * 20)
        self.write("only.jsonl", '{"text": "ab cd ef"}\n' * 20)
        (self.folder / "elsewhere").mkdir()
        (self.folder / "tokenizer.json").rename(self.folder / "elsewhere/tokenizer.json")
        for command in ("eval", "predict"):
            for data in ("plain.txt", "only.jsonl"):
                self.refused("usage", command, "models/out.onnx", "--data", data, "--device", "cpu", says=["--tokenizer FILE", '"tokenizer.json"'])
        # The run has a copy, another file of this name is not taken for it.
        self.write("tokenizer.json", byte_pairs(normalizer={"type": "NFC"}))
        out, _ = self.succeed("eval", "--follow", "run", "--data", "plain.txt", "--device", "cpu", "--json")
        asked, _ = self.succeed("eval", "models/out.onnx", "--data", "plain.txt", "--tokenizer", "elsewhere/tokenizer.json", "--device", "cpu", "--json")
        self.assertEqual(parse(out.splitlines()[-1])["loss"], parse(asked)["loss"])

    def test_padding_is_what_the_loss_ignores(self):
        self.write("rows.jsonl", "".join(json.dumps({"input_ids": ids, "labels": ids}) + "\n" for ids in ([1, 2, 3], [4, 5], [6, 7, 8]) * 4))
        for data in (["--data", "texts.jsonl", "--tokenizer", "tokenizer.json:layout=pad"], ["--data", "rows.jsonl"]):
            found = [parse(self.succeed("eval", "gpt.onnx", *data, "--device", "cpu", "--json", *more)[0])["loss"] for more in ([], ["--ignore-index", "39"])]
            self.assertEqual(*found)

    def test_resumed_with_the_same_bits(self):
        self.train("whole", "--max-steps", "6", "-o", "whole.onnx")
        self.train("half", "--max-steps", "3", "--save-every", "3step")
        self.succeed("train", "--resume=half", "--max-steps", "6", "-o", "half.onnx")
        self.assertEqual((self.folder / "whole.onnx").read_bytes(), (self.folder / "half.onnx").read_bytes())
        # Another tokenizer makes other data.
        self.write("tokenizer.json", byte_pairs(added_tokens=[]).replace('"<|endoftext|>": 0', '"</s>": 0').replace('"c d", ', ""))
        self.refused("data", "train", "--resume=half", "--max-steps", "7", says="trained on other data")

    def test_a_model_of_fewer_tokens_than_the_tokenizer_has_generates_nothing(self):
        self.succeed("new", "gpt", *TINY[:-4], "--vocab", "7", "--context", "8", "-o", "small.onnx")
        command = ["generate", "small.onnx", "--tokenizer", "tokenizer.json", "--prompt", "ab"]
        self.refused("model", *command, says=["token 11 out of range 0..6", "more tokens than the model", "--tokenizer FILE"])
        command[-1] = "a"
        self.refused("model", *command, says=["gives 7 values for each token", '"tokenizer.json" has 16 ids'])
        self.assertEqual(self.run_program(*command)[1], "")

    def test_generated(self):
        self.train("run", "--max-steps", "30", "-o", "out.onnx")
        out, _ = self.succeed("generate", "out.onnx", "--prompt", "abcd", "--max-tokens", "5", "--device", "cpu")
        self.assertTrue(out.startswith("abcd") and out.endswith("\n"))
        greedy = ["generate", "out.onnx", "--prompt", "abcd", "--max-tokens", "12", "--device", "cpu", "--json"]
        first = parse(self.succeed(*greedy)[0])
        self.assertEqual(first["prompt_tokens"], [11, 12])
        self.assertLessEqual(len(first["tokens"]), 12)
        self.assertTrue(first["text"].startswith("abcd"))
        self.assertEqual(first, parse(self.succeed(*greedy)[0]))
        self.assertEqual(first, parse(self.succeed(*greedy, "--top-k", "1")[0]))
        drawn = [parse(self.succeed(*greedy, "--temperature", "3", "--seed", seed)[0])["tokens"] for seed in ("1", "1", "2")]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])
        self.refused("usage", *greedy, "--temperature", "0", "--top-k", "3", says="--temperature 0")
        self.refused("usage", *greedy, "--top-p", "2", says="--top-p")

    def test_bytes_are_generated_without_a_tokenizer(self):
        self.succeed("new", "gpt", *TINY[:-4], "--vocab", "256", "--context", "8", "-o", "bytes.onnx")
        self.write("plain.txt", "zü" * 400)
        self.succeed("train", "bytes.onnx", "--data", "plain.txt", "--max-steps", "40", *RUN, "-o", "out.onnx")
        found = parse(self.succeed("generate", "out.onnx", "--prompt", "zü", "--max-tokens", "6", "--device", "cpu", "--json")[0])
        self.assertEqual(found["prompt_tokens"], list("zü".encode()))
        self.assertEqual(found["text"], "zü" * 3)
        self.refused("usage", "generate", "gpt.onnx", "--prompt", "ab", "--device", "cpu", says="--tokenizer FILE")

    def test_texts_without_a_tokenizer_name_the_option(self):
        _, _, err = self.run_program("train", "gpt.onnx", "--data", "texts.jsonl", "--text-column", "text", "--max-steps", "1", *RUN)
        self.assertIn("--tokenizer", err)
        self.write("plain.txt", "zebra crossing\n" * 20)
        self.refused("data", "train", "gpt.onnx", "--data", "plain.txt", *RUN, says="--tokenizer FILE")
        self.refused("data", "train", "gpt.onnx", "--data", "plain.txt", "--tokenizer", "nowhere.json", *RUN, says='"nowhere.json"')
        self.succeed("data", "make", "spirals", "-o", "spirals.npz")
        self.refused("usage", "data", "inspect", "spirals.npz", "--tokenizer", "tokenizer.json", says=["--tokenizer", "npz"])
        self.write("bad.json", byte_pairs(normalizer={"type": "Precompiled"}))
        self.refused("data", "data", "inspect", "plain.txt", "--tokenizer", "bad.json", says=['"bad.json"', '"Precompiled" is not supported'])


class Classes(Case):
    def test_texts_with_labels(self):
        made = random.Random(2)
        rows = [(" ".join(["very"] * made.randrange(3) + [word, made.choice(["film", "films"])]), word) for word in ["good", "bad"] * 60]
        self.write("reviews.jsonl", "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
        self.write("vocab.txt", word_pieces())
        self.succeed("new", "bert", "--layers", "1", "--width", "16", "--heads", "2", "--vocab", "16", "--context", "8", "--classes", "2", "-o", "bert.onnx")
        self.succeed("train", "bert.onnx", "--data", "reviews.jsonl", "--tokenizer", "vocab.txt", "--val-split", "0.25", "--epochs", "20",
                     *RUN, "-o", "reviews.onnx")
        self.succeed("eval", "reviews.onnx", "--data", "reviews.jsonl", "--device", "cpu", "--assert", "accuracy>=0.99")
        self.write("new.csv", "text\nvery very bad film\ngood films!\n")
        out, _ = self.succeed("predict", "reviews.onnx", "--data", "new.csv", "--device", "cpu")
        self.assertEqual([parse(line)["class_name"] for line in out.splitlines()], ["bad", "good"])
        # A table as people have them, with names that say little; other data are read by the same names.
        self.write("table.csv", "id,what they said,mood\n" + "".join(f"{i},{text},{label}\n" for i, (text, label) in enumerate(rows)))
        self.succeed("train", "bert.onnx", "--data", "table.csv", "--tokenizer", "vocab.txt", "--val-split", "0.25", "--epochs", "20",
                     *RUN, "-o", "table.onnx")
        self.write("other.csv", "who,what they said\nfilm,very very bad film\nbad,good films!\n")
        out, _ = self.succeed("predict", "table.onnx", "--data", "other.csv", "--device", "cpu")
        self.assertEqual([parse(line)["class_name"] for line in out.splitlines()], ["bad", "good"])
        # Without names, columns have numbers, which labels in the first row are not.
        self.write("bare.tsv", "".join(f"{text}\t{int(label == 'bad')}\n" for text, label in rows))
        self.succeed("train", "bert.onnx", "--data", "bare.tsv", "--tokenizer", "vocab.txt", "--max-steps", "2", *RUN, "-o", "bare.onnx")
        self.assertEqual(parse(self.succeed("eval", "bare.onnx", "--data", "bare.tsv", "--device", "cpu", "--json")[0])["samples"], len(rows))
        out, _ = self.succeed("data", "inspect", "reviews.jsonl", "--tokenizer", "vocab.txt")
        self.assertIn("bad 60 (50.0 %), good 60 (50.0 %)", out)

    def write_net_of_any_length(self):
        """A classifier of two classes in net.onnx, and the tokenizer vocab.txt."""
        made = random.Random(3)
        table, weight = ([made.gauss(0, 1) for _ in range(count)] for count in (11 * 4, 4 * 2))
        nodes = [onnx_file.node("Gather", ["table", "ids"], ["x"]), onnx_file.node("ReduceMean", ["x"], ["m"], axes=[1], keepdims=0),
                 onnx_file.node("MatMul", ["m", "w"], ["logits"])]
        self.write("net.onnx", onnx_file.model(
            nodes, [onnx_file.value_info("ids", ["batch", "seq"], onnx_file.INT64)], [onnx_file.value_info("logits", ["batch", 2])],
            [onnx_file.tensor("table", [11, 4], table), onnx_file.tensor("w", [4, 2], weight)]))
        self.write("vocab.txt", word_pieces())

    def test_files_of_replicas_may_have_other_longest_texts(self):
        self.write_net_of_any_length()
        self.write("part-0.csv", "text,label\n" + "good film very,1\nbad film,0\n" * 8)
        self.write("part-1.csv", "text,label\n" + "good,1\nbad,0\n" * 8)
        run = ["train", "net.onnx", "--tokenizer", "vocab.txt", "--max-steps", "2", *RUN, "--replicas", "2", "--data-sharding", "files"]
        _, err = self.succeed(*run, "--data", "part-*.csv", "--run-dir", "shorter")
        self.assertNotIn("texts are cut", err)
        self.write("part-1.csv", "text,label\n" + "good film very very,1\nbad,0\n" * 8)
        _, err = self.succeed(*run, "--data", "part-*.csv", "--run-dir", "longer")
        self.assertRegex(err, r"of \S*part-1\.csv: 8 of 16 texts are cut to 5 tokens")

    def test_a_model_of_any_length_knows_the_one_it_was_trained_with(self):
        self.write_net_of_any_length()
        self.write("reviews.csv", "text,label\n" + "good film very very very,1\nbad bad film film good,0\n" * 8)
        self.succeed("train", "net.onnx", "--data", "reviews.csv", "--tokenizer", "vocab.txt", "--dim", "seq=3", "--max-steps", "2", *RUN, "-o", "out.onnx")
        found = [self.succeed("eval", "out.onnx", "--data", "reviews.csv", "--device", "cpu", *more)[0]
                 for more in ([], ["--dim", "seq=3"], ["--dim", "seq=6"])]
        self.assertEqual(found[0], found[1])
        self.assertNotEqual(found[0], found[2])


if __name__ == "__main__":
    unittest.main()
