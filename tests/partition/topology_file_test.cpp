#include "partition/topology_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/error.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

const std::filesystem::path kTopologies =
    std::filesystem::path(PIPETRAIN_SOURCE_DIR) / "topologies";

constexpr std::string_view kTwoLevels = R"({
  "schema": "pipetrain.topology/1", "name": "two servers", "source": "made up",
  "levels": [{"name": "NVLink", "count": 3, "gigabytes_per_second": 450, "latency_microseconds": 2},
             {"name": "network", "count": 2, "bytes_per_second": 5e10, "latency_seconds": 5e-6}],
  "device": {"memory_gibibytes": 80, "teraflops_per_second": 600,
             "memory_gigabytes_per_second": 3350, "speed": [1, 1, 1, 0.5, 0.5, 0.5]}})";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::string error_of(const std::string& text) {
  try {
    parse_topology(text, "t.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message();
  }
  return "no error";
}

TEST(TopologyFile, ReadsBothUnits) {
  const Topology topology = parse_topology(kTwoLevels, "t.json");
  EXPECT_EQ(topology.name, "two servers");
  ASSERT_EQ(topology.levels.size(), 2U);
  EXPECT_EQ(topology.levels[0].name, "NVLink");
  EXPECT_DOUBLE_EQ(topology.levels[0].bytes_per_second, 450e9);
  EXPECT_DOUBLE_EQ(topology.levels[0].latency_seconds, 2e-6);
  EXPECT_DOUBLE_EQ(topology.levels[1].bytes_per_second, 50e9);
  EXPECT_DOUBLE_EQ(topology.levels[1].latency_seconds, 5e-6);
  EXPECT_EQ(topology.devices(), 6);
  EXPECT_EQ(topology.memory_bytes, std::size_t{80} << 30);
  EXPECT_DOUBLE_EQ(topology.flops_per_second, 600e12);
  EXPECT_DOUBLE_EQ(topology.memory_bytes_per_second, 3350e9);
  EXPECT_EQ(topology.device_speed, (std::vector<double>{1, 1, 1, 0.5, 0.5, 0.5}));
}

TEST(TopologyFile, WritingAndReadingGivesTheSameNumbers) {
  const Topology before = parse_topology(kTwoLevels, "t.json");
  const TemporaryDirectory folder;
  write_topology(folder / "t.json", before, "made up");
  const Topology after = read_topology(folder / "t.json");
  EXPECT_EQ(topology_text(after, "made up"), get_file(folder / "t.json"));
  EXPECT_EQ(after.levels[1].latency_seconds, before.levels[1].latency_seconds);
  EXPECT_EQ(after.levels[0].bytes_per_second, before.levels[0].bytes_per_second);
  EXPECT_EQ(after.memory_bytes, before.memory_bytes);
  EXPECT_EQ(after.device_speed, before.device_speed);
}

TEST(TopologyFile, ALevelMayHaveARateOfSums) {
  const auto rate_of = [](const std::string& more) {
    const Topology topology =
        parse_topology(replaced(std::string(kTwoLevels), "\"gigabytes_per_second\": 450",
                                "\"gigabytes_per_second\": 450" + more),
                       "t.json");
    const Topology again = parse_topology(topology_text(topology), "t.json");
    EXPECT_EQ(again.levels[0].all_reduce_bytes_per_second,
              topology.levels[0].all_reduce_bytes_per_second);
    EXPECT_EQ(topology.levels[0].bytes_per_second, 450e9);
    EXPECT_EQ(topology.levels[1].all_reduce_rate(), 50e9);
    return topology.levels[0].all_reduce_rate();
  };
  EXPECT_EQ(rate_of(""), 450e9);
  EXPECT_EQ(rate_of(R"(, "all_reduce_gigabytes_per_second": 0)"), 450e9);
  EXPECT_EQ(rate_of(R"(, "all_reduce_gigabytes_per_second": 700)"), 700e9);
  EXPECT_EQ(rate_of(R"(, "all_reduce_bytes_per_second": 1e9)"), 1e9);
}

TEST(TopologyFile, ADeviceMayBeLeftOut) {
  const Topology topology = parse_topology(
      R"({"schema": "pipetrain.topology/1", "levels": [{"count": 2, "bytes_per_second": 1}]})",
      "t.json");
  EXPECT_EQ(topology.devices(), 2);
  EXPECT_EQ(topology.memory_bytes, 0U);
  EXPECT_EQ(topology.levels[0].latency_seconds, 0);
}

TEST(TopologyFile, AnErrorNamesTheField) {
  const std::string good(kTwoLevels);
  const auto expect = [&](const std::string& from, const std::string& to, const char* part) {
    const std::string message = error_of(replaced(good, from, to));
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(message.find("t.json"), 0U) << message;
  };
  expect("\"count\": 3", "\"count\": 0", "levels[0].count must be an integer between 1");
  expect("\"count\": 3, ", "", "levels[0] lacks the field \"count\"");
  expect("\"count\": 3", "\"cuont\": 3", "levels[0] has an unknown field \"cuont\"");
  expect("\"gigabytes_per_second\": 450", "\"gigabytes_per_second\": 0", "levels[0] needs");
  expect("\"gigabytes_per_second\": 450", "\"gigabytes_per_second\": \"fast\"",
         "levels[0].gigabytes_per_second must be");
  expect("\"bytes_per_second\": 5e10", "\"bytes_per_second\": 5e10, \"gigabytes_per_second\": 50",
         "levels[1] has both");
  expect("\"bytes_per_second\": 5e10",
         "\"bytes_per_second\": 5e10, \"all_reduce_bytes_per_second\": 1e-4",
         "levels[1] needs an all_reduce_gigabytes_per_second");
  expect("\"latency_seconds\": 5e-6", "\"latency_seconds\": -1", "levels[1].latency_seconds");
  expect("0.5, 0.5]", "0.5]", "device.speed has 5 numbers, but the levels make 6 devices");
  expect("[1, 1, 1,", "[1, 0, 1,", "device.speed[1]");
  expect("\"count\": 2", "\"count\": 1000000", "more than");
  expect("topology/1", "plan/1", "pipetrain.plan/1");
  EXPECT_NE(error_of(R"({"schema": "pipetrain.topology/1", "levels": []})").find("lists no level"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"schema": "pipetrain.topology/1", "levels": [3]})").find("levels[0]"),
            std::string::npos);
  EXPECT_NE(error_of("{").find("t.json"), std::string::npos);
}

