// A pipeline trains with the bits of its oracle: every cut and schedule, in host memory and on
// recorded devices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "base/error.h"
#include "pipeline/program/check.h"
#include "pipeline/program/complete.h"
#include "pipeline/runtime/oracle.h"
#include "pipeline/schedule/lower.h"
#include "support/imported_schedules.h"
#include "support/placed_runtime.h"

namespace pipetrain::test {
namespace {

struct Outcome {
  std::string bits;
  std::vector<double> losses;
};

Outcome train_synchronously(int stages, const std::string& schedule, bool recompute, Place place,
                            double clip, bool with_oracle) {
  const Pipeline pipeline(/*tied=*/true, stages, kSizes);
  const Program program = pipeline.program(schedule, 3, recompute, clip > 0);
  FixedData data(4 * kBatch, 5);
  Outcome outcome;
  const auto steps = [&](auto& runner) {
    for (std::int64_t step = 0; step < 4; ++step) {
      data.set_mini_batch(step * kBatch, kBatch, kMicroBatch, step, kSizes);
      runner.run(program, data);
      double loss = 0;
      for (const MicroBatch& micro_batch : data.micro_batches())
        loss += micro_batch.loss_sum * micro_batch.loss_scale;
      outcome.losses.push_back(loss);
    }
    outcome.bits = fingerprint(pipeline, runner);
  };
  if (with_oracle) {
    Oracle oracle(pipeline.variants, stages, runtime_options(place, clip));
    steps(oracle);
  } else {
    PlacedRuntime runtime(pipeline, program, place, clip);
    steps(runtime);
  }
  return outcome;
}

class SameBits : public testing::TestWithParam<Place> {};

TEST_P(SameBits, ForEveryCutAndSynchronousSchedule) {
  for (const double clip : {0.0, 0.5}) {
    const Outcome expected =
        train_synchronously(1, "gpipe", false, GetParam(), clip, /*with_oracle=*/true);
    EXPECT_LT(expected.losses.back(), expected.losses.front());
    for (const int stages : {1, 2, 3, 4}) {
      for (const auto& [schedule, recompute] : std::vector<std::pair<std::string, bool>>{
               {"gpipe", false}, {"gpipe", true}, {"1f1b", false}, {"1f1b", true}}) {
        const Outcome outcome =
            train_synchronously(stages, schedule, recompute, GetParam(), clip, false);
        EXPECT_TRUE(outcome.bits == expected.bits)
            << schedule << " recompute " << recompute << " stages " << stages << " clip " << clip;
        EXPECT_EQ(outcome.losses, expected.losses);
      }
    }
  }
}

// With one micro-batch per step gradients lie where activations and rounded weights were, and are
// read from there by norms, updates and read_gradient().
TEST_P(SameBits, GradientsInThePlaceOfActivations) {
  for (const std::string network : {"difficult", "table", "wide"}) {
    const OnnxModel model = network == "table"  ? table_network()
                            : network == "wide" ? wide_network()
                                                : difficult_network(/*tied=*/true);
    std::string expected;
    for (const int stages : {0, 1, 2, 3}) {
      const Pipeline pipeline(model, std::max(stages, 1), {kMicroBatch}, 0,
                              network == "wide" ? DType::kBFloat16 : DType::kFloat32);
      for (const bool clip : {false, true}) {
        for (const std::string schedule : {"gpipe", "1f1b", "zb-h1"}) {
          const bool recompute = clip && schedule == "gpipe";
          const Program program = pipeline.program(schedule, 1, recompute, clip);
          const auto train = [&](auto& runner) {
            FixedData data(3 * kMicroBatch, 5);
            for (std::int64_t step = 0; step < 3; ++step) {
              data.set_mini_batch(step * kMicroBatch, kMicroBatch, kMicroBatch, step,
                                  {kMicroBatch});
              runner.run(program, data);
            }
            return fingerprint(pipeline, runner);
          };
          if (stages == 0) {
            Oracle oracle(pipeline.variants, 1, runtime_options(GetParam()));
            expected = train(oracle);
            continue;
          }
          PlacedRuntime runtime(pipeline, program, GetParam(), clip ? 1e6 : 0);
          EXPECT_TRUE(train(runtime) == expected) << network << " " << schedule << " " << stages;
        }
      }
    }
  }
}

TEST_P(SameBits, PipedreamAndItsOracle) {
  constexpr int kMicroBatches = 9;
  for (const int stages : {1, 2, 3, 4}) {
    const Pipeline pipeline(/*tied=*/false, stages, {4});
    const Program program = pipeline.program("pipedream", kMicroBatches);
    for (int s = 0; s < stages; ++s)
      EXPECT_EQ(program.versions_per_stage[static_cast<std::size_t>(s)], stages - s);
    FixedData data(2 * kMicroBatches * 4, 6);
    const auto rounds = [&](auto& runner) {
      std::vector<double> losses;
      for (int round = 0; round < 2; ++round) {
        data.set_stream(kMicroBatches, 4, round * kMicroBatches);
        runner.run(program, data);
        for (const MicroBatch& micro_batch : data.micro_batches())
          losses.push_back(micro_batch.loss_sum);
      }
      return std::pair(fingerprint(pipeline, runner), losses);
    };
    Oracle oracle(pipeline.variants, stages, runtime_options(GetParam()));
    PlacedRuntime runtime(pipeline, program, GetParam());
    EXPECT_TRUE(rounds(runtime) == rounds(oracle)) << stages << " stages";
  }
}

TEST_P(SameBits, StaleWeightsAreNotTheSynchronousOnes) {
  const Pipeline pipeline(/*tied=*/false, 4, {4});
  FixedData data(36, 6);
  data.set_stream(9, 4, 0);
  Oracle stale(pipeline.variants, 4, runtime_options(GetParam()));
  stale.run(pipeline.program("pipedream", 9), data);
  Oracle fresh(pipeline.variants, 4, runtime_options(GetParam()));
  for (int step = 0; step < 9; ++step) {
    data.set_stream(1, 4, step);
    fresh.run(pipeline.program("pipedream", 1), data);
  }
  EXPECT_FALSE(fingerprint(pipeline, stale) == fingerprint(pipeline, fresh));
}

/// Losses and everything that training has changed after two mini-batches of `micro_batches`
/// each, on the runtime and on the oracle.
struct Pair {
  std::string bits, oracle_bits;
  std::vector<double> losses, oracle_losses;
};

Pair run_both(const Pipeline& pipeline, const Program& program, Place place, double clip,
              const Program* reference = nullptr, const Pipeline* reference_pipeline = nullptr) {
  Pair pair;
  const bool asynchronous = is_asynchronous(program.rule);
  FixedData data(4 * program.micro_batches * kMicroBatch, 7);
  const auto run = [&](auto& runner, const Program& what, const Pipeline& on,
                       std::vector<double>& losses) {
    for (std::int64_t step = 0; step < 2; ++step) {
      if (asynchronous) {
        data.set_stream(program.micro_batches, kMicroBatch, step * program.micro_batches);
      } else {
        const std::int64_t samples =
            program.micro_batches * kMicroBatch - 2;  // the last one is uneven
        data.set_mini_batch(step * samples, samples, kMicroBatch, step, kSizes);
      }
      runner.run(what, data);
      for (const MicroBatch& micro_batch : data.micro_batches())
        losses.push_back(micro_batch.loss_sum);
    }
    return fingerprint(on, runner);
  };
  PlacedRuntime runtime(pipeline, program, place, clip);
  pair.bits = run(runtime, program, pipeline, pair.losses);
  const Pipeline& on = reference_pipeline ? *reference_pipeline : pipeline;
  Oracle oracle(on.variants, on.stages, runtime_options(place, clip));
  pair.oracle_bits = run(oracle, reference ? *reference : program, on, pair.oracle_losses);
  return pair;
}

TEST_P(SameBits, EverySynchronousScheduleIsOneDevice) {
  const std::vector<std::string> names = {
      "gpipe", "1f1b",   "1f1b-eager", "1f1b-auto",        "zb-h1",         "zb-h2", "zb",
      "zb-v",  "v-half", "v-min",      "interleaved-1f1b", "interleaved-zb"};
  constexpr int kMicroBatches = 12;
  const Pipeline one(/*tied=*/true, 1, kSizes);
  const Program alone = one.program("gpipe", kMicroBatches, false, /*clip=*/true);
  for (const std::string& name : names) {
    for (const int devices : {1, 2, 3, 4, 6}) {
      for (const bool recompute : {false, true}) {
        const int stages = devices * stages_per_device(name, 2);
        if (stages > 12 || (recompute && devices != 2)) continue;
        const Pipeline pipeline(/*tied=*/true, stages, kSizes);
        ScheduleOptions options;
        options.name = name;
        options.micro_batches = kMicroBatches;
        options.recompute.assign(static_cast<std::size_t>(stages), recompute);
        const Program program = pipeline.program(options, /*clip=*/true);
        const Pair pair = run_both(pipeline, program, GetParam(), 0.5, &alone, &one);
        EXPECT_TRUE(pair.bits == pair.oracle_bits) << name << " on " << devices;
        EXPECT_EQ(pair.losses, pair.oracle_losses) << name << " on " << devices;
      }
    }
  }
}

TEST_P(SameBits, WholeAndSplitBackwardsOfOneStage) {
  constexpr int kDevices = 2, kMicroBatches = 6;
  const Pipeline one(/*tied=*/true, 1, kSizes);
  const Program alone = one.program("gpipe", kMicroBatches, false, /*clip=*/true);
  const Pipeline pipeline(/*tied=*/true, 2 * kDevices, kSizes);
  Program program = dual_pipe_v(kDevices, kMicroBatches).program;
  add_gradient_sync(program);
  program = lower(program, pipeline.edges);
  check(program);
  const Pair pair = run_both(pipeline, program, GetParam(), 0.5, &alone, &one);
  EXPECT_TRUE(pair.bits == pair.oracle_bits);
  EXPECT_EQ(pair.losses, pair.oracle_losses);
}

TEST_P(SameBits, EveryAsynchronousScheduleIsItsOracle) {
  for (const std::string name : {"pipedream", "pipedream-vertical", "pipedream-2bw"}) {
    for (const int stages : {1, 2, 3, 4, 6}) {
      const Pipeline pipeline(/*tied=*/false, stages, kSizes);
      ScheduleOptions options;
      options.name = name;
      options.micro_batches = 4 * stages;
      if (name == "pipedream-2bw") options.micro_batches_per_update = stages;
      const Program program = pipeline.program(options);
      const Pair pair = run_both(pipeline, program, GetParam(), 0);
      EXPECT_TRUE(pair.bits == pair.oracle_bits) << name << " on " << stages;
      EXPECT_EQ(pair.losses, pair.oracle_losses) << name << " on " << stages;
    }
  }
}

TEST_P(SameBits, ReplicasAreOneDeviceWithAnAccumulatorEach) {
  const std::vector<std::vector<int>> shapes = {{2}, {2, 1}, {1, 2}, {3, 1}, {2, 2}, {1, 3, 2}};
  for (const std::string name : {"gpipe", "1f1b", "pipedream", "pipedream-2bw"}) {
    for (const auto& replicas : shapes) {
      for (const int micro_batches : {12, 7}) {
        const int stages = static_cast<int>(replicas.size());
        const bool tied = name == "gpipe" || name == "1f1b";
        const Pipeline pipeline(tied, stages, kSizes);
        ScheduleOptions options;
        options.name = name;
        options.micro_batches = micro_batches;
        options.replicas = replicas;
        if (name == "pipedream-2bw") options.micro_batches_per_update = 6;
        const Program program = pipeline.program(options, /*clip=*/tied);
        const Pair pair = run_both(pipeline, program, GetParam(), tied ? 0.5 : 0);
        EXPECT_TRUE(pair.bits == pair.oracle_bits) << name << " " << micro_batches << " units";
        EXPECT_EQ(pair.losses, pair.oracle_losses) << name << " " << micro_batches << " units";
      }
    }
  }
}

/// Mini-batches of which some were left out: those before were updates.
class AfterSkips final : public MicroBatchSource {
 public:
  explicit AfterSkips(FixedData& data) : data_(data) {}
  MicroBatch& acquire(int micro_batch) override { return data_.acquire(micro_batch); }
  void release(int micro_batch) override { data_.release(micro_batch); }
  double learning_rate(int micro_batch) const override { return data_.learning_rate(micro_batch); }
  std::int64_t updates_before() const override { return updates; }

