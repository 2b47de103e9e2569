"""plan.json: written by one command, edited by hand, followed by another; a wrong one is refused by the field's name."""

import json
import unittest

from onnx_file import model, node, tensor, value_info
from program import DATA, MODEL, Case, parse


class PlanFile(Case):
    def setUp(self):
        super().setUp()
        self.succeed("plan", "-m", MODEL, "--device", "cpu", "--gpus", "3", "-o", "plan.json")
        self.plan = parse((self.folder / "plan.json").read_text())

    def train(self, *more):
        """The plan that a short training with the edited file followed, and the losses."""
        self.write("plan.json", json.dumps(self.plan))
        self.succeed("train", "-m", MODEL, "--data", DATA, "--device", "cpu", "--plan", "plan.json", "--max-steps", "3",
                     "--threads", "1", "--run-dir", f"run{len(list(self.folder.iterdir()))}", *more)
        run = max(self.folder.glob("run*"), key=lambda path: path.stat().st_mtime)
        steps = [parse(line) for line in (run / "events.jsonl").read_text().splitlines()]
        return parse((run / "plan.json").read_text()), [step["loss"] for step in steps if step["event"] == "step"]

    @staticmethod
    def starts(plan):
        return [stage["first_index"] for stage in plan["stages"]]

    def test_training_follows_the_file(self):
        followed, _ = self.train()
        self.assertEqual(self.starts(followed), self.starts(self.plan))

    def test_a_moved_cut_is_followed_and_changes_no_bit_of_the_loss(self):
        _, before = self.train()
        for stage, first in zip(self.plan["stages"], [0, 1, 14]):
            stage["first_index"] = first
            del stage["first_node"]
        followed, after = self.train()
        self.assertEqual(self.starts(followed), [0, 1, 14])
        self.assertEqual(before, after)

    def test_the_stages_of_each_device_are_those_of_the_plan(self):
        self.succeed("plan", "-m", MODEL, "--device", "cpu", "--gpus", "2", "--schedule", "interleaved-1f1b:virtual-stages=4", "-o", "many.json")
        plan = parse((self.folder / "many.json").read_text())
        self.assertEqual((plan["devices"], plan["virtual_stages"], len(plan["stages"])), (2, 4, 8))
        _, err = self.succeed("train", "-m", MODEL, "--data", DATA, "--device", "cpu", "--plan", "many.json", "--gpus", "2", "--dry-run")
        self.assertIn("8 stages", err)
        self.assertFalse(any("first_device" in stage for stage in plan["stages"]), plan)

    def test_a_search_and_a_plan_exclude_each_other(self):
        for command in ("train", "plan", "simulate"):
            self.refused("usage", command, "-m", MODEL, "--device", "cpu", "--plan", "plan.json", "--schedule", "auto",
                         says=["--schedule auto cuts the model itself, but --plan plan.json has its cuts", "leave out one of them"])

    def test_a_plan_has_the_devices_of_a_schedule_file(self):
        """Two with two stages each."""
        self.succeed("schedule", "export", "zb-v", "--gpus", "2", "--micro-batches", "4", "-o", "v.schedule")
        self.succeed("plan", "-m", MODEL, "--device", "cpu", "--schedule", "v.schedule", "-o", "file.json")
        plan = parse((self.folder / "file.json").read_text())
        self.assertEqual((plan["devices"], len(plan["stages"])), (2, 4))
        self.assertFalse(any("first_device" in stage for stage in plan["stages"]), plan)
        _, err = self.succeed("train", "-m", MODEL, "--data", DATA, "--device", "cpu", "--plan", "file.json", "--drop-last", "--dry-run")
        self.assertIn("4 stages", err)

    def test_micro_batches_of_a_plan_are_for_schedules_that_split_as_its_own_does(self):
        given = ["plan", "-m", MODEL, "--device", "cpu", "-b", "64"]

        def micro_batches(*more):
            return parse(self.succeed(*given, *more, "--json")[0])["micro_batches"]

        self.succeed(*given, "--gpus", "3", "--schedule", "1f1b", "--micro-batches", "4", "-o", "four.json")
        self.succeed(*given, "--gpus", "3", "--schedule", "pipedream", "-o", "whole.json")
        for more, count in ((["four.json"], 4), (["four.json", "--schedule", "gpipe"], 4), (["four.json", "--schedule", "pipedream"], 1),
                            (["whole.json"], 1), (["whole.json", "--schedule", "1f1b"], 64 // 8)):
            with self.subTest(more):
                self.assertEqual(micro_batches("--plan", *more), count)
        rows = parse(self.succeed("simulate", *given[1:], "--plan", "whole.json", "--json")[0])["rows"]
        self.assertEqual([row["micro_batches"] for row in rows if row["schedule"] != "pipedream"], 2 * [2, 4, 8, 16])
        whole = parse((self.folder / "whole.json").read_text())
        self.write("whole.json", json.dumps(whole | {"micro_batches": 8}))
        self.refused("usage", *given, "--plan", "whole.json", says=("whole.json", "pipedream does not split mini-batches", "micro_batches is 8"))

    def test_settings_of_the_schedule_are_those_of_the_plan(self):
        for schedule, field, value in [("zb:memory-units=7", "memory_units", 7), ("1f1b-auto:warm-up-tolerance=0.5", "warm_up_tolerance", 0.5)]:
            self.succeed("plan", "-m", MODEL, "--device", "cpu", "--gpus", "2", "--schedule", schedule, "-o", "set.json")
            self.assertEqual(parse((self.folder / "set.json").read_text())[field], value)
            out, _ = self.succeed("plan", "-m", MODEL, "--device", "cpu", "--plan", "set.json", "--json")
            self.assertEqual(parse(out)[field], value)

    def test_devices_without_a_stage_are_left_out(self):
        self.plan["stages"][2]["first_device"] = 3
        followed, _ = self.train()
        self.assertEqual([stage["first_device"] for stage in followed["stages"]], [0, 1, 2])

    def test_stages_recompute_only_where_they_do_not_fit(self):
        """Two stages of a device share its memory as they need it."""
        given = ["plan", "-m", MODEL, "--topology", "laptop", "--gpus", "2", "--schedule", "zb-v",
                 "--split", "block.conv1,block.norm2,last.conv", "--json"]
        kept = parse(self.succeed(*given, "--recompute", "none")[0])["stages"]
        bytes_of = [stage["memory_bytes"] for stage in kept]
        most = max(bytes_of[0] + bytes_of[3], bytes_of[1] + bytes_of[2])
        limit = most * 10 // 7  # the layout takes more than the sum of the tensors
        self.assertLess(limit // 2, max(bytes_of))  # an equal share is too little
        limited = parse(self.succeed(*given, "--gpu-memory", str(limit))[0])["stages"]
        self.assertFalse(any(stage["recompute"] for stage in limited), limited)
        self.succeed(*given[:-1], "--gpu-memory", str(limit), "-o", "limited.json")
        followed, _ = self.succeed("plan", "-m", MODEL, "--topology", "laptop", "--plan", "limited.json", "--gpu-memory", str(limit), "--json")
        self.assertFalse(any(stage["recompute"] for stage in parse(followed)["stages"]), followed)

    def test_a_plan_says_where_speeds_do_not_count(self):
        self.write("two.json", json.dumps({"schema": "pipetrain.topology/1", "name": "two", "levels": [
            {"name": "link", "count": 2, "gigabytes_per_second": 10, "latency_microseconds": 5}],
            "device": {"memory_gibibytes": 16, "teraflops_per_second": 1, "memory_gigabytes_per_second": 100, "speed": [1, 0.5]}}))
        for more, says in [(["--replicas", "auto"], False), (["--replicas", "1,1"], False), (["--schedule", "1f1b"], False),
                           (["--schedule", "interleaved-1f1b"], True)]:
            out, _ = self.succeed("plan", "-m", MODEL, "--gpus", "2", "--topology", "two.json", "--json", *more)
            self.assertEqual(any("differ in speed" in note for note in parse(out)["notes"]), says, out)

    def test_slow_devices_get_less_work(self):
        self.succeed("new", "mlp", "--depth", "16", "--width", "64", "-o", "mlp.onnx", "-q")
        levels = [{"name": "link", "count": 2, "gigabytes_per_second": 100, "latency_microseconds": 0.1}]
        device = {"teraflops_per_second": 1e-2, "memory_gigabytes_per_second": 1}
        given = ["-m", "mlp.onnx", "--topology", "links.json", "--gpus", "2", "--batch-size", "256", "--micro-batches", "8"]
        starts, steps = {}, {}
        for speed in (1, 0.25):
            self.write_topology(levels, {**device, "speed": [1, speed]})
            for layout in (["--schedule", "1f1b"], ["--replicas", "1,1"]):
                plan = parse(self.succeed("plan", *given, *layout, "--json")[0])
                starts[speed, layout[0]] = plan["stages"][1]["first_index"]
            for schedule in ("1f1b", "interleaved-1f1b"):
                row = parse(self.succeed("simulate", *given, "--schedule", schedule, "--json")[0])["rows"][0]
                steps[speed, schedule] = row["step_ms"]
        for layout in ("--schedule", "--replicas"):
            self.assertGreater(starts[0.25, layout], starts[1, layout] + 3)
        for schedule in ("1f1b", "interleaved-1f1b"):
            self.assertGreater(steps[0.25, schedule], 1.2 * steps[1, schedule])

    def write_topology(self, levels, device=None):
        self.write("links.json", json.dumps({"schema": "pipetrain.topology/1", "name": "links", "levels": levels, **({"device": device} if device else {})}))

    def test_sums_over_hosts_are_planned_as_the_plan_that_is_written(self):
        """Two hosts of two devices. The link between hosts is a hundred times as slow as those inside."""
        self.write_topology([{"name": "inside", "count": 2, "gigabytes_per_second": 100, "latency_microseconds": 1},
                             {"name": "between", "count": 2, "gigabytes_per_second": 1, "latency_microseconds": 10}],
                            {"teraflops_per_second": 1, "memory_gigabytes_per_second": 100})
        given = ["plan", "-m", MODEL, "--topology", "links.json", "--batch-size", "48", "--micro-batches", "12", "--json"]
        for replicas in ("4", "1,3"):
            out, _ = self.succeed(*given, "--replicas", replicas)
            self.write("planned.json", out)
            planned, followed = (parse(text)["stages"] for text in (out, self.succeed(*given, "--plan", "planned.json")[0]))
            self.assertEqual([stage["all_reduce_seconds"] for stage in planned], [stage["all_reduce_seconds"] for stage in followed])
            self.assertGreater(planned[-1]["all_reduce_seconds"], planned[-1]["parameter_bytes"] / 1e9)

    def test_a_profile_has_the_times_and_the_topology_all_else(self):
        run = ["-m", MODEL, "--device", "cpu", "--batch-size", "64", "--micro-batches", "8"]
        self.succeed("profile", *run, "-o", "profile.json")
        run += ["--gpus", "16", "--topology", "links.json", "--schedule", "1f1b"]
        level = {"name": "link", "count": 16, "latency_microseconds": 1}
        steps = []
        for bandwidth in (1e10, 1e3):
            self.write_topology([{**level, "bytes_per_second": bandwidth}])
            self.assertNotIn("share the cores", self.succeed("plan", *run, "--profile", "profile.json")[0])
            steps.append(parse(self.succeed("simulate", *run, "--profile", "profile.json", "--json")[0])["rows"][0]["step_ms"])
        self.assertGreater(steps[1], 2 * steps[0])
        notes = parse(self.succeed("plan", *run, "--json")[0])["notes"]
        self.assertTrue(any("does not say how fast its devices compute" in note for note in notes), notes)
        self.write_topology([{**level, "bytes_per_second": 1e10}], {"memory_bytes": 1000})
        self.refused("resource", "plan", *run, "--profile", "profile.json", says="the limit is 1000 B")

    def test_what_stages_hold_is_counted_with_the_warm_up_that_they_get(self):
        """Over a slow link stage 0 runs all forwards before its first backward."""
        self.succeed("new", "mlp", "--depth", "8", "--width", "64", "-o", "mlp.onnx", "-q")
        self.write_topology([{"name": "link", "count": 2, "gigabytes_per_second": 10, "latency_microseconds": 1e7}],
                            {"teraflops_per_second": 1e-3, "memory_gigabytes_per_second": 1})
        given = ["plan", "-m", "mlp.onnx", "--topology", "links.json", "--schedule", "1f1b-auto", "--batch-size", "1024", "--micro-batches", "16"]
        out, _ = self.succeed(*given, "--gpus", "2", "--json")
        first = parse(out)["stages"][0]
        self.assertEqual((first["in_flight"], first["recompute"]), (16, False))
        self.write("planned.json", out)
        self.assertEqual(parse(self.succeed(*given, "--plan", "planned.json", "--json")[0])["stages"][0]["in_flight"], 16)
        less = ["--gpus", "2", "--gpu-memory", str(first["memory_bytes"] - 1)]
        limited = parse(self.succeed(*given, *less, "--json")[0])
        self.assertTrue(limited["stages"][0]["recompute"], limited)
        self.assertLess(limited["stages"][0]["memory_bytes"], first["memory_bytes"])
        # Where nothing may be computed again, it runs one forward less ahead.
        shorter = parse(self.succeed(*given, *less, "--recompute", "none", "--json")[0])["stages"][0]
        self.assertEqual((shorter["in_flight"], shorter["recompute"]), (15, False))
        self.assertLess(shorter["memory_bytes"], first["memory_bytes"])
        self.refused("resource", *given, "--gpus", "2", "--gpu-memory", str(first["memory_bytes"] // 16), "--recompute", "none")

    def test_gradients_of_tied_weights_take_their_time(self):
        """Each of two stages sends its own to the other."""
        layers = [node("MatMul", ["x", "w"], ["h"], "first"), node("Relu", ["h"], ["r"], "relu"), node("MatMul", ["r", "w"], ["y"], "second")]
        weights = [tensor("w", [256, 256], [(i % 7 - 3) / 100 for i in range(256 * 256)])]
        self.write("tied.onnx", model(layers, [value_info("x", ["batch", 256])], [value_info("y", ["batch", 256])], weights))
        self.write_topology([{"name": "link", "count": 2, "bytes_per_second": 1e6, "latency_microseconds": 1}],
                            {"teraflops_per_second": 1, "memory_gigabytes_per_second": 100})
        out, _ = self.succeed("simulate", "tied.onnx", "--topology", "links.json", "--split", "second", "--schedule", "1f1b",
                              "--batch-size", "4", "--micro-batches", "2", "--json")
        seconds = parse(out)["rows"][0]["step_ms"] / 1e3
        self.assertGreater(seconds, 2 * 256 * 256 * 4 / 1e6)
        self.assertLess(seconds, 3 * 256 * 256 * 4 / 1e6)
        # Of the usual schedules one cannot update them.
        out, err = self.succeed("simulate", "tied.onnx", "--topology", "links.json", "--split", "second", "--batch-size", "4", "--json")
        self.assertEqual([(row["schedule"], row["micro_batches"]) for row in parse(out)["rows"]], [("gpipe", 2), ("gpipe", 4), ("1f1b", 2), ("1f1b", 4)])
        self.assertIn("pipedream is left out: ", err)

    def test_what_a_stage_keeps_to_recompute_is_counted_once(self):
        """Its inputs of all micro-batches lie in receive buffers, all else that it holds is of one micro-batch."""
        layers = [node("MatMul", ["x", "a"], ["h"], "first"), node("Relu", ["h"], ["r"], "relu"),
                  node("MatMul", ["r", "b"], ["s"], "second"), node("Tanh", ["s"], ["t"], "tanh"), node("MatMul", ["t", "c"], ["y"], "third")]
        weights = [tensor(name, [rows, 256], [(i % 7 - 3) / 100 for i in range(rows * 256)]) for name, rows in (("a", 64), ("b", 256), ("c", 256))]
        self.write("three.onnx", model(layers, [value_info("x", ["batch", 64])], [value_info("y", ["batch", 256])], weights))
        self.write_topology([{"name": "link", "count": 2, "bytes_per_second": 1e9, "latency_microseconds": 1}],
                            {"teraflops_per_second": 1, "memory_gigabytes_per_second": 100})
        activations = []
        for micro_batches in (2, 8):
            out, _ = self.succeed("plan", "three.onnx", "--topology", "links.json", "--split", "second", "--schedule", "gpipe", "--recompute", "all",
                                  "--batch-size", str(64 * micro_batches), "--micro-batches", str(micro_batches))
            peak = next(line for line in out.splitlines() if line.startswith("peak"))
            self.assertIn(" on device 1 ", peak)
            self.assertIn(f"receive buffers {64 * 256 * 4 // 1024 * micro_batches} KiB,", peak)
            activations.append(peak.split("activations ")[1].split(",")[0])
        self.assertEqual(activations[0], activations[1])

    def test_a_stage_can_be_removed(self):
        del self.plan["stages"][1]
        followed, _ = self.train()
        self.assertEqual(self.starts(followed), self.starts(self.plan))

    def test_a_stage_can_be_named_by_its_node_alone(self):
        for stage in self.plan["stages"]:
            del stage["first_index"]
        self.plan["stages"][2]["first_node"] = "block.conv2"
        followed, _ = self.train()
        self.assertEqual(followed["stages"][2]["first_node"], "block.conv2")

    def refuse(self, *says):
        self.write("plan.json", json.dumps(self.plan))
        self.refused("usage", "train", "-m", MODEL, "--device", "cpu", "--plan", "plan.json", "--max-steps", "1",
                     says=says)
        self.assertFalse((self.folder / "runs").exists())

    def test_a_wrong_field_is_named(self):
        self.plan["stages"][1]["first_index"] = "five"
        self.refuse("plan.json", "stages", "first_index")

    def test_a_start_outside_of_the_model_is_named(self):
        self.plan["stages"][2]["first_index"] = 1000
        self.refuse("plan.json", "first_index", "1000")

    def test_stages_out_of_order_are_named(self):
        self.plan["stages"].reverse()
        self.refuse("plan.json", "stages")

    def test_an_unknown_node_is_named(self):
        self.plan["stages"][1] = {"first_node": "nonesuch"}
        self.refuse("plan.json", "first_node", "nonesuch")

    def test_a_plan_of_another_model_is_refused(self):
        self.plan["chain_nodes"] = 7
        self.refuse("plan.json", "chain_nodes", "another model")

    def test_another_schema_is_refused(self):
        self.plan["schema"] = "pipetrain.profile/1"
        self.refuse("plan.json", "pipetrain.plan/1")

    def test_an_unknown_schedule_is_refused(self):
        self.plan["schedule"] = "1f2b"
        self.refuse("schedule", "1f2b")

    def test_what_is_not_json_is_refused_with_its_place(self):
        self.write("plan.json", '{"schema": "pipetrain.plan/1", "stages": [}')
        self.refused("usage", "train", "-m", MODEL, "--device", "cpu", "--plan", "plan.json", says="plan.json")

    def test_other_devices_than_the_plans_are_refused(self):
        self.refused("usage", "train", "-m", MODEL, "--device", "cpu", "--plan", "plan.json", "--gpus", "2",
                     says=("plan.json", "3 devices", "--gpus"))

    def test_devices_of_a_plan_are_no_gpus(self):
        """Without --gpus and --device, a plan is for the CPU."""
        _, err = self.succeed("train", "-m", MODEL, "--data", DATA, "--plan", "plan.json", "--dry-run")
        self.assertIn("3 stages", err)

    def test_what_a_plan_decides_is_not_given_beside_it(self):
        for more in (["--split", "block.conv1"], ["--replicas", "2,1,1"], ["--recompute", "all"]):
            self.refused("usage", "train", "-m", MODEL, "--device", "cpu", "--plan", "plan.json", *more, says=("plan.json", more[0]))

    def test_plans_of_schedules_with_several_stages_a_device_are_followed(self):
        run = ["-m", MODEL, "--data", DATA, "--device", "cpu"]
        self.succeed("plan", *run, "--gpus", "2", "--schedule", "zb-v", "-o", "v.json")
        self.succeed("train", *run, "--plan", "v.json", "--max-steps", "2", "-q")

    def test_a_plan_for_a_file_says_that_nothing_was_searched(self):
        given = ["plan", "-m", MODEL, "--device", "cpu", "--gpus", "2"]
        for more, says in [(["-o", "p.json"], True), (["--json"], True), (["-o", "1.json", "--schedule", "1f1b"], False)]:
            _, err = self.succeed(*given, *more)
            self.assertEqual("--schedule auto searches" in err, says, err)
        self.assertNotIn("--schedule auto searches", self.succeed(*given)[1])

    def test_a_profile_is_planned_with_unless_its_times_cannot_be_added(self):
        run = ["-m", MODEL, "--device", "cpu"]
        self.succeed("profile", *run, "-o", "profile.json")
        self.succeed("plan", *run, "--gpus", "2", "--profile", "profile.json")
        profile = parse((self.folder / "profile.json").read_text())
        node = profile["nodes"][3]
        node["seconds"] = 1e308
        self.write("profile.json", json.dumps(profile))
        self.refused("usage", "plan", *run, "--profile", "profile.json", says=("profile.json", "nodes[3].seconds", "at most", node["name"]))

    def test_a_missing_file_is_named(self):
        self.refused("usage", "train", "-m", MODEL, "--device", "cpu", "--plan", "nowhere.json", says="nowhere.json")


if __name__ == "__main__":
    unittest.main()
