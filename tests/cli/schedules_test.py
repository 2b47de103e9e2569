"""Schedules by name and from files, as a user meets them: the bits, the plan that is followed, odd outputs."""

import os
import re
import subprocess
import threading
import unittest

from onnx_file import model, node, tensor, value_info
from program import DATA, MODEL, MODELS, PROGRAM, Case, events, parse

SCHEDULES = MODELS.parent / "schedules"
CPU = ("--device", "cpu")


class Verify(Case):
    def equal(self, *arguments):
        out, _ = self.succeed("verify", "--model", MODEL, *CPU, "-q", *arguments)
        self.assertTrue(out.startswith("bit-identical"), out)

    def test_verify_takes_rounds_that_are_shorter_than_the_pipeline(self):
        for stages, batch in (("4", "1024"), ("2", "2048")):
            self.equal("--data", DATA, "--gpus", stages, "--schedule", "pipedream", "--batch-size", batch)

    def test_verify_takes_enough_mini_batches_for_the_stashed_weights_of_replicas(self):
        """Which of 4 replicas read first with their third mini-batches."""
        out, _ = self.succeed("verify", "--model", MODEL, "--data", DATA, *CPU, "--replicas", "4,1", "--schedule", "pipedream", "--batch-size", "8",
                              "--json")
        self.assertEqual((parse(out)["equal"], parse(out)["steps"]), (True, 2 * 5))

    def test_several_stages_on_a_device_and_several_devices_on_a_stage(self):
        self.equal("--gpus", "2", "--schedule", "zb-v", "--batch-size", "16", "--micro-batches", "4")
        self.equal("--replicas", "2,1", "--schedule", "1f1b-eager", "--batch-size", "16", "--micro-batches", "4")

    def test_files(self):
        self.equal("--schedule", str(SCHEDULES / "chimera-4x4.schedule"), "--batch-size", "16")
        self.equal("--schedule", str(SCHEDULES / "dualpipev-4x8.schedule"), "--batch-size", "16", "--recompute", "all")
        # A replica that runs most of the micro-batches.
        uneven = self.write("uneven.schedule", "pipetrain-schedule 1\nname uneven\nrule sync\nstages 2\nunits 4\nplacement 0+1 1+0\n"
                            "route 0 0 0 1\ntransfers no\nedge 0>1 0\nedge 1>0 0\n"
                            "device 0: 0F0 0F1 0F2 1F3 1B3 0B0 0B1 0B2 0A 1A 0U 1U\n"
                            "device 1: 0F3 1F0 1F1 1F2 1B0 1B1 1B2 0B3 0A 1A 0U 1U\n")
        self.equal("--schedule", uneven, "--batch-size", "16")
        self.refused("usage", "train", "-m", MODEL, "--data", DATA, *CPU, "--schedule", str(SCHEDULES / "chimera-4x4.schedule"), "--batch-size",
                     "16", "--drop-last", "--accumulators", "4", says="--accumulators")
        mixed = self.write("mixed.csv", "0F0,0F1,0B0,0I1,0W1\n1F0,1B0,1F1,1I1,1W1\n")
        self.equal("--schedule", mixed, "--batch-size", "8", "--gpus", "2")

    def test_a_file_says_which_stages_recompute(self):
        again = self.write("again.schedule", "pipetrain-schedule 1\nname again\nrule sync\nstages 2\nunits 2\nplacement 0 1\nrecompute 0\n"
                           "transfers no\ndevice 0: 0F0 0F1 0R0 0B0 0R1 0B1 0U\ndevice 1: 1F0 1B0 1F1 1B1 1U\n")
        run = ["--model", MODEL, *CPU, "--schedule", again, "--batch-size", "8"]
        for given, expected in ([], [True, False]), (["--recompute", "none"], [False, False]), (["--recompute", "all"], [True, True]):
            with self.subTest(given=given):
                stages = parse(self.succeed("plan", *run, *given, "--json")[0])["stages"]
                self.assertEqual([stage["recompute"] for stage in stages], expected)
        self.equal("--schedule", again, "--batch-size", "8")

    def test_updates_of_a_file_wait_for_the_norm_of_all_gradients(self):
        early = self.write("early.schedule", "pipetrain-schedule 1\nname early\nrule sync\nstages 4\nunits 2\nplacement 0 1 0 1\ntransfers no\n"
                           "device 0: 0F0 0F1 2F0 2F1 2B0 2B1 2U 0B0 0B1 0U\ndevice 1: 1F0 1F1 3F0 3F1 3B0 3B1 3U 1B0 1B1 1U\n")
        self.equal("--schedule", early, "--batch-size", "8")
        self.equal("--schedule", early, "--batch-size", "8", "--clip-norm", "0.5")

    def test_stages_that_update_alone_cannot_limit_the_norm(self):
        for stages in ("1", "2"):
            self.refused("usage", "train", "--model", MODEL, *CPU, "--gpus", stages, "--schedule", "pipedream", "--batch-size", "8", "--clip-norm", "1",
                         "--dry-run", says="--schedule pipedream updates each stage separately, which --clip-norm does not allow; use 1f1b or gpipe")

    def test_a_file_that_does_not_fit_the_model_is_refused(self):
        start = "pipetrain-schedule 1\nname odd\nrule sync\nstages 2\nunits 1\nplacement 0 0\ntransfers no\n"
        run = ["plan", "--model", MODEL, *CPU, "--batch-size", "4", "--schedule"]
        one_way = self.write("one-way.schedule", start + "edge 0>1 0\ndevice 0: 0F0 1F0 0B0 1B0 0U 1U\n")
        self.refused("usage", *run, one_way, says=["breaks rule", "0B0"])
        self.succeed("new", "mlp", "--depth", "1", "-o", "small.onnx", "-q")
        stages = range(40)
        many = self.write("many.schedule", "pipetrain-schedule 1\nname many\nrule sync\nstages 40\nunits 1\nplacement" + 40 * " 0" +
                          "\ntransfers no\ndevice 0: " + " ".join(f"{s}F0" for s in stages) + " " +
                          " ".join(f"{s}B0 {s}U" for s in reversed(stages)) + "\n")
        self.refused("usage", "plan", "--model", "small.onnx", *CPU, "--batch-size", "4", "--schedule", many,
                     says="is written for 40 stages, but the model is cut into")

    def test_a_file_that_loses_a_micro_batch_is_refused_by_name(self):
        lost = self.write("lost.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n")
        self.refused("usage", "verify", "--model", MODEL, *CPU, "--schedule", lost, says=["lost.csv"])


    def test_a_batch_that_does_not_divide_into_the_micro_batches_of_a_file(self):
        eight = ["--model", MODEL, *CPU, "--schedule", str(SCHEDULES / "dualpipev-4x8.schedule"), "--batch-size"]
        says = "is written for 8 micro-batches, into which a batch of 18 cannot be divided; give --batch-size 16 or 24"
        for more in ([], ["--micro-batches", "8"]):
            self.refused("usage", "plan", *eight, "18", *more, says=says)
        for fits in ("16", "24"):
            self.succeed("train", *eight, fits, "--drop-last", "--dry-run")
        # A plan is of a full batch, whatever an epoch ends with: 150 samples are 9 batches and 6 samples.
        uneven = [*eight, "16", "--data", DATA, "--limit", "150"]
        self.assertIn("dualpipev-4x8", self.succeed("simulate", *uneven)[0])
        self.succeed("plan", *uneven, "-o", "plan.json")
        self.succeed("plan", "--model", MODEL, *CPU, "--batch-size", "16", "--data", DATA, "--limit", "150", "--plan", "plan.json")
        self.refused("usage", "train", *uneven, "--dry-run", says="the last batch of 150 samples is smaller; add --drop-last")
        self.refused("usage", "train", *eight, "18", "--micro-batches", "6", "--drop-last", says="not 6; set --micro-batches 8")
        # Of a model whose micro-batches have three samples.
        weights = tensor("w", [4, 4], [0.1 * (i % 7) for i in range(16)])
        three = self.write("three.onnx", model([node("MatMul", ["x", "w"], ["h"]), node("Tanh", ["h"], ["y"])], [value_info("x", [3, 4])],
                                               [value_info("y", [3, 4])], [weights]))
        two = self.write("two.schedule", "pipetrain-schedule 1\nname two\nrule sync\nstages 2\nunits 2\nplacement 0 1\ntransfers no\n"
                         "device 0: 0F0 0F1 0B0 0B1 0U\ndevice 1: 1F0 1B0 1F1 1B1 1U\n")
        self.refused("usage", "verify", "--model", three, *CPU, "--loss", "mse", "--schedule", two, "--batch-size", "9",
                     says="is written for 2 micro-batches, into which a batch of 9 cannot be divided; give --batch-size 6")


