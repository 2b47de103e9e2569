"""pipetrain plan --pipedream-profile: PipeDream's published profiles, planned from the command line."""

import json
import pathlib
import unittest

from program import MODEL, MODELS, Case, parse

PROFILES = pathlib.Path(MODELS).parent / "tests" / "data" / "pipedream"


def profile(name):
    return str(PROFILES / name / "graph.txt")


class Plan(Case):
    def test_own_plan_and_pipedreams(self):
        out, _ = self.succeed("plan", "--pipedream-profile", profile("vgg16"), "--gpus", "4", "--compat", "pipedream",
                              "--activation-compression", "1", "--json")
        document = parse(out)
        goldens = json.loads((PROFILES / "goldens.json").read_text())["rows"]
        golden = next(row for row in goldens if row["model"] == "vgg16" and row["args"] ==
                      ["-n", "4", "-b", "1000000000", "--activation_compression_ratio", "1"])
        value = document["pipedream"]["seconds"]
        self.assertLessEqual(abs(value - golden["pipeline_s"]), 1e-9 * golden["pipeline_s"])
        self.assertLessEqual(document["seconds"], document["pipedream"]["seconds_in_our_model"])
        names = [node for stage in document["stages"] for node in stage["nodes"]]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(len(names), 41)

    def test_a_table_on_a_shipped_topology_and_the_stages_in_pipedreams_format(self):
        out, _ = self.succeed("plan", "--pipedream-profile", profile("gnmt"), "--topology", "pipedream-c", "-o", "staged.txt")
        self.assertIn("pipetrain", out)
        self.assertIn("gap", out)
        staged = (self.folder / "staged.txt").read_text()
        self.assertEqual(staged.count(" -- stage_id="), 48)
        again, _ = self.succeed("plan", "--pipedream-profile", "staged.txt", "--gpus", "2", "--json")
        self.assertEqual(parse(again)["devices"], 2)

    def test_stages_of_one_device_each(self):
        out, _ = self.succeed("plan", "--pipedream-profile", profile("vgg16"), "--replicas", "1,1,1", "--json")
        document = parse(out)
        self.assertEqual([stage["devices"] for stage in document["stages"]], [1, 1, 1])
        self.refused("usage", "plan", "--pipedream-profile", profile("vgg16"), "--replicas", "2,1", says="--replicas")
        self.refused("usage", "plan", "--pipedream-profile", profile("vgg16"), "--gpus", "4", "--replicas", "1,1", "--compat", "pipedream",
                     says="--replicas needs 2 devices, but --gpus is 4")
        self.refused("usage", "plan", "--pipedream-profile", profile("vgg16"), "--gpus", "4", "--activation-compression", "abc",
                     says='--activation-compression takes a number, not "abc"')

    def test_too_many_states_for_pipedreams_planner(self):
        self.refused("resource", "plan", "--pipedream-profile", profile("inception_v3"), "--gpus", "4", "--compat",
                     "pipedream", says=["states", "without --compat"])
        out, _ = self.succeed("plan", "--pipedream-profile", profile("inception_v3"), "--gpus", "4", "--json")
        self.assertLess(parse(out)["gap"], 0.3)

    def test_options_without_effect_are_refused(self):
        given = ["plan", "--pipedream-profile", profile("vgg16"), "--gpus", "4"]
        for more in (["--gpu-memory", "1GB"], ["--recompute", "all"], ["--micro-batches", "8"], ["--fewer-machines"],
                     ["--activation-compression", "0.5"]):
            self.refused("usage", *given, *more, says=more[0])
        self.refused("usage", "plan", "--pipedream-profile", profile("vgg16"), "--topology", "pipedream-c", "--bandwidth", "1e9", says="--bandwidth")
        for more in (["--bandwidth", "1e9"], ["--compat", "pipedream"], ["--fewer-machines"], ["--activation-compression", "0.5"]):
            self.refused("usage", "plan", "-m", MODEL, *more, says=[more[0], "--pipedream-profile"])

    def test_the_profile_is_printed(self):
        out, _ = self.succeed("plan", "--pipedream-profile", profile("gnmt"), "--gpus", "4", "-o", "-")
        self.assertEqual(out.count(" -- stage_id="), 48)
        self.refused("usage", "plan", "--pipedream-profile", profile("gnmt"), "--gpus", "4", "-o", "-", "--json", says="--output -")

    def test_mistakes_are_named(self):
        self.refused("usage", "plan", "--pipedream-profile", "nowhere.txt", "--gpus", "4", says="nowhere.txt")
        broken = self.write("broken.txt", "a -- ReLU -- forward_compute_time=x\n")
        self.refused("usage", "plan", "--pipedream-profile", broken, "--gpus", "4", says="line 1")
        self.refused("usage", "plan", "--pipedream-profile", profile("vgg16"), says="--gpus")
        self.refused("usage", "plan", "--pipedream-profile", profile("vgg16"), "--topology", "nowhere",
                     says=["nowhere", "dgx-h100x8.json"])


if __name__ == "__main__":
    unittest.main()
