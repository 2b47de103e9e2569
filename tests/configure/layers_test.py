"""scripts/check_layers.py finds an include that a layer may not have, however it is written, and an option below cli/."""
import os, pathlib, subprocess, sys, tempfile, unittest

SOURCES = pathlib.Path(os.environ["PIPETRAIN_SOURCES"])


def check(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        done = subprocess.run([sys.executable, SOURCES / "scripts/check_layers.py", folder], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


class Layers(unittest.TestCase):
    def refused(self, name, include, words):
        code, text = check({name: f'#pragma once\n#include "{include}"\n'})
        self.assertEqual(code, 1, text)
        self.assertIn(f"{name}:2:", text)
        self.assertIn(words, text)

    def test_the_sources_pass(self):
        done = subprocess.run([sys.executable, SOURCES / "scripts/check_layers.py", SOURCES / "src"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_downward_and_own_includes_pass(self):
        code, text = check({
            "base/error.h": "", "pipeline/stage/stage.h": '#include "pipeline/transport/channel.h"\n#include "pipeline/stage/slice.h"\n',
            "train/pipeline_run.h": '#include "pipeline/runtime/runtime.h"\n#include <vector>\n', "ops/cuda/kernels_cuda.h": '#include "gpu/launch.h"\n',
            "cuda/toolkit/gpu/launch.h": "#include <cuda_runtime.h>\n", "onnx_io/model.cpp": '#include "pt_onnx.pb.h"\n',
        })
        self.assertEqual((code, text), (0, ""))

    def test_an_upward_include_fails(self):
        self.refused("device/device.h", "ops/kernel/kernel.h", "device/ may not include ops/")
        self.refused("ops/kernel/kernel.h", "cuda/device_cuda.h", "ops/kernel/ may not include cuda/")

    def test_an_upward_include_between_subdirectories_fails(self):
        self.refused("pipeline/program/check.h", "pipeline/simulate/simulate.h", "pipeline/program/ may not include pipeline/simulate/")
        self.refused("data/rows/dataset.h", "data/loading/loader.h", "data/rows/ may not include data/loading/")

    def test_a_subdirectory_that_another_directory_may_not_use_fails(self):
        self.refused("partition/plan.h", "pipeline/program/program.h", "partition/ may not include pipeline/program/")

    def test_a_bare_include_fails(self):
        self.refused("device/queue_cuda.h", "cuda_launch.h", "names no directory")

    def test_an_unknown_directory_fails(self):
        code, text = check({"pipeline/other/file.h": ""})
        self.assertEqual(code, 1)
        self.assertIn("does not know the directory pipeline/other/", text)
        self.refused("base/error.h", "pipeline/flat.h", "base/ may not include pipeline/")

    def test_a_file_opened_by_name_fails(self):
        for opens in ["std::ifstream in(path);", "int d = ::open(path.c_str(), O_RDONLY);", 'FILE* f = std::fopen(path, "r");']:
            code, text = check({"train/network.cpp": opens + "\n"})
            self.assertEqual(code, 1, opens)
            self.assertIn("network.cpp:1: " + opens, text)
        for passes in ["auto f = FileBytes::open(path);", "int d = ::open(path.c_str(), O_RDONLY | O_DIRECTORY);"]:
            self.assertEqual(check({"train/network.cpp": passes + "\n"}), (0, ""))

    def test_an_option_that_a_message_below_cli_spells_fails(self):
        message = 'PT_FAIL(kUsage, "too few samples; "\n        "use a smaller --batch-size", 1);\n'
        code, text = check({"train/network.cpp": message})
        self.assertEqual(code, 1)
        self.assertIn("network.cpp:2: train/ spells --batch-size", text)
        code, text = check({"cli/commands/commands.cpp": message})
        self.assertEqual((code, text), (0, ""))

    def test_comments_settings_and_flags_of_other_programs_pass(self):
        code, text = check({
            "train/network.cpp": '// "--batch-size"\nPT_FAIL(kUsage, "use a smaller {}", setting("batch-size"));\nint i = --at;\n',
            "processes/launch.cpp": 'const char* text = "use srun --mpi=pmix";\n', "zoo/gpt.cpp": 'const char* line = "a ---b-- c";\n',
        })
        self.assertEqual((code, text), (0, ""))


if __name__ == "__main__":
    unittest.main()