class Plans(Case):
    def test_the_schedule_of_a_plan_is_followed(self):
        self.succeed("plan", "--model", MODEL, *CPU, "--gpus", "2", "--schedule", "zb-h1", "--micro-batches", "4",
                     "-o", "plan.json", "-q")
        _, err = self.succeed("--model", MODEL, *CPU, "--plan", "plan.json", "--max-steps", "1")
        self.assertIn("plan     zb-h1", err)
        self.assertIn("= 4 micro-batches", err)

    def test_what_is_predicted_is_taken(self):
        """Also where a validation has more micro-batches under way than a step."""
        validated = ["--limit", "640", "--val-split", "128", "--batch-size", "64", "--micro-batches", "1"]
        for schedule, more in (("1f1b", []), ("zb-h1", []), ("zb-v", []), ("1f1b", validated)):
            _, err = self.succeed("--model", MODEL, "--data", DATA, *CPU, "--gpus", "2", "--schedule", schedule, *more,
                                  "--max-steps", "1", "--drop-last", "--topology", "laptop", "-v")
            memory = next(line for line in err.splitlines() if "memory   " in line)
            taken, predicted = memory.split("memory   ")[1].split(" for the stages (predicted ")
            self.assertEqual(taken, predicted.split(")")[0])

    def test_weights_that_smaller_micro_batches_prepare_again_are_predicted(self):
        """The last batch has one micro-batch, of 16 samples instead of 32; so does a validation behind its first."""
        self.succeed("new", "mlp", "--depth", "4", "--width", "256", "--image", "8", "--channels", "1", "--classes", "10", "-o", "mlp.onnx", "-q")
        for more in (["--limit", "80"], ["--limit", "128", "--val-split", "48", "--drop-last"]):
            _, err = self.succeed("--model", "mlp.onnx", "--data", DATA, *CPU, "--gpus", "2", "--batch-size", "64", "--micro-batches", "2",
                                  *more, "--max-steps", "1", "--topology", "laptop", "-v")
            memory = next(line for line in err.splitlines() if "memory   " in line)
            taken, predicted = memory.split("memory   ")[1].split(" for the stages (predicted ")
            self.assertEqual(taken, predicted.split(")")[0])

    def test_what_is_predicted_is_taken_where_replicas_share_updates(self):
        for replicas in ("3", "2,1"):
            run = ["--model", MODEL, *CPU, "--replicas", replicas, "--batch-size", "48", "--micro-batches", "6", "--topology", "laptop"]
            totals = []
            for more in ([], ["--shard-optimizer"]):
                _, err = self.succeed(*run, *more, "--data", DATA, "--max-steps", "1", "--drop-last", "-v")
                memory = next(line for line in err.splitlines() if "memory   " in line)
                taken, predicted = memory.split("memory   ")[1].split(" for the stages (predicted ")
                self.assertEqual(taken, predicted.split(")")[0])
                totals.append(parse(self.succeed("plan", *run, *more, "--json")[0])["stages"][0]["memory"]["optimizer"])
            self.assertAlmostEqual(totals[1] / totals[0], 1 / int(replicas[0]), delta=0.01)

    def test_updates_are_shared_where_they_can_be(self):
        replicas = ["--model", MODEL, "--data", DATA, *CPU, "--max-steps", "1", "--shard-optimizer"]
        self.refused("usage", *replicas, "--replicas", "2", "--schedule", "pipedream", "--micro-batches", "1",
                     says=["--shard-optimizer needs a synchronous schedule such as 1f1b, but --schedule pipedream"])
        _, err = self.succeed(*replicas, "--gpus", "1", "-v")
        self.assertIn("--shard-optimizer changes nothing: no stage has several --replicas", err)

    def test_a_plan_has_one_set_of_numbers(self):
        out, _ = self.succeed("plan", MODEL, *CPU, "--gpus", "4")
        row = next(line for line in out.splitlines() if "<- chosen" in line)
        step = re.search(r"predicted step ([\d.]+ \w?s) · bubble ([\d.]+) %", out)
        self.assertIn(f" {step[1]} ", row)
        self.assertIn(f" {step[2]}%", row)
        axis = out.rstrip().splitlines()[-1].split()  # of the drawing: 0 to the end of the step
        shown, predicted = float(axis[1]), float(step[1].split()[0])
        self.assertEqual(axis[2], step[1].split()[1])
        self.assertAlmostEqual(shown / predicted, 1, delta=0.01)
        self.assertIn("searched: ", out)

    def test_the_nodes_of_a_split_say_how_many_devices_there_are(self):
        split = ["--data", DATA, "--device", "cpu", "--split", "block.conv1,last.conv"]
        self.assertEqual(self.stages("train", MODEL, *split), self.stages("train", MODEL, *split, "--gpus", "3"))
        self.refused("usage", "train", MODEL, *split, "--gpus", "2", says="--split names 3 stages for 3 devices, but --gpus is 2")
        # Two of its stages are on each device.
        split[-1] = "wide.conv,block.conv1,last.conv"
        on_two = self.stages("train", MODEL, *split, "--schedule", "interleaved-1f1b")
        self.assertEqual(on_two, self.stages("train", MODEL, *split, "--schedule", "interleaved-1f1b", "--gpus", "2"))
        rows = parse(self.succeed("simulate", MODEL, *split, "--schedules", "1f1b,interleaved-1f1b", "--micro-batches", "4", "--json")[0])["rows"]
        self.assertEqual([len(row["peak_bytes"]) for row in rows], [4, 4])

    def test_the_nodes_of_a_split_have_names_or_positions(self):
        def starts(split):
            return [stage["first_index"] for stage in parse(self.succeed("plan", MODEL, *CPU, "--split", split, "--json")[0])["stages"]]

        named = starts("block.conv1,last.conv")
        self.assertEqual(starts(f"{named[1]},{named[2]}"), named)
        self.assertEqual(starts(f"{named[1]},last.conv"), named)
        for position in ("0", "9999"):
            self.refused("usage", "plan", MODEL, *CPU, "--split", position, says=f"a stage would begin at node {position}, but cuts lie between 1 and")

    def test_a_search_keeps_the_limit_on_micro_batches(self):
        taking = {each["name"] for each in parse(self.succeed("schedule", "list", "--json")[0])["schedules"] if each["takes_memory_units"]}
        plan = parse(self.succeed("plan", MODEL, *CPU, "--gpus", "4", "--schedule", "auto:memory-units=2", "--json")[0])
        self.assertEqual(plan["memory_units"], 2)
        self.assertIn(plan["schedule"], taking)

    def stages(self, *arguments):
        """What a dry run says of the stages and their threads."""
        return [line for line in self.succeed(*arguments, "-v", "--dry-run")[1].splitlines() if "thread" in line]

    def test_an_estimate_is_not_printed_as_a_prediction(self):
        self.succeed("new", "mlp", "--depth", "4", "--width", "1024", "-o", "wide.onnx", "-q")
        run = ["train", "--model", "wide.onnx", *CPU, "--batch-size", "2048", "--micro-batches", "2", "--max-steps", "3", "--save-every", "never"]
        _, err = self.succeed(*run, "--gpus", "1")
        self.assertNotIn("predicted", err)
        _, err = self.succeed(*run, "--gpus", "2", "--overwrite")  # which is measured before it is cut
        self.assertIn("predicted step", next(line for line in err.splitlines() if line.startswith("plan")))

    def test_a_node_that_combines_samples_is_named(self):
        weights = tensor("w", [4, 4], [0.1 * (i % 7) for i in range(16)])
        path = self.write("pairs.onnx", model([node("MatMul", ["x", "w"], ["h"], "linear"), node("Transpose", ["h"], ["t"]),
                                               node("MatMul", ["h", "t"], ["s"], "similarity"), node("MatMul", ["s", "h"], ["y"])],
                                              initializers=[weights]))
        run = ["train", "--model", path, *CPU, "--loss", "mse", "--batch-size", "8", "--max-steps", "1", "--save-every", "never",
               "--overwrite"]
        note = 'note     node "similarity" (MatMul) combines samples, but only those of its micro-batch'
        for parts, said in ((("--micro-batches", "4"), True), (("--micro-batch-size", "1"), True), (("--micro-batches", "1"), False)):
            with self.subTest(parts=parts):
                _, err = self.succeed(*run, *parts)
                self.assertEqual(note in err, said, err)

    def test_the_optimizers_state_takes_memory(self):
        def peak(*more):
            return parse(self.succeed("plan", MODEL, *CPU, "--gpus", "2", "--schedule", "1f1b", "--json", *more)[0])
        heavy, light = (sum(stage["memory_bytes"] for stage in peak("--optimizer", name)["stages"]) for name in ("adamw", "sgd"))
        self.assertGreater(heavy, light)

    def test_more_stages_than_nodes_are_fewer_stages(self):
        self.succeed("new", "mlp", "--depth", "1", "-o", "small.onnx", "-q")
        for schedule in ("1f1b", "zb-v", "interleaved-1f1b"):
            given = ["--model", "small.onnx", *CPU, "--gpus", "40", "--schedule", schedule, "--batch-size", "64", "--micro-batches", "8"]
            out, _ = self.succeed("plan", *given)
            self.assertRegex(out, r"note  \d+ stages were asked for, but the model has only \d+ nodes to put into stages")
            self.succeed("verify", *given, "-q")

    def test_a_topology_without_room_is_refused(self):
        small = (MODELS.parent / "topologies" / "laptop.json").read_text()
        start = small.index('"memory_gibibytes":')
        end = small.index(",", start)
        path = self.write("small.json", small[:start] + '"memory_gibibytes": 0.0001' + small[end:])
        on_it = ["--model", MODEL, *CPU, "--gpus", "2", "--schedule", "1f1b", "--topology", path]
        for command in (["plan"], ["train", "--max-steps", "1", "--run-dir", "run", "--overwrite"], ["verify"]):
            with self.subTest(command=command[0]):
                self.refused("resource", *command, *on_it)
                self.succeed(*command, *on_it, "--gpu-memory", "1GiB", "-q")

    def test_what_has_no_room_together_names_the_limit(self):
        """Each stage fits by itself, but not with the other one of its device."""
        run = ["-m", MODEL, *CPU, "--gpus", "2", "--schedule", "zb-v", "--split", "block.conv1,block.norm2,last.conv", "--batch-size", "64",
               "--micro-batches", "4", "--recompute", "none"]
        stages = parse(self.succeed("plan", *run, "--topology", "laptop", "--json")[0])["stages"]
        limit = max(stage["memory_bytes"] for stage in stages) * 51 // 50
        laptop = (MODELS.parent / "topologies" / "laptop.json").read_text()
        topology = self.write("small.json", re.sub('"memory_gibibytes": *[0-9.]+', f'"memory_bytes": {limit}', laptop))
        train = ["train", *run, "--max-steps", "1", "--run-dir", "run"]
        self.refused("resource", *train, "--topology", topology, says=["more than the memory of a device of --topology, which is", "a higher --gpu-memory"])
        self.refused("resource", *train, "--gpu-memory", str(limit), says=["more than --gpu-memory, which is", "a higher limit"])

    def test_what_is_chosen_takes_the_time_that_was_promised(self):
        self.succeed("new", "gpt", "--layers", "4", "--width", "512", "--heads", "8", "--vocab", "65536", "--context", "2048",
                     "--weights", "none", "-o", "hollow.onnx", "-q")
        # One sample does not take a share of a kernel's time; all samples at once are too many for any memory.
        for batch in ("32", "4096"):
            out, err = self.succeed("plan", "--model", "hollow.onnx", "--gpus", "4", "--topology", "dgx-h100x8", "--batch-size", batch)
            promised = re.search(r" ([\d.]+ \w?s)/step", err)[1]
            predicted = re.search(r"predicted step ([\d.]+ \w?s) ", out)[1]
            self.assertEqual(promised.split()[1], predicted.split()[1])
            self.assertAlmostEqual(float(promised.split()[0]) / float(predicted.split()[0]), 1, delta=0.1)

    def test_numbers_do_not_wrap(self):
        self.refused("usage", "schedule", "show", "1f1b", "--stages", "4294967298", says=["--gpus", "at most"])

    def test_a_model_without_weights_is_not_trained(self):
        self.succeed("new", "gpt", "--layers", "1", "--width", "8", "--heads", "2", "--vocab", "50", "--context", "8",
                     "--weights", "none", "-o", "hollow.onnx", "-q")
        self.refused("model", "--model", "hollow.onnx", *CPU, "--max-steps", "1")


