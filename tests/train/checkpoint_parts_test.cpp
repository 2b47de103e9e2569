#include "train/checkpoint_parts.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/memory_processes.h"
#include "support/process_runs.h"
#include "support/temporary_directory.h"
#include "train/saving.h"

namespace pipetrain {
namespace {

TEST(CheckpointParts, ProcessZeroSaysForWhomTheyWait) {
  const TemporaryDirectory folder;
  test::MemoryWorld world(2, /*seed=*/3);
  testing::internal::CaptureStderr();
  const std::vector<std::string> errors = test::in_processes(world, 2, [&](ProcessGroup& group) {
    SaveSettings settings;
    if (group.leads()) settings.folder = folder / "checkpoints";
    settings.patience_seconds = 0.005;
    Saving saving(settings, 0, 8);
    CheckpointParts parts(group, saving, settings.folder, /*only_finite=*/true);
    ASSERT_TRUE(parts.is_shared());
    Checkpoint whole, part;
    whole.step = part.step = 12;
    // The other one takes longer to hash.
    const std::int64_t rows = group.leads() ? 1 : 4096;
    part.weights[group.leads() ? "small" : "large"] =
        HostTensor(TensorType{DType::kFloat32, Shape{rows, 4096}});
    parts.save(whole, part);
    parts.finish();
    EXPECT_FALSE(parts.is_pending());
    saving.finish();
    if (group.leads()) EXPECT_EQ(saving.last_written().filename(), "step-000012");
  });
  const std::string said = testing::internal::GetCapturedStderr();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_NE(said.find("warning: training has waited 0."), std::string::npos) << said;
  EXPECT_NE(said.find(" s for process 1"), std::string::npos) << said;
  EXPECT_NE(said.find(" to write parts of the checkpoint of step 12\n"), std::string::npos) << said;
}

}  // namespace
}  // namespace pipetrain
