"""pipetrain doctor --measure: a table, a document, and a topology that plans can take."""

import json
import unittest

from program import Case, parse


class Measure(Case):
    def test_it_writes_a_topology_beside_the_cache(self):
        out, _ = self.succeed("doctor", "--measure")
        for what in ["copy, memory to memory", "matrix product", "topology.json"]:
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


if __name__ == "__main__":
    unittest.main()
