// Links between processes, measured with messages and with reads of memory.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/index.h"
#include "processes/link_measure.h"
#include "processes/process_group.h"
#include "support/memory_processes.h"
#include "support/process_runs.h"

namespace pipetrain::test {
namespace {

/// What all processes measured, which is the same. They are on one machine or each on its own.
ProcessLinks measured(MemoryWorld& world, int count, bool on_one_machine = true) {
  std::vector<ProcessLinks> links(at(count));
  const std::vector<std::string> errors = in_processes(world, count, [&](ProcessGroup& group) {
    const std::string machine = on_one_machine ? "m" : std::to_string(group.rank());
    links[at(group.rank())] = measure_process_links(group, machine);
  });
  EXPECT_EQ(errors, std::vector<std::string>(at(count)));
  for (const ProcessLinks& other : links) {
    EXPECT_EQ(other.on_host.bytes_per_second, links[0].on_host.bytes_per_second);
    EXPECT_EQ(other.on_host.read_bytes_per_second, links[0].on_host.read_bytes_per_second);
    EXPECT_EQ(other.between.latency_seconds, links[0].between.latency_seconds);
  }
  return links[0];
}

TEST(ProcessLinks, AreMeasuredOnHostsAndBetweenThem) {
  for (const std::vector<std::string>& hosts :
       {std::vector<std::string>{"a", "a", "b", "b"}, {"a", "b", "b", "b", "c", "c"}}) {
    for (const bool on_one_machine : {false, true}) {
      const int count = static_cast<int>(hosts.size());
      MemoryWorld world(count, 1);
      world.name_hosts(hosts);
      world.share_memory(true);
      const ProcessLinks links = measured(world, count, on_one_machine);
      EXPECT_TRUE(links.on_hosts && links.between_hosts);
      for (const ProcessLink& link : {links.on_host, links.between}) {
        EXPECT_GT(link.latency_seconds, 0);
        EXPECT_GT(link.bytes_per_second, 0);
        EXPECT_GT(link.both_bytes_per_second, 0);
      }
      EXPECT_GT(links.on_host.read_bytes_per_second, 0);
      EXPECT_EQ(links.between.read_bytes_per_second, 0) << "the memory of another host";
    }
  }
}

// The first two of a host are measured, for the third as well.
TEST(ProcessLinks, NobodyReadsWhereOneProcessCannot) {
  MemoryWorld world(3, 1);
  world.share_memory(true);
  world.share_memory(2, false);
  EXPECT_EQ(measured(world, 3).on_host.read_bytes_per_second, 0);
}

TEST(ProcessLinks, OneHostHasNoLinksToOthers) {
  MemoryWorld world(2, 2);
  world.share_memory(false);
  const ProcessLinks links = measured(world, 2);
  EXPECT_TRUE(links.on_hosts);
  EXPECT_EQ(links.on_host.read_bytes_per_second, 0);
  EXPECT_FALSE(links.between_hosts);
}

}  // namespace
}  // namespace pipetrain::test
