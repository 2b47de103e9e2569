#include "processes/heartbeat.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/process_runs.h"

namespace pipetrain::test {
namespace {

void pass(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

TEST(Heartbeat, AProcessThatComputesForLongIsNotMissed) {
  MemoryWorld world(2, 1);
  const auto errors = in_processes(world, 2, [](ProcessGroup& group) {
    const Heartbeat heartbeat(group, 4);
    if (group.rank() == 1) pass(6);
    EXPECT_EQ(group.all_gather(std::to_string(group.rank())), (std::vector<std::string>{"0", "1"}));
    group.all_gather("");  // neither ends before the other one
  });
  EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
}

TEST(Heartbeat, AProcessThatStopsIsMissed) {
  MemoryWorld world(2, 2);
  const auto errors = in_processes(world, 2, [](ProcessGroup& group) {
    std::optional<Heartbeat> heartbeat(std::in_place, group, 1);
    if (group.rank() == 0) {
      group.receive(1);
      return;
    }
    heartbeat.reset();
    const auto begin = std::chrono::steady_clock::now();
    while (!group.failure()) {
      ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
      group.listen();
      pass(0.01);
    }
    group.check_failure();
  });
  EXPECT_NE(errors[0].find("process 1"), std::string::npos) << errors[0];
  EXPECT_NE(errors[0].find("has been silent for "), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("has been silent for "), std::string::npos) << errors[1];
}

}  // namespace
}  // namespace pipetrain::test
