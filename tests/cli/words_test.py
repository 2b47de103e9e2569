"""Texts that users read have the words of CONTRIBUTING.md's glossary and not the old ones: help, README and the other pages, and messages in src/."""

import pathlib
import re
import unittest

from program import Case

SOURCE = pathlib.Path(__file__).resolve().parents[2]
GLOSSARY = " ".join((SOURCE / "CONTRIBUTING.md").read_text().partition("\n## Glossary\n")[2].split())

# A pattern of the old word, and the glossary's word for it.
OLD = {
    r"own stage\b": "single-stage baseline",
    r"own kernels?\b": "hand-written kernel",
    r"pictures?\b": "image, feature map",
    r"numbers in (\d+|\{\}) tensors": "parameter",
    r"right answers?\b": "correct prediction",
    r"held[ -]out\b|set apart\b": "validation",
    r"put off\b": "deferred",
    r"gathered gradients": "batched weight gradients",
    r"tables? of numbers": "CSV",
    r"(products|rows|reorders|waiting) (\d|\{)|reorders\b": "matmul/conv, norm/softmax, element-wise, layout, optimizer, idle",
    r"(m?s|bytes) a step\b|\{\} a (step|micro-batch|mini-batch)\b": "ms/step",
    r"taken before the first step": "allocated up front",
    r"balance within": "above ideal balance",
    r"(one|thread|threads) a (device|stage)\b|row a sample\b": "one per device, one row per sample",
    r"ways that were simulated|best for their memory": "Pareto-optimal",
    r"middle cut out": "center-cropped",
    r"made when they are asked for": "decoded on the fly",
    r"by (AMD|Intel)\b": "profiled on",
    r"left to the loss": "fused into the loss",
    r"no better \w+ in\b": "early stopping",
    r"trains with a flag|with a flag:": "needs an option",
    r"(image|picture) that can be read": "cannot decode; supported",
    r"trained apart": "trained separately",
    r"turned as EXIF": "rotated by their EXIF orientation",
    r"is a hole\b|hole in a file": "sparse file",
    r"r accumulators|an accumulator for each": "one gradient accumulator per replica",
    r"micro-batch tax": "micro-batch overhead",
    r"left out steps?\b": "skipped step",
    r"working memory|received \{\}, working": "workspace",
    r"all forwards\b|all backwards\b": "forward pass",
    r"\w*(optimis(?!tic)|initialis|normalis|quantis|recognis|utilis|behaviour|neighbour|colour)\w*|licence\b": "quantized, normalized, color, license",
    r"other people's code": "",
    r"sums of all steps|real-time class|one update behind|moved by a third": "",
    r"what (is|of) .{1,40} is for what\b": "",
}
PATTERN = re.compile("|".join(rf"(?<![\w-])(?:{old})" for old in OLD), re.IGNORECASE)


def old_words(text):
    """The old words in a text, whatever its line breaks."""
    return [" ".join(found.group().split()) for found in PATTERN.finditer(" ".join(text.split()))]


def literals(source):
    """The string literals of C++ code; adjacent ones are one. Comments are no text that users read."""
    code = re.sub(r"(?m)^\s*(//|#include).*$", "", source)
    runs = re.findall(r'(?:"(?:[^"\\\n]|\\.)*"\s*)+', code)
    return ["".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', run)) for run in runs]


class Words(Case):
    def test_old_words_are_found(self):
        for text in ("on pictures", "right\nanswers", "7.4 ms a step", "one a device", "  products 81.0 %", "5187 numbers in 6 tensors", "quantised models", "all forwards, then"):
            self.assertTrue(old_words(text), text)
        for text in ("a validation part", "norm/softmax 3 %", "an image", "rows are samples", "7.4 ms/step", "an optimistic plan"):
            self.assertEqual(old_words(text), [], text)

    def test_the_glossary_has_the_new_words(self):
        for words in OLD.values():
            for word in filter(None, words.split(", ")):
                self.assertIn(word, GLOSSARY)

    def test_help(self):
        out, _ = self.succeed("help", "--markdown")
        self.assertEqual(old_words(out), [])
        commands = re.findall(r"(?m)^\| `pipetrain (\w+)", out)
        self.assertGreaterEqual(len(commands), 18)
        for command in commands:
            with self.subTest(command):
                self.assertEqual(old_words(self.succeed("help", command)[0]), [])

    def test_pages(self):
        for page in sorted([*SOURCE.glob("*.md"), *SOURCE.glob("docs/*.md")]):
            with self.subTest(page.name):
                self.assertEqual(old_words(page.read_text()), [])

    def test_messages(self):
        for file in sorted([*SOURCE.glob("src/**/*.cpp"), *SOURCE.glob("src/**/*.h")]):
            for text in literals(file.read_text()):
                with self.subTest(file=str(file.relative_to(SOURCE)), text=text):
                    self.assertEqual(old_words(text), [])


if __name__ == "__main__":
    unittest.main()
