#include "pipeline/simulate/memory_use.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
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

TEST(MemoryUse, APeakIsTheSumOfItsParts) {
  const StageBytes bytes = {100, 40, 10, 7, 1000, 3000};
  for (const Program& bare : programs()) {
    const Program program = lower(bare, chain_edges(bare.stages, 3));
    for (const DeviceBytes& peak : peak_bytes(program, same_for_all(program, bytes)))
      EXPECT_EQ(peak.peak, peak.weights + peak.activations + peak.buffers + peak.working)
          << program.schedule;
  }
}

TEST(MemoryUse, RefusesBytesThatDoNotFit) {
  const Program program = generate(options_for("1f1b", 2, 3));
  EXPECT_THROW(peak_bytes(program, {}), Error);
}

}  // namespace
}  // namespace pipetrain