TEST(TopologyFile, EveryShippedOneIsReadAndCitesItsNumbers) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kTopologies)) {
    const Topology topology = read_topology(entry.path());
    EXPECT_FALSE(topology.name.empty()) << entry.path();
    EXPECT_GT(topology.memory_bytes, 0U) << entry.path();
    EXPECT_NE(get_file(entry.path()).find("\"source\": \""), std::string::npos) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 7);
  const Topology dgx = read_topology(kTopologies / "dgx-h100x8.json");
  EXPECT_EQ(dgx.group_size(0), 8);
  EXPECT_GE(dgx.devices(), 1024);
  EXPECT_DOUBLE_EQ(dgx.levels[1].bytes_per_second, 400e9 / 8);
  const Topology a = read_topology(kTopologies / "pipedream-a.json");
  EXPECT_EQ(a.devices(), 16);
  EXPECT_DOUBLE_EQ(a.levels[1].bytes_per_second, 10e9 / 8);
  const Topology horovod = read_topology(kTopologies / "horovod-p100.json");
  EXPECT_EQ(horovod.devices(), 512);
  EXPECT_DOUBLE_EQ(horovod.levels[1].bytes_per_second, 25e9 / 8);
}

TEST(Topology, DevicesMeetAtTheInnermostLevelThatHoldsBoth) {
  Topology topology;  // devices 0 to 11: pairs, three pairs a node, two nodes
  topology.levels = {
      {.name = "pair", .count = 2}, {.name = "node", .count = 3}, {.name = "rack", .count = 2}};
  EXPECT_EQ(topology.devices(), 12);
  EXPECT_EQ(topology.group_size(1), 6);
  EXPECT_EQ(topology.common_level(7, 7), -1);
  EXPECT_EQ(topology.common_level(2, 3), 0);
  EXPECT_EQ(topology.common_level(1, 2), 1);
  EXPECT_EQ(topology.common_level(0, 5), 1);
  EXPECT_EQ(topology.common_level(5, 6), 2);
  EXPECT_EQ(topology.common_level(11, 0), 2);
}

TEST(TopologyFile, TheFirstDevices) {
  const Topology dgx = read_topology(kTopologies / "dgx-h100x8.json");
  EXPECT_EQ(first_devices(dgx, 64).levels[0].count, 8);
  EXPECT_EQ(first_devices(dgx, 64).levels[1].count, 8);
  EXPECT_EQ(first_devices(dgx, 5).devices(), 5);
  EXPECT_EQ(first_devices(dgx, 8).levels[1].count, 1);
  // 12 of 2 nodes: the last 4 stay idle.
  EXPECT_EQ(first_devices(dgx, 12).devices(), 16);
  EXPECT_THROW(first_devices(dgx, dgx.devices() + 1), Error);
  EXPECT_THROW(first_devices(dgx, 0), Error);
  const Topology mixed = parse_topology(kTwoLevels, "t.json");
  EXPECT_EQ(first_devices(mixed, 2).device_speed, (std::vector<double>{1, 1}));
  EXPECT_EQ(first_devices(mixed, 6).device_speed, mixed.device_speed);
}

TEST(TopologyFile, IsFoundByPathAndByName) {
  const TemporaryDirectory folder;
  put_file(folder / "mine.json", kTwoLevels);
  EXPECT_EQ(named_topology((folder / "mine.json").string()).name, "two servers");
  EXPECT_EQ(find_topology("dgx-h100x8.json").filename(), "dgx-h100x8.json");
  EXPECT_EQ(find_topology("dgx-h100x8"), find_topology("dgx-h100x8.json"));
  try {
    find_topology("dgx-h200");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("\"dgx-h200\""), std::string::npos);
    EXPECT_NE(error.message().find("pipedream-a.json"), std::string::npos) << error.message();
  }
  EXPECT_THROW(find_topology((folder / "dgx-h100x8.json").string()), Error);
}

TEST(TopologyFile, TheMeasuredOneLiesInTheCache) {
  const TemporaryDirectory folder;
  const char* before = getenv("PIPETRAIN_CACHE_DIR");
  const std::string kept = before ? before : "";
  setenv("PIPETRAIN_CACHE_DIR", folder.path().c_str(), 1);
  EXPECT_FALSE(measured_topology().has_value());
  write_topology(measured_topology_path(), parse_topology(kTwoLevels, "t.json"));
  ASSERT_TRUE(measured_topology().has_value());
  EXPECT_EQ(measured_topology()->devices(), 6);
  put_file(measured_topology_path(), "broken");
  EXPECT_FALSE(measured_topology().has_value());
  before ? setenv("PIPETRAIN_CACHE_DIR", kept.c_str(), 1) : unsetenv("PIPETRAIN_CACHE_DIR");
}

}  // namespace
}  // namespace pipetrain