class Show(Case):
    def test_replicas_add_up_to_the_devices(self):
        show = ["schedule", "show", "1f1b", "--replicas"]
        for more in ([], ["--gpus", "3"]):
            shown = parse(self.succeed(*show, "2,1", *more, "--json")[0])
            self.assertEqual((shown["stages"], shown["devices"]), (2, 3))
        self.refused("usage", *show, "2,1", "--gpus", "2", says="--replicas needs 3 devices, but --gpus is 2")
        self.refused("usage", *show, "auto", "--gpus", "3", says="--replicas auto needs a model")
        self.refused("usage", "schedule", "show", "zb-v", "--replicas", "1,1,1,1", "--gpus", "4", says=["one stage per device", "zb-v has 2"])


class Validation(Case):
    def test_asynchronous_schedules_validate_where_they_drain(self):
        """At the ends of epochs, here of seven steps."""
        self.succeed("train", MODEL, "--data", DATA, "--limit", "134", "--val-split", "22", "-b", "16", "--epochs", "4", "--val-every", "10",
                     "--device", "cpu", "--gpus", "2", "--schedule", "pipedream", "--run-dir", "run", "-q")
        steps = [e["step"] for e in events((self.folder / "run/events.jsonl").read_text()) if e["event"] == "val"]
        self.assertEqual(steps, [14, 21, 28])


class Outputs(Case):
    def test_a_pipe_is_written_and_not_replaced(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        read = []
        reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
        reader.start()
        self.succeed("schedule", "export", "1f1b", "-o", str(pipe))
        reader.join(60)
        self.assertTrue(pipe.is_fifo())
        self.assertTrue(read and read[0].startswith("pipetrain-schedule 1"), read)

    def test_a_full_standard_output_is_an_error(self):
        with open("/dev/full", "wb") as full:
            run = subprocess.run([PROGRAM, "schedule", "list"], stdout=full, stderr=subprocess.PIPE, check=False)
        self.assertEqual(run.returncode, 5, run.stderr)


if __name__ == "__main__":
    unittest.main()
