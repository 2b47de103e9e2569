// Samples in page-locked memory: copied while the host goes on, overwritten only afterwards.
#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "support/placed_runtime.h"

namespace pipetrain::test {
namespace {

/// Micro-batches in page-locked memory, overwritten as soon as that is allowed.
class PinnedMicroBatches final : public MicroBatchSource {
 public:
  /// `too_early`: already when the next one is asked for.
  PinnedMicroBatches(RecordedMachine& machine, FixedData& data, bool too_early)
      : machine_(machine),
        data_(data),
        too_early_(too_early),
        slots_(data.micro_batches().size()) {}

  MicroBatch& acquire(int micro_batch) override {
    const std::lock_guard lock(mutex_);
    Slot& slot = slots_[static_cast<std::size_t>(micro_batch)];
    MicroBatch& given = data_.acquire(micro_batch);
    if (slot.full) return given;
    slot.full = true;
    const std::int64_t samples = kSizes[static_cast<std::size_t>(given.variant)];
    const std::size_t bytes[] = {static_cast<std::size_t>(samples) * 72 * sizeof(float),
                                 static_cast<std::size_t>(samples) * sizeof(std::int64_t)};
    slot.memory = machine_.device(0).allocate_on_host(bytes[0] + bytes[1]);
    std::memcpy(slot.memory.data(), given.columns[0], bytes[0]);
    std::memcpy(slot.memory.data() + bytes[0], given.columns[1], bytes[1]);
    given.columns = {slot.memory.data(), slot.memory.data() + bytes[0]};
    if (too_early_ && micro_batch > 0) overwrite(slots_[static_cast<std::size_t>(micro_batch) - 1]);
    return given;
  }
  void release(int micro_batch) override {
    const std::lock_guard lock(mutex_);
    if (!too_early_) overwrite(slots_[static_cast<std::size_t>(micro_batch)]);
  }
  double learning_rate(int micro_batch) const override { return data_.learning_rate(micro_batch); }
  std::int64_t updates_before() const override { return data_.updates_before(); }

 private:
  struct Slot {
    DeviceMemory memory;
    bool full = false;
  };
  void overwrite(Slot& slot) {
    machine_.host_writes(slot.memory.data(), slot.memory.bytes());
    // Too early it would be a race with the copy, so that it is only said.
    if (!too_early_) std::memset(slot.memory.data(), 0, slot.memory.bytes());
  }
  RecordedMachine& machine_;
  FixedData& data_;
  bool too_early_;
  std::mutex mutex_;
  std::vector<Slot> slots_;
};

TEST(PinnedData, AreCopiedWhileTheHostGoesOnAndOverwrittenOnlyAfterwards) {
  const Pipeline pipeline(/*tied=*/false, 3, kSizes);
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) {
    const Program program = pipeline.program(schedule, 3);
    std::string bits[2];
    for (const Place place : {Place::kCpu, Place::kManyDevices}) {
      PlacedRuntime runtime(pipeline, program, place);
      FixedData data(4 * kBatch, 5);
      // The values between stages go by way of the host as well.
      if (runtime.machine) runtime.machine->part_devices();
      for (std::int64_t step = 0; step < 3; ++step) {
        data.set_mini_batch(step * kBatch, kBatch, kMicroBatch, step, kSizes);
        if (runtime.machine) {
          PinnedMicroBatches pinned(*runtime.machine, data, /*too_early=*/false);
          runtime.run(program, pinned);
        } else {
          runtime.run(program, data);
        }
      }
      bits[place == Place::kCpu] = fingerprint(pipeline, runtime);
    }
    EXPECT_TRUE(bits[0] == bits[1]) << schedule;
  }
}

// All forward passes of one device: nothing waits in between, so no copy has run when its source is
// overwritten.
TEST(PinnedData, OverwrittenTooEarlyAreFound) {
  const Pipeline pipeline(/*tied=*/false, 1, kSizes);
  const Program program = pipeline.program("gpipe", 3);
  RecordedMachine machine(1, 1);
  RuntimeOptions options = runtime_options(Place::kCpu);
  options.devices.push_back(&machine.device(0));
  {
    Runtime runtime(pipeline.variants, {&program}, options);
    FixedData data(4 * kBatch, 5);
    data.set_mini_batch(0, kBatch, kMicroBatch, 0, kSizes);
    PinnedMicroBatches pinned(machine, data, /*too_early=*/true);
    runtime.run(program, pinned);
  }
  const std::vector<std::string> problems = machine.problems();
  ASSERT_FALSE(problems.empty());
  EXPECT_EQ(problems[0], "the host overwrites what a copy has yet to read");
}

TEST(PinnedData, AreCopiedToTheStagesThatReadThem) {
  const std::vector<std::int64_t> sizes = {16, 4};
  const Pipeline pipeline(wide_network(), 2, sizes);
  const Program program = pipeline.program("1f1b", 4);
  RecordedMachine machine(2, 3);
  RuntimeOptions options = runtime_options(Place::kCpu);
  for (int d = 0; d < 2; ++d) options.devices.push_back(&machine.device(d));
  Runtime runtime(pipeline.variants, {&program}, options);
  FixedData data(2 * 52, 7);
  std::uint64_t before = 0;
  for (std::int64_t step = 0; step < 2; ++step) {
    before = machine.uploaded();
    data.set_mini_batch(step * 52, 52, 16, step, sizes);
    runtime.run(program, data);
  }
  // An image of 72 values for the first stage, a label for the last.
  EXPECT_EQ(machine.uploaded() - before, 52 * (72 * sizeof(float) + sizeof(std::int64_t)));
}

// On a GPU that would wait for all of its streams.
TEST(PinnedData, NothingIsFreedBeforeARunEnds) {
  const Pipeline pipeline(/*tied=*/false, 3, kSizes);
  const Program program = pipeline.program("gpipe", 3);
  RecordedMachine machine(3, 1);
  RuntimeOptions options = runtime_options(Place::kCpu);
  for (int d = 0; d < 3; ++d) options.devices.push_back(&machine.device(d));
  {
    Runtime runtime(pipeline.variants, {&program}, options);
    FixedData data(6 * kBatch, 5);
    std::uint64_t before = 0;
    // 4 + 4 + 2 samples, then 4 + 4 + 4: blocks of smaller micro-batches come to larger ones.
    for (const std::int64_t samples : {10, 10, 12, 12, 10}) {
      data.set_mini_batch(0, samples, kMicroBatch, 0, kSizes);
      runtime.run(program, data);
      if (before == 0) before = machine.frees() + 1;
      EXPECT_EQ(machine.frees() + 1, before) << samples;
    }
  }
  EXPECT_GT(machine.frees(), 0U);
  for (const std::string& problem : machine.problems()) ADD_FAILURE() << problem;
}

}  // namespace
}  // namespace pipetrain::test