  std::int64_t updates = 0;

 private:
  FixedData& data_;
};

// The gradients of a step that is skipped lie where its rounded weights were, too.
TEST_P(SameBits, WeightsArePreparedAgainAfterASkippedStep) {
  constexpr double kWeight = 0x1p20;  // as below
  constexpr std::int64_t kSteps = 12;
  RuntimeOptions options = runtime_options(GetParam(), kWeight);
  options.loss_scaling = adapting_loss_scale();
  options.loss_scaling.initial = 0x1p114;
  const Pipeline pipeline(wide_network(), 1, {kMicroBatch}, 0, DType::kBFloat16);
  const Program program = pipeline.program("gpipe", 1, /*recompute=*/false, /*clip=*/true);
  PlacedRuntime runtime(pipeline, program, GetParam(), kWeight, options.loss_scaling);
  Oracle oracle(pipeline.variants, 1, options);
  FixedData data(kSteps * kMicroBatch, 5);
  int skipped = 0;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    data.set_mini_batch(step * kMicroBatch, kMicroBatch, kMicroBatch, step, {kMicroBatch});
    data.acquire(0).loss_scale *= kWeight;
    skipped += runtime.run(program, data).skipped;
    oracle.run(program, data);
  }
  EXPECT_GT(skipped, 0);
  EXPECT_LT(skipped, kSteps);
  EXPECT_TRUE(fingerprint(pipeline, runtime) == fingerprint(pipeline, oracle));
}

// A scale so large that gradients leave the range of float: those rounds change nothing, and all
// others are, to the bit, what they are without a scale, which is a power of two. BatchNorm's
// statistics, the corrections of AdamW and the moving averages are those of the rounds that count.
TEST_P(SameBits, RoundsThatOverflowChangeNothing) {
  LossScaling scaling = adapting_loss_scale();
  scaling.initial = 0x1p114;
  scaling.interval = 2;
  constexpr std::int64_t kRounds = 14;
  constexpr double kWeight =
      0x1p20;  // of the loss: else an update's factor could not undo the scale
  constexpr double kClip = 0.5 * kWeight;
  struct Shape {
    std::string schedule;
    int stages;
    std::vector<int> replicas;
  };
  FixedData data(kRounds * kBatch, 5);
  const auto take_round = [&](std::int64_t step) {
    data.set_mini_batch(step * kBatch, kBatch, kMicroBatch, step, kSizes);
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch)
      data.acquire(micro_batch).loss_scale *= kWeight;
  };
  std::vector<bool> expected_skips;
  for (const Shape& shape :
       {Shape{"gpipe", 1, {}}, Shape{"gpipe", 3, {}}, Shape{"1f1b", 2, {}}, Shape{"1f1b", 4, {}},
        Shape{"zb-h1", 3, {}}, Shape{"zb-h2", 4, {}}, Shape{"1f1b", 2, {2, 1}}}) {
    SCOPED_TRACE(fmt::format("{} on {}", shape.schedule, shape.stages));
    const Pipeline pipeline(/*tied=*/true, shape.stages, kSizes);
    ScheduleOptions options;
    options.name = shape.schedule;
    options.micro_batches = 3;
    options.recompute.assign(static_cast<std::size_t>(shape.stages), false);
    options.replicas = shape.replicas;
    const Program program = pipeline.program(options, /*clip=*/true);
    PlacedRuntime scaled(pipeline, program, GetParam(), kClip, scaling);
    Oracle oracle(pipeline.variants, shape.stages, [&] {
      RuntimeOptions with_scale = runtime_options(GetParam(), kClip);
      with_scale.loss_scaling = scaling;
      return with_scale;
    }());
    std::vector<bool> skips;
    std::vector<double> norms;
    for (std::int64_t step = 0; step < kRounds; ++step) {
      take_round(step);
      const RoundResult result = scaled.run(program, data);
      skips.push_back(result.skipped);
      if (!result.skipped) norms.push_back(result.gradient_norm);
      oracle.run(program, data);
    }
    const auto skipped = std::count(skips.begin(), skips.end(), true);
    EXPECT_GT(skipped, 4);
    EXPECT_LT(skipped, kRounds - 4);
    EXPECT_TRUE(skips[0] && std::count(skips.begin() + 6, skips.end(), true) > 0);
    EXPECT_EQ(scaled.runtime->loss_scale().skipped, skipped);
    EXPECT_TRUE(fingerprint(pipeline, oracle) == fingerprint(pipeline, scaled));
    if (expected_skips.empty()) expected_skips = skips;
    // Replicas add up in another order.
    EXPECT_TRUE(!shape.replicas.empty() || skips == expected_skips);

    PlacedRuntime plain(pipeline, program, GetParam(), kClip);
    AfterSkips counted(data);
    std::vector<double> plain_norms;
    for (std::int64_t step = 0; step < kRounds; ++step) {
      if (skips[static_cast<std::size_t>(step)]) continue;
      take_round(step);
      plain_norms.push_back(plain.run(program, counted).gradient_norm);
      ++counted.updates;
    }
    EXPECT_TRUE(fingerprint(pipeline, plain) == fingerprint(pipeline, scaled));
    EXPECT_EQ(plain_norms, norms);
  }
}

