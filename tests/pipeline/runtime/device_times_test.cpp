// What a device's clock says of instructions, and how values go between devices by way of the host.
#include "pipeline/runtime/device_times.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/clock.h"
#include "base/index.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/transport/host_staging.h"
#include "support/recorded_devices.h"

namespace pipetrain {
namespace {

TEST(DeviceTimes, AreTheDevicesOwnHoweverManyThereAre) {
  test::RecordedMachine machine(1, 3);
  Device& device = machine.device(0);
  const auto stream = device.make_stream();
  const DeviceMemory memory = device.allocate(sizeof(float));
  auto* number = reinterpret_cast<float*>(memory.data());
  // Of one number, which stays in the cache after its first use.
  const double first = test::recorded_seconds(sizeof(float)), later = test::recorded_seconds(0);
  DeviceTimes times(*stream);
  for (const int count : {3, 5000, 2}) {
    std::vector<Event> events(at(count));
    times.start(steady_seconds());
    for (int i = 0; i < count; ++i) {
      times.begin(i);
      if (i % 3 == 1) {
        // A wait for something: the instruction begins behind it.
        device.set(*stream, number, 1);
        times.begin(i);
      }
      for (int k = 0; k <= i % 4; ++k) device.set(*stream, number, 2);
      times.end();
      device.set(*stream, number, 3);  // belongs to none
      times.end();                     // the first counts
    }
    stream->synchronize();
    times.finish(events);
    EXPECT_GE(events[0].start, 0);
    for (int i = 0; i < count; ++i) {
      const Event& event = events[at(i)];
      const double runs = i % 4 + 1;
      const double fetched = count == 3 && i == 0 ? first - later : 0;
      ASSERT_NEAR(event.end - event.start, runs * later + fetched, 1e-10) << i;
      if (i == 0) continue;
      const double between = i % 3 == 1 ? 2 * later : later;
      ASSERT_NEAR(event.start - events[at(i - 1)].end, between, 1e-10) << i;
    }
  }
  EXPECT_TRUE(machine.problems().empty());
}

TEST(DeviceTimes, AskedForTooEarlyAreAnError) {
  test::RecordedMachine machine(1, 3);
  const auto stream = machine.device(0).make_stream();
  const auto one = machine.device(0).make_timed_point(),
             other = machine.device(0).make_timed_point();
  stream->record(*one);
  stream->record(*other);
  other->seconds_since(*one);
  EXPECT_EQ(machine.problems(),
            std::vector<std::string>{"the time of a point is asked for that has not been reached"});
  stream->synchronize();
}

TEST(DeviceTimes, ReceivesEndWhenTheDeviceThatWaitsGoesOn) {
  ScheduleOptions options;
  options.name = "gpipe";
  options.stages = 2;
  options.micro_batches = 2;
  const Program program = lower(generate(options), chain_edges(2, 8));
  std::vector<std::vector<Event>> events;
  for (const auto& list : program.device) events.emplace_back(list.size());
  const auto event_of = [&](const char* text) -> Event& {
    for (std::size_t d = 0; d < events.size(); ++d) {
      for (std::size_t i = 0; i < events[d].size(); ++i) {
        if (to_text(program, program.device[d][i]) == text) return events[d][i];
      }
    }
    throw std::runtime_error(text);
  };
  const auto set = [&](const char* text, double start, double end) {
    event_of(text).start = start;
    event_of(text).end = end;
  };
  // Stage 1 waits for micro-batch 0, which takes 2 seconds to arrive; micro-batch 1 is there before
  // it is wanted.
  set("0F0", 0, 1);
  set("0F1", 1, 2);
  set("1F0", 3, 6);
  set("1F1", 6, 9);
  set("1B0", 9, 10);
  set("1B1", 10, 11);
  set("0B0", 10.5, 14);
  set("0B1", 14, 15);
  time_receives(program, events);
  EXPECT_EQ(event_of("1RF0<0").start, 1);
  EXPECT_EQ(event_of("1RF0<0").end, 3);
  EXPECT_EQ(event_of("1RF1<0").start, 2);
  EXPECT_EQ(event_of("1RF1<0").end, 2);
  EXPECT_EQ(event_of("0RB0<1").start, 10);
  EXPECT_EQ(event_of("0RB0<1").end, 10.5);
  EXPECT_EQ(event_of("0RB1<1").end, 11);
  // Where a device is another process's, what comes from it stays as it was.
  events[0].clear();
  event_of("1RF0<0").end = 2.5;
  time_receives(program, events);
  EXPECT_EQ(event_of("1RF0<0").end, 2.5);
  EXPECT_TRUE(events[0].empty());
}

TEST(HostStaging, TakesChunksThroughARingThatNobodyOverwritesTooEarly) {
  test::RecordedMachine machine(2, 5);
  machine.part_devices();
  Device& a = machine.device(0);
  Device& b = machine.device(1);
  ASSERT_FALSE(a.reaches(b));
  const std::size_t bytes = 6 * HostStaging::kSlotBytes + 12;
  std::vector<std::uint32_t> values(bytes / sizeof(std::uint32_t));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint32_t>(i * 7 + 1);
  const DeviceMemory from = a.allocate(bytes), to = b.allocate(bytes);
  const auto sender = a.make_stream(), receiver = b.make_stream();
  const auto written = a.make_point();
  HostStaging staging(a, *receiver);
  for (int round = 0; round < 2; ++round) {
    values[0] = static_cast<std::uint32_t>(round);
    sender->copy(from.data(), values.data(), bytes);
    sender->record(*written);
    staging.copy(to.data(), from.data(), bytes, written.get());
    std::vector<std::uint32_t> there(values.size());
    receiver->copy(there.data(), to.data(), bytes);
    receiver->synchronize();
    EXPECT_TRUE(there == values);
  }
  EXPECT_TRUE(machine.problems().empty());
  // What would be said without it.
  receiver->copy(to.data(), from.data(), bytes);
  EXPECT_EQ(machine.problems(),
            std::vector<std::string>{"a copy goes between devices that do not reach each other"});
  receiver->synchronize();
  sender->synchronize();
}

}  // namespace
}  // namespace pipetrain
