#include "pipeline/stage/stage_executor.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "pipeline/stage/stage_device.h"
#include "pipeline/stage/stage_host.h"
#include "support/recorded_devices.h"

namespace pipetrain {
namespace {

/// Runs `body` with the executor of host memory, then with that of a device, which must find
/// nothing wrong.
template <class Body>
void with_each_executor(const Body& body) {
  {
    SCOPED_TRACE("host");
    StageHost host(Backend::kReference);
    body(host);
  }
  SCOPED_TRACE("device");
  test::RecordedMachine machine(1, 3);
  const std::unique_ptr<Stream> compute = machine.device(0).make_stream();
  const std::unique_ptr<Stream> transfer = machine.device(0).make_stream();
  {
    StageDevice device(*compute, *transfer);
    body(device);
    device.synchronize();
  }
  for (const std::string& problem : machine.problems()) ADD_FAILURE() << problem;
}

/// Room for `count` floats at the begin of an arena of two halves, and as many behind its slots.
ArenaHalves take_floats(StageExecutor& executor, std::size_t count) {
  StageArena arena;
  arena.slots = aligned(count * sizeof(float));
  arena.bytes = 2 * arena.slots;
  return executor.take_arena(arena);
}

float* floats_at(std::byte* data) { return reinterpret_cast<float*>(data); }

std::vector<float> read(const StageExecutor& executor, const float* data, std::size_t count) {
  std::vector<float> room;
  const std::span<const float> values = executor.read_back({data, count}, room);
  return {values.begin(), values.end()};
}

TEST(StageExecutor, TakesZeroedMemoryAndCopiesAndAdds) {
  with_each_executor([](StageExecutor& executor) {
    const ArenaHalves halves = take_floats(executor, 100);
    float* a = floats_at(halves.begin);
    float* b = floats_at(halves.slots);
    EXPECT_EQ(read(executor, a, 100), std::vector<float>(100, 0));
    EXPECT_EQ(read(executor, b, 100), std::vector<float>(100, 0));
    std::vector<float> values(100);
    std::iota(values.begin(), values.end(), 1.0F);
    executor.move(a, values.data(), 100 * sizeof(float));
    executor.copy(b, a, 100 * sizeof(float));
    executor.add(b, a, 99);
    std::vector<float> expected = values;
    for (std::size_t i = 0; i < 99; ++i) expected[i] *= 2;
    EXPECT_EQ(read(executor, b, 100), expected);
    EXPECT_EQ(read(executor, a, 100), values);
  });
}

TEST(StageExecutor, PlacesAConstantOnce) {
  with_each_executor([](StageExecutor& executor) {
    const HostTensor value = HostTensor::of<float>({3}, std::array<float, 3>{1, 2, 4});
    const HostTensor other = HostTensor::of<float>({3}, std::array<float, 3>{1, 2, 3});
    // As in the network of another micro-batch, which shares it, or has converted it again.
    const HostTensor again = value;
    const HostTensor equal = HostTensor::of<float>({3}, std::array<float, 3>{1, 2, 4});
    const float* first = floats_at(executor.place_constant(value));
    const float* second = floats_at(executor.place_constant(other));
    EXPECT_EQ(floats_at(executor.place_constant(again)), first);
    EXPECT_NE(second, first);
    const float* third = floats_at(executor.place_constant(equal));
    if (executor.device()) EXPECT_EQ(third, first);
    EXPECT_EQ(read(executor, first, 3), (std::vector<float>{1, 2, 4}));
    EXPECT_EQ(read(executor, second, 3), (std::vector<float>{1, 2, 3}));
    EXPECT_EQ(read(executor, third, 3), (std::vector<float>{1, 2, 4}));
    EXPECT_EQ(executor.constant_bytes(), executor.device() ? 2 * aligned(12) : 0U);
  });
}

TEST(StageExecutor, SumsSquaresOfEachGradient) {
  with_each_executor([](StageExecutor& executor) {
    const ArenaHalves halves = take_floats(executor, 3);
    const std::vector<float> values = {1, 2, 4};
    executor.move(halves.begin, values.data(), 3 * sizeof(float));
    for (int step = 0; step < 2; ++step) {
      double first = -1, second = -1;
      executor.sum_of_squares({floats_at(halves.begin), 2}, first);
      executor.sum_of_squares({floats_at(halves.begin) + 1, 2}, second);
      executor.finish_sums();
      EXPECT_EQ(first, 5);
      EXPECT_EQ(second, 20);
    }
    executor.finish_sums();  // of nothing
  });
}

TEST(StageExecutor, FindsWhatIsNotFinite) {
  with_each_executor([](StageExecutor& executor) {
    const ArenaHalves halves = take_floats(executor, 2);
    const std::vector<float> values = {1, std::numeric_limits<float>::infinity()};
    executor.move(halves.begin, values.data(), 2 * sizeof(float));
    EXPECT_TRUE(executor.is_finite({floats_at(halves.begin), 1}));
    EXPECT_FALSE(executor.is_finite({floats_at(halves.begin), 2}));
  });
}

/// Two micro-batches of two values 1, 3 and 5, 7, whose moments lie in the same place one after the
/// other.
TEST(StageExecutor, MergesTheMomentsThatWereThereWhenTheyWereCollected) {
  with_each_executor([](StageExecutor& executor) {
    const ArenaHalves halves = take_floats(executor, 2);
    float* here = floats_at(halves.slots);
    Moments moments;
    moments.reset(1);
    for (const float mean : {2.0F, 6.0F}) {
      const std::vector<float> values = {mean, 1};
      executor.move(here, values.data(), 2 * sizeof(float));
      const BatchMoments one{&moments, here, here + 1, 1, 2};
      executor.collect_moments({&one, 1});
    }
    executor.synchronize();
    executor.merge_moments();
    EXPECT_EQ(moments.numbers(), (std::vector<double>{4, 4, 20}));
  });
}

TEST(StageExecutor, UpdatesParametersAndTheirAverages) {
  with_each_executor([](StageExecutor& executor) {
    const ArenaHalves halves = take_floats(executor, 4);
    float* weights = floats_at(halves.begin);
    float* gradient = floats_at(halves.slots);
    const std::vector<float> values = {1, 2}, slope = {4, 8};
    executor.move(weights, values.data(), 2 * sizeof(float));
    executor.move(gradient, slope.data(), 2 * sizeof(float));
    OptimizerSettings settings;
    settings.kind = OptimizerKind::kSgd;
    StageUpdates updates;
    updates.parameters.push_back({&settings, 0.5, {weights, 2}, {gradient, 2}, {}, {}});
    updates.averages.push_back(weights + 2);
    WorkSharing nobody;
    executor.update(updates, 1, 0.25, 0.5, nobody);
    executor.synchronize();
    // 1 - 0.5 * 4 / 4 and 2 - 0.5 * 8 / 4; the first average is the weights.
    EXPECT_EQ(read(executor, weights, 4), (std::vector<float>{0.5, 1, 0.5, 1}));
  });
}

TEST(StageExecutor, GivesTheLossOfAMicroBatchWhenItEnds) {
  with_each_executor([](StageExecutor& executor) {
    const ArenaHalves halves = take_floats(executor, 2);
    const CompiledVariant variant;
    LossResults results;
    for (const float loss : {3.0F, 5.0F}) {
      StageMicroBatch micro_batch;
      executor.begin(variant, micro_batch);
      const std::vector<float> values = {loss, 2};
      executor.move(halves.slots, values.data(), 2 * sizeof(float));
      float* here = floats_at(halves.slots);
      executor.take_loss(micro_batch, here, here + 1, results);
      executor.end(micro_batch, &results);
      EXPECT_EQ(results.loss_sum, loss);
      EXPECT_EQ(results.correct, 2);
      EXPECT_EQ(micro_batch.buffers, -1);
    }
  });
}

}  // namespace
}  // namespace pipetrain