// Where nothing comes back, only released entries keep a sender from overwriting what is read.
TEST_P(SameBits, ManyMicroBatchesGoForward) {
  constexpr int kMicroBatches = 24;
  const Pipeline pipeline(/*tied=*/true, 3, {4});
  const Program program = pipeline.program("forward", kMicroBatches);
  FixedData data(kMicroBatches * 4, 8);
  data.set_mini_batch(0, kMicroBatches * 4, 4, 0, {4});
  const auto losses = [&](PlacedRuntime& runtime) {
    runtime.run(program, data);
    std::vector<double> out;
    for (const MicroBatch& micro_batch : data.micro_batches()) out.push_back(micro_batch.loss_sum);
    return out;
  };
  PlacedRuntime runtime(pipeline, program, GetParam());
  PlacedRuntime on_host(pipeline, program,
                        GetParam() == Place::kReference ? Place::kReference : Place::kCpu);
  EXPECT_EQ(losses(runtime), losses(on_host));
}

std::string name_of_place(const testing::TestParamInfo<Place>& info) {
  switch (info.param) {
    case Place::kReference:
      return "reference";
    case Place::kCpu:
      return "cpu";
    case Place::kOneDevice:
      return "one_device";
    case Place::kManyDevices:
      return "many_devices";
    case Place::kExchanging:
      return "exchanging_devices";
  }
  return "";
}

INSTANTIATE_TEST_SUITE_P(Devices, SameBits,
                         testing::Values(Place::kReference, Place::kCpu, Place::kOneDevice,
                                         Place::kManyDevices, Place::kExchanging),
                         name_of_place);

/// Counts the work of the devices above; runs after them in this program.
class RecordedCount : public testing::Environment {
  void TearDown() override {
    if (PlacedRuntime::machines == 0) return;
    std::printf(
        "[ figure  ] %llu recorded machines: %llu pieces of work, %llu pairs compared, "
        "%llu groups of exchanges with %llu parts, %llu recordings put in\n",
        static_cast<unsigned long long>(PlacedRuntime::machines),
        static_cast<unsigned long long>(PlacedRuntime::operations),
        static_cast<unsigned long long>(PlacedRuntime::compared),
        static_cast<unsigned long long>(PlacedRuntime::groups),
        static_cast<unsigned long long>(PlacedRuntime::exchanged),
        static_cast<unsigned long long>(PlacedRuntime::replayed));
  }
};
const testing::Environment* const kRecordedCount =
    testing::AddGlobalTestEnvironment(new RecordedCount);

}  // namespace
}  // namespace pipetrain::test
