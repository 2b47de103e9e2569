// Work that layers of real sizes share between micro-batches: packed weights, batched weight
// gradients, tables of rows and recorded work, with the bits of the oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/program/check.h"
#include "pipeline/program/text.h"
#include "pipeline/runtime/oracle.h"
#include "pipeline/schedule/lower.h"
#include "support/placed_runtime.h"
#include "support/process_runs.h"

namespace pipetrain::test {
namespace {

/// Two steps of 5 micro-batches, the last of which is smaller: their gradients are batched in
/// pairs.
const std::vector<std::int64_t> kWideSizes = {32, 20};
constexpr int kWideMicroBatches = 5, kWideSamples = 4 * 32 + 20;

template <class Runner>
void train_wide(Runner& runner, const Program& program) {
  FixedData data(2 * kWideSamples, 7);
  for (std::int64_t step = 0; step < 2; ++step) {
    data.set_mini_batch(step * kWideSamples, kWideSamples, 32, step, kWideSizes);
    runner.run(program, data);
  }
}

// Weights packed once per version, matmuls that accumulate themselves, and batched weight
// gradients, against an oracle that accumulates afterwards and batches by itself.
TEST(WideLayers, HaveTheBitsOfTheirOracle) {
  const RuntimeOptions options = runtime_options(Place::kCpu);
  std::string expected;
  for (const bool clip : {false, true}) {
    for (const int stages : {0, 1, 2, 3}) {
      const Pipeline pipeline(wide_network(), std::max(stages, 1), kWideSizes, kWideMicroBatches);
      EXPECT_GE(pipeline.packed_weights, 3);
      EXPECT_EQ(pipeline.batch_gradients, 2);
      for (const std::string schedule : {"zb-h1", "1f1b", "gpipe"}) {
        const Program program =
            pipeline.program(schedule, kWideMicroBatches, /*recompute=*/false, clip);
        if (stages == 0) {
          Oracle oracle(pipeline.variants, 1, options);
          train_wide(oracle, program);
          expected = fingerprint(pipeline, oracle);
          continue;
        }
        const std::vector<const Program*> programs = {&program};
        Runtime runtime(pipeline.variants, programs, options);
        train_wide(runtime, program);
        EXPECT_TRUE(fingerprint(pipeline, runtime) == expected) << schedule << " " << stages;
      }
    }
  }
}

// A stage may update while others of its device still add gradients.
TEST(WideLayers, UpdateBeforeOtherStagesOfTheirDevice) {
  const RuntimeOptions options = runtime_options(Place::kCpu);
  const Pipeline pipeline(wide_network(), 4, kWideSizes, kWideMicroBatches);
  const Program program =
      lower(parse_program("pipetrain-schedule 1\nname early\nrule sync\nstages 4\nunits 5\n"
                          "placement 0 1 0 1\ntransfers no\n"
                          "device 0: 0F0 0F1 0F2 0F3 0F4 2F0 2F1 2F2 2F3 2F4 2B0 2B1 2B2 2B3 2B4 2U"
                          " 0B0 0B1 0B2 0B3 0B4 0U\n"
                          "device 1: 1F0 1F1 1F2 1F3 1F4 3F0 3F1 3F2 3F3 3F4 3B0 3B1 3B2 3B3 3B4 3U"
                          " 1B0 1B1 1B2 1B3 1B4 1U\n",
                          "early"),
            pipeline.edges);
  check(program);
  Oracle oracle(pipeline.variants, 4, options);
  train_wide(oracle, program);
  const std::string expected = fingerprint(pipeline, oracle);
  for (int i = 0; i < 5; ++i) {
    Runtime runtime(pipeline.variants, std::vector<const Program*>{&program}, options);
    train_wide(runtime, program);
    EXPECT_TRUE(fingerprint(pipeline, runtime) == expected);
  }
}

// While a device waits for another process, it computes its batched gradients.
TEST(WideLayers, InProcessesFillWaitsWithTheirBatchedGradients) {
  std::uint64_t seed = 30;
  for (const std::vector<int>& process_of_device : {std::vector{0, 1}, {0, 0, 1}, {0, 1, 1}}) {
    const int stages = static_cast<int>(process_of_device.size());
    const Pipeline pipeline(wide_network(), stages, kWideSizes, kWideMicroBatches);
    double stolen_seconds = 0;
    for (const std::string schedule : {"1f1b", "zb-h1", "gpipe"}) {
      const Program program = pipeline.program(schedule, kWideMicroBatches);
      Oracle oracle(pipeline.variants, stages, runtime_options(Place::kCpu));
      train_wide(oracle, program);
      MemoryWorld world(2, ++seed);
      world.delay_messages(200);
      const auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
        RuntimeOptions options = runtime_options(Place::kCpu);
        options.processes = &group;
        options.process_of_device = process_of_device;
        Runtime runtime(pipeline.variants, std::vector<const Program*>{&program}, options);
        FixedData data(2 * kWideSamples, 7);
        for (std::int64_t step = 0; step < 2; ++step) {
          data.set_mini_batch(step * kWideSamples, kWideSamples, 32, step, kWideSizes);
          const RoundResult result = runtime.run(program, data);
          if (group.leads()) stolen_seconds += result.stolen_seconds;
        }
        const std::map<std::string, HostTensor> of_others = runtime.weights_of_others();
        for (const Parameter& parameter : pipeline.graphs[0]->parameters) {
          const auto other = of_others.find(parameter.name);
          const HostTensor weight =
              other == of_others.end() ? runtime.read(parameter.name) : other->second;
          EXPECT_TRUE(!group.leads() || weight) << parameter.name;
          if (!weight) continue;
          const HostTensor expected = oracle.read(parameter.name);
          EXPECT_TRUE(std::ranges::equal(weight.span<float>(), expected.span<float>()))
              << schedule << " " << parameter.name;
        }
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    }
    EXPECT_GT(stolen_seconds, 0) << stages;
  }
}

// An unaccumulated gradient must not share memory with other work of its stage while another device
// computes it.
TEST(StridedConvolutions, HaveTheBitsOfTheirOracle) {
  constexpr int kMicroBatches = 32, kSteps = 3;
  constexpr std::int64_t kSamples = 8;
  const Pipeline pipeline(strided_network(), 3, {kSamples}, kMicroBatches);
  EXPECT_GE(pipeline.batch_gradients, 1);
  const Program program = pipeline.program("gpipe", kMicroBatches);
  const auto train = [&](auto& runner) {
    FixedData data(kSteps * kMicroBatches * kSamples, 7);
    for (std::int64_t step = 0; step < kSteps; ++step) {
      data.set_mini_batch(step * kMicroBatches * kSamples, kMicroBatches * kSamples, kSamples, step,
                          {kSamples});
      runner.run(program, data);
    }
    return fingerprint(pipeline, runner);
  };
  const RuntimeOptions options = runtime_options(Place::kCpu);
  Oracle oracle(pipeline.variants, 3, options);
  const std::string expected = train(oracle);
  for (int i = 0; i < 3; ++i) {
    const std::vector<const Program*> programs = {&program};
    Runtime runtime(pipeline.variants, programs, options);
    EXPECT_TRUE(train(runtime) == expected);
  }
}

/// SGD and Adam with and without states, and with a decay that changes every row.
std::vector<OptimizerSettings> settings_with_and_without_decay() {
  std::vector<OptimizerSettings> all = {default_settings(OptimizerKind::kAdamW),
                                        default_settings(OptimizerKind::kAdam),
                                        default_settings(OptimizerKind::kSgd)};
  all.push_back(all.back());
  all.back().momentum = 0;
  return all;
}

/// Steps [from, to) with a table, on batches that use other rows each.
template <class Runner>
void train_table(const Program& program, std::int64_t from, std::int64_t to, Runner& runner) {
  FixedData data(6 * kBatch, 5);
  for (std::int64_t step = from; step < to; ++step) {
    data.set_mini_batch(step * kBatch, kBatch, kMicroBatch, step, kSizes);
    runner.run(program, data);
  }
}

// States of rows that no sample has used are zero, and are not restored.
TEST(TableOfRows, GoesOnFromItsStatesWithTheSameBits) {
  RuntimeOptions options = runtime_options(Place::kCpu);
  const Pipeline pipeline(table_network(), 2, kSizes);
  const Program program = pipeline.program("1f1b", 3);
  const std::vector<const Program*> programs = {&program};
  for (const OptimizerSettings& optimizer : settings_with_and_without_decay()) {
    options.optimizer = optimizer;
    Runtime whole(pipeline.variants, programs, options);
    train_table(program, 0, 2, whole);
    const std::vector<StageContent> half = whole.contents();
    train_table(program, 2, 6, whole);
    Runtime fresh(pipeline.variants, programs, options);
    for (const bool used : {false, true}) {
      if (used) train_table(program, 4, 6, fresh);  // states of other rows must be gone
      for (int s = 0; s < 2; ++s) fresh.restore(s, half[static_cast<std::size_t>(s)]);
      train_table(program, 2, 6, fresh);
      EXPECT_TRUE(fingerprint(pipeline, fresh) == fingerprint(pipeline, whole))
          << name_of(optimizer.kind) << " " << optimizer.momentum << " " << used;
    }
  }
}

// Of a table's gradient only rows that are used are written, by each replica those of its
// micro-batches.
TEST(TableOfRows, HasTheBitsOfItsOracle) {
  RuntimeOptions options = runtime_options(Place::kCpu);
  const Pipeline pipeline(table_network(), 2, kSizes);
  const std::vector<std::pair<std::string, int>> cases = {{"1f1b", 1}, {"zb-h1", 1}, {"1f1b", 2}};
  for (const auto& [name, replicas] : cases) {
    ScheduleOptions schedule;
    schedule.name = name;
    schedule.micro_batches = 3;
    if (replicas > 1) schedule.replicas = {replicas, 1};
    const Program program = pipeline.program(schedule);
    const auto train = [&](auto& runner) {
      train_table(program, 0, 6, runner);
      return fingerprint(pipeline, runner);
    };
    for (const OptimizerSettings& optimizer : settings_with_and_without_decay()) {
      options.optimizer = optimizer;
      Oracle oracle(pipeline.variants, 2, options);
      const std::vector<const Program*> programs = {&program};
      Runtime runtime(pipeline.variants, programs, options);
      EXPECT_TRUE(train(runtime) == train(oracle)) << name << " " << replicas;
    }
  }
}

// A mini-batch of one sample, whose gradient that the batch of a layer keeps is that of a
// parameter, too.
TEST(WideLayers, GatherGradientsThatAreThoseOfParameters) {
  const std::vector<std::int64_t> sizes = {4, 1};
  const Pipeline pipeline(position_network(), 1, sizes, /*micro_batches=*/4);
  EXPECT_GE(pipeline.batch_gradients, 2);
  const Program program = pipeline.program("gpipe", 1);
  const auto train = [&](auto& runner) {
    FixedData data(6, 7);
    std::int64_t first = 0, step = 0;
    for (const std::int64_t samples : {4, 1, 1}) {
      data.set_mini_batch(first, samples, 4, step++, sizes);
      runner.run(program, data);
      first += samples;
    }
    return fingerprint(pipeline, runner);
  };
  const RuntimeOptions options = runtime_options(Place::kCpu);
  Oracle oracle(pipeline.variants, 1, options);
  const std::vector<const Program*> programs = {&program};
  Runtime runtime(pipeline.variants, programs, options);
  EXPECT_TRUE(train(runtime) == train(oracle));
}

TEST(WideLayers, ReplicasGatherTheirOwnMicroBatches) {
  const RuntimeOptions options = runtime_options(Place::kCpu);
  const Pipeline pipeline(wide_network(), 2, kWideSizes, kWideMicroBatches);
  ScheduleOptions schedule;
  schedule.name = "1f1b";
  schedule.micro_batches = kWideMicroBatches;
  schedule.replicas = {2, 1};
  const Program program = pipeline.program(schedule);
  Oracle oracle(pipeline.variants, 2, options);
  train_wide(oracle, program);
  const std::vector<const Program*> programs = {&program};
  Runtime runtime(pipeline.variants, programs, options);
  train_wide(runtime, program);
  EXPECT_TRUE(fingerprint(pipeline, runtime) == fingerprint(pipeline, oracle));
}

// The same sums as micro-batch by micro-batch, in another order.
TEST(WideLayers, GatheredGradientsAreTheSums) {
  const RuntimeOptions options = runtime_options(Place::kCpu);
  std::vector<std::vector<float>> weights;
  for (const std::int64_t micro_batches : {0, kWideMicroBatches}) {
    const Pipeline pipeline(wide_network(), 2, kWideSizes, micro_batches);
    const Program program = pipeline.program("1f1b", kWideMicroBatches);
    const std::vector<const Program*> programs = {&program};
    Runtime runtime(pipeline.variants, programs, options);
    train_wide(runtime, program);
    const HostTensor weight = runtime.read("layer2.weight");
    const auto& values = pipeline.graphs[0]->graph.values;
    const HostTensor& initial = std::find_if(values.begin(), values.end(), [](const Value& value) {
                                  return value.name == "layer2.weight";
                                })->data;
    std::vector<float>& moved = weights.emplace_back();
    for (std::size_t i = 0; i < weight.span<float>().size(); ++i)
      moved.push_back(weight.span<float>()[i] - initial.span<float>()[i]);
  }
  double difference = 0, sum = 0;
  for (std::size_t i = 0; i < weights[0].size(); ++i) {
    difference += std::abs(static_cast<double>(weights[0][i] - weights[1][i]));
    sum += std::abs(static_cast<double>(weights[0][i]));
  }
  EXPECT_GT(sum, 0);
  EXPECT_LT(difference, 1e-4 * sum);
}

// Kernels that read nothing but memory: after two rounds every pass is a recording.
TEST(WideLayers, RecordedWorkHasTheBitsOfWorkPutInOneByOne) {
  const std::vector<std::int64_t> sizes = {16, 4};  // 16 + 16 + 16 + 4
  for (const std::string schedule : {"gpipe", "1f1b", "zb-h1"}) {
    const Pipeline pipeline(wide_network(), 2, sizes);
    const Program program = pipeline.program(schedule, 4);
    std::string expected;
    for (const int failing : {-1, 0, 2}) {
      RecordedMachine machine(2, 3);
      if (failing >= 0) machine.allow_recordings(failing);
      RuntimeOptions options = runtime_options(Place::kCpu);
      for (int d = 0; d < 2; ++d) options.devices.push_back(&machine.device(d));
      std::uint64_t replayed = 0;
      {
        Runtime runtime(pipeline.variants, std::vector<const Program*>{&program}, options);
        FixedData data(6 * 52, 7);
        std::uint64_t before_last = 0;
        for (std::int64_t step = 0; step < 6; ++step) {
          data.set_mini_batch(step * 52, 52, 16, step, sizes);
          runtime.run(program, data);
          before_last = std::exchange(replayed, machine.replayed());
        }
        // Two stages, four micro-batches, a forward and a backward each, in one or two halves.
        const std::uint64_t passes = schedule == "zb-h1" ? 24 : 16;
        EXPECT_EQ(replayed - before_last, failing == 0 ? passes : 0U) << schedule << failing;
        const std::string bits = fingerprint(pipeline, runtime);
        if (failing < 0) expected = bits;
        EXPECT_TRUE(bits == expected) << schedule << " " << failing;
      }
      for (const std::string& problem : machine.problems()) ADD_FAILURE() << problem;
    }
  }
}

}  // namespace
}  // namespace pipetrain::test
