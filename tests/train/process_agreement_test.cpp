// What processes check of each other before a run.
#include "train/process_agreement.h"

#include <gtest/gtest.h>

#include "support/process_runs.h"

namespace pipetrain::test {
namespace {

TEST(ProcessAgreement, AnotherBuildIsNamed) {
  MemoryWorld world(3, 5);
  world.name_hosts({"node1", "node2", "node2"});
  const auto same =
      in_processes(world, 3, [](ProcessGroup& group) { check_builds(group, "1.0-a"); });
  for (const std::string& error : same) EXPECT_EQ(error, "");
  MemoryWorld other(3, 6);
  other.name_hosts({"node1", "node2", "node2"});
  const auto errors = in_processes(other, 3, [](ProcessGroup& group) {
    check_builds(group, group.rank() == 2 ? "1.0-b" : "1.0-a");
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("is another build of pipetrain (1.0-b) than process 0 (1.0-a)"),
              std::string::npos)
        << error;
    EXPECT_EQ(error.rfind("2 process 2", 0), 0U) << error;  // kUsage
  }
}

// Two processes of one machine, whatever their hosts are called, compute on the same cores.
TEST(ProcessAgreement, ProcessesOfAMachineShareItsCores) {
  MemoryWorld world(2, 7);
  world.name_hosts({"container1", "container2"});
  const auto errors = in_processes(world, 2, [](ProcessGroup& group) {
    PipelineConfig config;
    config.devices = 4;
    const CoreShare share = share_cores(config, RunSchedule(config).devices(), &group);
    EXPECT_EQ(share.devices_before, 2 * group.rank());
    EXPECT_EQ(share.sharing_devices, 4);
    ASSERT_EQ(share.groups.size(), 1U);
    EXPECT_EQ(share.groups[0].cores, share.cores);
    EXPECT_EQ(share.groups[0].devices, (std::vector<int>{0, 1, 2, 3}));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(ProcessAgreement, EachProcessHasGpusOfItsOwn) {
  EXPECT_EQ(different_gpus({0, 0, 1}, nullptr), 2);
  MemoryWorld world(2, 8);
  const auto errors = in_processes(world, 2, [](ProcessGroup& group) {
    EXPECT_EQ(different_gpus({0, 0}, &group), 2);
    EXPECT_EQ(different_gpus({0, 1, 0, 0}, &group), 3);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace pipetrain::test
