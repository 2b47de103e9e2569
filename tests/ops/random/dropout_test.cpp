#include "ops/random/dropout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "support/op_check.h"

namespace pipetrain::test {
namespace {

Attributes dropout(double ratio, std::int64_t key) { return {{"ratio", ratio}, {"key", key}}; }

RunContext at(std::uint64_t seed, std::uint64_t step, std::int64_t first, std::int64_t samples) {
  RunContext context;
  context.seed = seed;
  context.step = step;
  context.first_sample = first;
  context.samples = samples;
  return context;
}

HostTensor ones(Shape shape) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  for (float& value : out.span<float>()) value = 1;
  return out;
}

HostTensor masked(const Shape& shape, double ratio, std::int64_t key, const RunContext& context,
                  Backend backend = Backend::kCpu) {
  return run_op("Dropout", dropout(ratio, key), {ones(shape)}, backend, context)[0];
}

std::vector<double> rows_of(const HostTensor& tensor, std::int64_t first, std::int64_t count) {
  const std::vector<double> all = tensor.to_doubles();
  const std::int64_t width = tensor.type().count() / tensor.shape()[0];
  return {all.begin() + first * width, all.begin() + (first + count) * width};
}

TEST(Dropout, KeepsTheRightShareAndScalesIt) {
  for (const double ratio : {0.1, 0.5, 0.75}) {
    const HostTensor y = masked({8, 12500}, ratio, 7, at(1, 2, 0, 8));
    double kept = 0;
    for (const double value : y.to_doubles()) {
      if (value == 0) continue;
      EXPECT_NEAR(value, 1 / (1 - ratio), 1e-6);
      ++kept;
    }
    // Five standard deviations of the binomial distribution.
    EXPECT_NEAR(kept / 1e5, 1 - ratio, 5 * std::sqrt(ratio * (1 - ratio) / 1e5));
  }
}

TEST(Dropout, BackendsDrawTheSameMask) {
  for (const std::int64_t width : {1, 5, 31, 32, 33, 64, 1000}) {
    const Shape shape{6, width};
    const RunContext context = at(11, 3, 40, 6);
    expect_same_bits(masked(shape, 0.3, 5, context, Backend::kCpu),
                     masked(shape, 0.3, 5, context, Backend::kReference));
  }
  check_cpu("Dropout", dropout(0.25, 9), {{{16, 3000}}}, 1e-6, at(1, 1, 0, 16));
}

// A mini-batch of 8 samples has one mask, however it is split into micro-batches.
TEST(Dropout, MicroBatchesDoNotChangeTheMask) {
  const HostTensor whole = masked({8, 50}, 0.5, 3, at(1, 4, 0, 8));
  for (const std::int64_t size : {1, 2, 4}) {
    for (std::int64_t first = 0; first < 8; first += size) {
      const HostTensor part = masked({size, 50}, 0.5, 3, at(1, 4, first, size));
      EXPECT_EQ(part.to_doubles(), rows_of(whole, first, size)) << first << " by " << size;
    }
  }
}

TEST(Dropout, EveryPartOfTheKeyMatters) {
  const Shape shape{2, 64};
  const std::vector<double> base = masked(shape, 0.5, 1, at(1, 1, 0, 2)).to_doubles();
  EXPECT_NE(masked(shape, 0.5, 1, at(2, 1, 0, 2)).to_doubles(), base);
  EXPECT_NE(masked(shape, 0.5, 1, at(1, 2, 0, 2)).to_doubles(), base);
  EXPECT_NE(masked(shape, 0.5, 2, at(1, 1, 0, 2)).to_doubles(), base);
  EXPECT_NE(masked(shape, 0.5, 1, at(1, 1, 2, 2)).to_doubles(), base);
  const HostTensor again = masked(shape, 0.5, 1, at(1, 1, 0, 2));
  EXPECT_EQ(again.to_doubles(), base);
  EXPECT_NE(rows_of(again, 0, 1), rows_of(again, 1, 1));
}

TEST(Dropout, GradientUsesTheSameMask) {
  GradientOptions options;
  options.context = at(5, 6, 7, 3);
  check_gradients("Dropout", dropout(0.4, 2), {{{3, 10}}}, options);
}

TEST(Dropout, RefusesBadRatios) {
  const std::vector<TensorType> x = {{DType::kFloat32, Shape{2}}};
  expect_error(ErrorKind::kModel, "ratio", [&] { infer_op("Dropout", dropout(1.0, 0), x); });
  expect_error(ErrorKind::kModel, "ratio", [&] { infer_op("Dropout", dropout(-0.1, 0), x); });
}

TEST(DropoutImport, OnlyWhileTraining) {
  const HostTensor x = ones({2, 3});
  const Attributes ratio = {{"ratio", 0.25}};
  EXPECT_EQ(import_node("Dropout", 7, ratio, {data(x)}).ops(), "Dropout");
  EXPECT_EQ(import_node("Dropout", 7, ratio, {data(x)}, 1, {.training = false}).ops(), "");
  EXPECT_EQ(import_node("Dropout", 7, ratio, {data(x)}, 1, {.dropout = false}).ops(), "");
  const Imported off = import_node("Dropout", 7, ratio, {data(x)}, 1, {.training = false});
  EXPECT_EQ(off.outputs[0], off.inputs[0]);
}

TEST(DropoutImport, RatioIsAnAttributeThenAnInput) {
  const HostTensor x = ones({2, 3});
  const Imported old = import_node("Dropout", 10, {}, {data(x)});
  EXPECT_EQ(old.graph.nodes.at(0).attributes.real("ratio"), 0.5);
  const Imported without = import_node("Dropout", 13, {}, {data(x)});
  EXPECT_EQ(without.graph.nodes.at(0).attributes.real("ratio"), 0.5);
  const Imported recent =
      import_node("Dropout", 13, {}, {data(x), constant(HostTensor::scalar(0.125f))});
  EXPECT_EQ(recent.graph.nodes.at(0).attributes.real("ratio"), 0.125);
  const Imported none =
      import_node("Dropout", 13, {}, {data(x), constant(HostTensor::scalar(0.0f))});
  EXPECT_EQ(none.ops(), "");
  expect_error(ErrorKind::kModel, "ratio", [&] {
    import_node("Dropout", 13, {}, {data(x), data(HostTensor::scalar(0.5f))});
  });
}

TEST(DropoutImport, MaskOutput) {
  const HostTensor x = ones({4, 100});
  const Imported training = import_node("Dropout", 13, {}, {data(x)}, 2);
  const auto out = training.run(Backend::kCpu, at(1, 2, 3, 4));
  const std::vector<double> kept = out[0].to_doubles();
  const std::vector<double> mask = out[1].to_doubles();
  EXPECT_EQ(out[1].dtype(), DType::kBool);
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(mask[i] != 0, kept[i] != 0);
  const Imported off = import_node("Dropout", 13, {}, {data(x)}, 2, {.training = false});
  for (const double flag : off.run()[1].to_doubles()) EXPECT_EQ(flag, 1);
}

TEST(DropoutImport, NothingIsKeptWithRatioOne) {
  const HostTensor x = ones({2, 3});
  const std::vector<ImportInput> inputs = {data(x), constant(HostTensor::scalar(1.0f))};
  EXPECT_EQ(import_node("Dropout", 13, {}, inputs).ops(), "Mul");
  const std::vector<HostTensor> recent = import_node("Dropout", 13, {}, inputs, 2).run();
  const std::vector<HostTensor> old =
      import_node("Dropout", 7, {{"ratio", 1.0}}, {data(x)}, 2).run();
  EXPECT_EQ(recent[1].dtype(), DType::kBool);
  EXPECT_EQ(old[1].dtype(), DType::kFloat32);
  for (const std::vector<HostTensor>& out : {recent, old}) {
    EXPECT_EQ(out[0].to_doubles(), std::vector<double>(6, 0));
    EXPECT_EQ(out[1].shape(), (Shape{2, 3}));
    EXPECT_EQ(out[1].to_doubles(), std::vector<double>(6, 0));
  }
}

}  // namespace
}  // namespace pipetrain::test
