#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <numeric>

#include "support/op_check.h"

namespace pipetrain::test {
namespace {

RunContext context_at(std::uint64_t seed, std::uint64_t step, std::int64_t first,
                      std::int64_t samples) {
  RunContext context;
  context.seed = seed;
  context.step = step;
  context.first_sample = first;
  context.samples = samples;
  return context;
}

HostTensor like(Shape shape) { return HostTensor(TensorType{DType::kFloat32, std::move(shape)}); }

std::vector<double> draw(const char* op, const Attributes& attributes, const Shape& shape,
                         const RunContext& context) {
  return run_op(op, attributes, {like(shape)}, Backend::kCpu, context)[0].to_doubles();
}

struct Moments {
  double mean, deviation;
};
Moments moments(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, std::sqrt(squares / count)};
}

// Five standard errors of the mean and of the deviation.
TEST(Random, HasTheRightMoments) {
  const double count = 1e5;
  const auto uniform =
      moments(draw("RandomUniform", {{"low", -1.0}, {"high", 3.0}, {"key", std::int64_t{1}}},
                   {8, 12500}, context_at(1, 2, 0, 8)));
  EXPECT_NEAR(uniform.mean, 1, 5 * (4 / std::sqrt(12)) / std::sqrt(count));
  EXPECT_NEAR(uniform.deviation, 4 / std::sqrt(12), 0.01);
  const auto normal =
      moments(draw("RandomNormal", {{"mean", 2.0}, {"scale", 0.5}, {"key", std::int64_t{1}}},
                   {8, 12500}, context_at(1, 2, 0, 8)));
  EXPECT_NEAR(normal.mean, 2, 5 * 0.5 / std::sqrt(count));
  EXPECT_NEAR(normal.deviation, 0.5, 5 * 0.5 / std::sqrt(2 * count));
}

// A mini-batch of 8 samples has the same values, however it is split into micro-batches; everything
// else changes them.
TEST(Random, DependsOnSampleStepSeedAndNodeOnly) {
  const Attributes attributes = {{"key", std::int64_t{3}}};
  const Shape whole{8, 10};
  const std::vector<double> all = draw("RandomUniform", attributes, whole, context_at(1, 4, 0, 8));
  for (const std::int64_t size : {1, 2, 4}) {
    for (std::int64_t first = 0; first < 8; first += size) {
      const std::vector<double> part =
          draw("RandomUniform", attributes, {size, 10}, context_at(1, 4, first, size));
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + first * 10)) << first;
    }
  }
  EXPECT_NE(draw("RandomUniform", attributes, whole, context_at(2, 4, 0, 8)), all);
  EXPECT_NE(draw("RandomUniform", attributes, whole, context_at(1, 5, 0, 8)), all);
  EXPECT_NE(draw("RandomUniform", {{"key", std::int64_t{4}}}, whole, context_at(1, 4, 0, 8)), all);
}

// EfficientNet's stochastic depth as exported; it must not be folded.
TEST(Random, BernoulliAndStochasticDepthDrawAnew) {
  const Imported drops =
      import_node("Bernoulli", 15, {}, {constant(floats({4000}, std::vector<float>(4000, 0.8F)))});
  EXPECT_EQ(drops.ops(), "RandomUniform Less Cast");
  const auto first = drops.run(Backend::kCpu, context_at(1, 1, 0, 4000))[0].to_doubles();
  const auto second = drops.run(Backend::kCpu, context_at(1, 2, 0, 4000))[0].to_doubles();
  EXPECT_NE(first, second);
  EXPECT_NEAR(moments(first).mean, 0.8, 5 * 0.4 / std::sqrt(4000));

  const Imported noise = import_node("RandomUniform", 22, {{"shape", Ints{2, 3}}}, {});
  EXPECT_FALSE(noise.is_constant());
  EXPECT_EQ(noise.run(Backend::kCpu, context_at(1, 1, 0, 2))[0].shape().text(), "(2, 3)");
}

// In evaluation the choice is replaced by its probability.
TEST(Random, EvaluationTakesTheProbability) {
  ImportMode evaluation;
  evaluation.training = false;
  const HostTensor p = floats({2}, {0.25, 0.5});
  for (const Attributes& attributes : {Attributes{}, Attributes{{"dtype", std::int64_t{1}}}}) {
    expect_values(import_node("Bernoulli", 15, attributes, {data(p)}, 1, evaluation).run()[0], {2},
                  {0.25, 0.5});
  }
  Graph graph;
  GraphBuilder builder = make_builder(graph);
  const ValueId shape = builder.constant(floats({2, 1}, {0, 0}));
  const ValueId noise = builder.add("RandomUniform", {shape}, {{"key", std::int64_t{1}}});
  const ValueId hit = builder.add("Less", {noise, builder.constant(floats({}, {0.8F}))});
  const Attributes to = {{"to", std::int64_t{1}}};
  const auto cast = [&](const ImportMode& mode) {
    ImportContext context(builder, "Cast", 17, to, {hit}, 1, mode);
    find_import("Cast")->import(context);
    return context.outputs()[0];
  };
  EXPECT_EQ(graph[cast({})].role, Role::kActivation);
  const ValueId known = cast(evaluation);
  ASSERT_EQ(graph[known].role, Role::kConstant);
  expect_values(graph[known].data, {2, 1}, {0.8, 0.8});
}

TEST(Random, OnTheCpuTheSameForAnyNumberOfThreads) {
  const HostTensor like(TensorType{DType::kBool, {3, 20'000}});
  const RunContext context = context_at(7, 2, 5, 3);
  const int before = omp_get_max_threads();
  for (const char* op : {"RandomUniform", "RandomNormal"}) {
    const Attributes attributes = {{"key", std::int64_t{1}}};
    const HostTensor expected = run_op(op, attributes, {like}, Backend::kReference, context)[0];
    for (const int threads : {1, 2, 3}) {
      omp_set_num_threads(threads);
      expect_same_bits(run_op(op, attributes, {like}, Backend::kCpu, context)[0], expected);
    }
  }
  omp_set_num_threads(before);
}

TEST(Random, NothingFlowsBack) {
  for (const char* op : {"RandomUniform", "RandomNormal"}) {
    ASSERT_NE(find_op(op)->differentiate, nullptr);
    EXPECT_NE(find_op(op)->flags & kRandom, 0U);
  }
}

}  // namespace
}  // namespace pipetrain::test
