#include "pipeline/simulate/memory_use.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "pipeline/simulate/simulate.h"
#include "support/example_programs.h"
#include "support/imported_schedules.h"

namespace pipetrain {
namespace {

std::vector<StageBytes> same_for_all(const Program& program, const StageBytes& bytes) {
  return std::vector<StageBytes>(static_cast<std::size_t>(program.stages), bytes);
}

TEST(MemoryUse, PeaksFollowTheClosedForms) {
  StageBytes bytes;
  bytes.activations = 1000;
  bytes.kept_inputs = 10;
  bytes.working = 7;
  bytes.weights = 100000;
  bytes.fixed = 1000000;
  for (const int p : {1, 2, 4, 5}) {
    for (const int m : {1, 3, 8}) {
      const Program one = generate(options_for("1f1b", p, m));
      const Program all = generate(options_for("gpipe", p, m));
      const Program stash = generate(options_for("pipedream", p, m));
      ScheduleOptions options = options_for("1f1b", p, m);
      options.recompute.assign(static_cast<std::size_t>(p), true);
      const Program again = generate(options);
      for (int s = 0; s < p; ++s) {
        const auto d = static_cast<std::size_t>(s);
        const int live = std::min(p - s, m);
        EXPECT_EQ(peak_bytes(one, same_for_all(one, bytes))[d].peak, 1100007 + 1000 * live);
        EXPECT_EQ(peak_bytes(all, same_for_all(all, bytes))[d].peak, 1100007 + 1000 * m);
        EXPECT_EQ(peak_bytes(stash, same_for_all(stash, bytes))[d].peak,
                  1000007 + 100000 * live + 1000 * live);
        // Inputs of all micro-batches in flight, and the whole of the one that runs again.
        EXPECT_EQ(peak_bytes(again, same_for_all(again, bytes))[d].peak, 1100007 + 1000 + 10 * live)
            << "p=" << p << " m=" << m << " s=" << s;
      }
    }
  }
}

TEST(MemoryUse, TheInputGradientFreesWhatTheWeightGradientDoesNotRead) {
  const Program program = program_of_words({"F0 I0 F1 W0 I1 W1"}, 1, 2, {0});
  StageBytes bytes;
  bytes.activations = 100;
  bytes.weight_gradient_inputs = 30;
  const DeviceBytes peak = peak_bytes(program, {bytes})[0];
  EXPECT_EQ(peak.peak, 130);
  EXPECT_EQ(peak.index, 2);  // F1
  bytes.weight_gradient_inputs = -1;
  EXPECT_EQ(peak_bytes(program, {bytes})[0].peak, 200);
}

TEST(MemoryUse, ReceiveBuffersCountUntilTheMicroBatchIsOver) {
  const Program program = lower(generate(options_for("gpipe", 2, 3)), chain_edges(2, 8));
  const std::vector<DeviceBytes> peaks = peak_bytes(program, same_for_all(program, {}));
  EXPECT_EQ(peaks[1].peak, 3 * 8);
  EXPECT_EQ(peaks[1].buffers, 3 * 8);
}

std::vector<Program> programs() {
  std::vector<Program> all = {chimera(4, 8), dual_pipe_v(3, 6).program};
  for (const ScheduleDescription& schedule : schedules()) {
    all.push_back(
        generate(options_for(schedule.name, schedule.placement == Placement::kChain ? 3 : 6, 6)));
  }
  return all;
}

TEST(MemoryUse, ACapHoldsToTheByte) {
  const StageBytes bytes = {100, 40, 10, 7, 1000, 3000};
  for (const Program& bare : programs()) {
    const Program program = lower(bare, chain_edges(bare.stages, 3));
    const std::vector<StageBytes> stages = same_for_all(program, bytes);
    std::vector<std::int64_t> caps;
    for (const DeviceBytes& peak : peak_bytes(program, stages)) {
      EXPECT_EQ(peak.peak, peak.weights + peak.activations + peak.buffers + peak.working);
      caps.push_back(peak.peak);
    }
    EXPECT_NO_THROW(check_memory(program, stages, caps)) << program.schedule;
    for (std::int64_t& cap : caps) {
      --cap;
      EXPECT_THROW(check_memory(program, stages, caps), Error) << program.schedule;
      ++cap;
    }
  }
}

TEST(MemoryUse, AnErrorNamesDeviceAndInstruction) {
  const Program program = generate(options_for("1f1b", 2, 3));
  StageBytes bytes;
  bytes.activations = 100;
  bytes.weights = 5;
  try {
    check_memory(program, same_for_all(program, bytes), {150, 150}, ErrorKind::kUsage);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_STREQ(error.what(),
                 "schedule '1f1b' breaks rule 18 (memory): device 0, instruction 1 (0F1) holds 205 "
                 "bytes, but may hold 150: weights and optimizer 5, activations 200, receive "
                 "buffers 0, workspace 0");
  }
}

TEST(MemoryUse, OverTimeItReachesTheSamePeak) {
  const StageBytes bytes = {100, 40, 10, 7, 1000, 3000};
  for (const Program& program : programs()) {
    const std::vector<StageBytes> stages = same_for_all(program, bytes);
    const Simulation result = simulate(program, uniform_costs(program, {}));
    const auto samples = bytes_over_time(program, stages, result.events);
    const std::vector<DeviceBytes> peaks = peak_bytes(program, stages);
    for (std::size_t d = 0; d < samples.size(); ++d) {
      std::int64_t most = 0;
      double before = -1;
      for (const MemorySample& sample : samples[d]) {
        EXPECT_GT(sample.seconds, before);
        before = sample.seconds;
        most = std::max(most, sample.bytes);
      }
      EXPECT_EQ(most, peaks[d].peak) << program.schedule << " device " << d;
      EXPECT_EQ(samples[d].back().bytes, peaks[d].weights) << program.schedule;
    }
  }
}

TEST(MemoryUse, RefusesBytesThatDoNotFit) {
  const Program program = generate(options_for("1f1b", 2, 3));
  EXPECT_THROW(peak_bytes(program, {}), Error);
  EXPECT_THROW(check_memory(program, same_for_all(program, {}), {1}), Error);
}

}  // namespace
}  // namespace pipetrain
