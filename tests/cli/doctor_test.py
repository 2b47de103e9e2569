"""pipetrain doctor --measure: a table, a document, and a topology that plans can take; doctor: which build it is and which vectors kernels use."""

import json
import pathlib
import re
import unittest

from program import DATA, MODEL, Case, events, parse


class Measure(Case):
    def test_it_writes_a_topology_beside_the_cache(self):
        out, _ = self.succeed("doctor", "--measure")
        for what in ["memory copy", "matmul", "topology.json"]:
            self.assertIn(what, out)
        with open(f"{self.cache}/topology.json") as file:
            topology = json.load(file)
        self.assertEqual(topology["schema"], "pipetrain.topology/1")
        self.assertGreater(topology["levels"][0]["bytes_per_second"], 1e8)
        self.assertGreater(topology["device"]["flops_per_second"], 1e8)

    def test_json_goes_to_stdout_and_the_file_where_it_is_wanted(self):
        out, _ = self.succeed("doctor", "--measure", "--json", "-o", "mine.json")
        measured = parse(out)
        self.assertEqual(measured["schema"], "pipetrain.measurement/1")
        self.assertEqual(measured["topology"], "mine.json")
        topology = json.loads((self.folder / "mine.json").read_text())
        self.assertEqual(topology["levels"][0]["count"], measured["threads"])
        for name in ("-", "/dev/stdout"):
            self.refused("usage", "doctor", "--measure", "-o", name, says="--output - cannot write to standard output")


class Build(Case):
    def test_json_names_it(self):
        out, _ = self.succeed("doctor", "--json")
        found = parse(out)
        self.assertRegex(found["build"], rf"^{re.escape(found['version'])}-\w+[\d.]*-[0-9a-f]{{12}}-[0-9a-f]*$")


class Vectors(Case):
    def vectors(self, **environment):
        out, _ = self.succeed("doctor", environment=environment)
        return re.search(r"^vectors +(.*)$", out, re.M)[1]

    def test_narrower_ones_can_be_wanted(self):
        processor = pathlib.Path("/proc/cpuinfo").read_text()
        flags = set(re.search(r"^flags\s*:(.*)$", processor, re.M)[1].split())
        bfloat16 = "avx512_bf16" in flags
        widest = "AVX-512 with bfloat16" if bfloat16 else "AVX-512" if "avx512f" in flags else "AVX2"
        tiles = bfloat16 and {"amx_tile", "amx_bf16"} <= flags
        as_floats = "AVX-512 with bfloat16 as floats" if bfloat16 else widest
        # Of Intel's without AMX, Cooper Lake alone multiplies bfloat16 fast.
        model = [int(re.search(rf"^{name}\s*: (\d+)$", processor, re.M)[1]) for name in ("cpu family", "model")]
        slow = "GenuineIntel" in processor and model != [6, 85]
        unlimited = "AVX-512 with AMX" if tiles else as_floats if slow else widest
        self.assertEqual(self.vectors(PIPETRAIN_VECTORS=""), unlimited)
        self.assertEqual(self.vectors(PIPETRAIN_VECTORS="AVX-512-BF16-AS-FLOATS"), as_floats)
        self.assertEqual(self.vectors(PIPETRAIN_VECTORS="AVX-512-BF16"), widest)
        self.assertEqual(self.vectors(PIPETRAIN_VECTORS="AVX2"), "AVX2")
        self.refused("usage", "doctor", environment={"PIPETRAIN_VECTORS": "SSE"}, says=["PIPETRAIN_VECTORS", '"SSE"', "AVX2"])

    def test_both_learn_the_same(self):
        losses = []
        for wanted in ["", "AVX2"]:
            out, _ = self.succeed("train", "-m", MODEL, "--data", DATA, "--device", "cpu", "--threads", "1", "--epochs", "1",
                                  "--run-dir", f"run{wanted}", "--save-every", "never", "--metrics", "-", "-q",
                                  environment={"PIPETRAIN_VECTORS": wanted})
            losses.append([e["loss"] for e in events(out) if e["event"] == "step"])
        for ours, theirs in zip(*losses):
            self.assertAlmostEqual(ours, theirs, delta=2e-3)


if __name__ == "__main__":
    unittest.main()
