#include "processes/process_group.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "support/process_runs.h"

namespace pipetrain::test {
namespace {

/// Whether each process can read each other one, as a text of 0 and 1 for each.
std::vector<std::string> who_reads(MemoryWorld& world, int count,
                                   std::vector<std::optional<bool>>& hosts) {
  std::vector<std::string> reads(static_cast<std::size_t>(count));
  hosts.resize(reads.size());
  const auto errors = in_processes(world, count, [&](ProcessGroup& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    for (int peer = 0; peer < count; ++peer) reads[rank] += group.can_read(peer) ? '1' : '0';
    hosts[rank] = group.hosts_read();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return reads;
}

using Texts = std::vector<std::string>;

TEST(ProcessGroup, ReadsProcessesOfItsHost) {
  std::vector<std::optional<bool>> hosts;
  MemoryWorld all(3, 1);
  all.share_memory(true);
  EXPECT_EQ(who_reads(all, 3, hosts), (Texts{"011", "101", "110"}));
  EXPECT_EQ(hosts, std::vector<std::optional<bool>>(3, true));

  MemoryWorld two(3, 2);
  two.share_memory(true);
  two.name_hosts({"a", "b", "b"});
  EXPECT_EQ(who_reads(two, 3, hosts), (Texts{"000", "001", "010"}));
  EXPECT_EQ(hosts, std::vector<std::optional<bool>>(3, true));

  MemoryWorld apart(2, 3);
  apart.share_memory(true);
  apart.name_hosts({"a", "b"});
  EXPECT_EQ(who_reads(apart, 2, hosts), (Texts{"00", "00"}));
  EXPECT_EQ(hosts, std::vector<std::optional<bool>>(2, std::nullopt));
}

// Both ends agree where one may not read.
TEST(ProcessGroup, ReadsOnlyWhereBothMay) {
  std::vector<std::optional<bool>> hosts;
  MemoryWorld world(3, 4);
  world.share_memory(true);
  world.share_memory(1, false);
  EXPECT_EQ(who_reads(world, 3, hosts), (Texts{"001", "000", "100"}));
  EXPECT_EQ(hosts, std::vector<std::optional<bool>>(3, false));
}

// In another container, a process ID is that of another process.
TEST(ProcessGroup, ReadsOnlyTheRightProcess) {
  std::vector<std::optional<bool>> hosts;
  MemoryWorld world(2, 5);
  world.share_memory(true);
  world.set_reads(MemoryWorld::Reads::kOthers);
  EXPECT_EQ(who_reads(world, 2, hosts), (Texts{"00", "00"}));
  EXPECT_EQ(hosts, std::vector<std::optional<bool>>(2, false));
}

// What only one process meets is an error in all, and they go on alike.
TEST(ProcessGroup, FailsTogether) {
  constexpr int kCount = 3;
  MemoryWorld world(kCount, 6);
  world.name_hosts({"a", "b", "c"});
  Texts caught(kCount);
  const auto errors = in_processes(world, kCount, [&](ProcessGroup& group) {
    group.fail_together({});
    std::optional<Error> mine;
    if (group.rank() == 1) mine.emplace(ErrorKind::kData, "there is no file");
    try {
      group.fail_together(mine);
    } catch (const Error& error) {
      caught[static_cast<std::size_t>(group.rank())] =
          fmt::format("{} {}", static_cast<int>(error.kind()), error.what());
    }
    EXPECT_EQ(group.failed_together(), 1);
    group.fail_together({});
    EXPECT_EQ(group.failed_together(), -1);
    EXPECT_TRUE(group.can_go_on());
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  const std::string elsewhere = "4 there is no file\n  while in process 1 on b";
  EXPECT_EQ(caught, (Texts{elsewhere, "4 there is no file", elsewhere}));
}

}  // namespace
}  // namespace pipetrain::test
