#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>

#include "ops/reduce/reduce_plan.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

Attributes over(Ints axes, bool keep = false) {
  return {{"axes", std::move(axes)}, {"keepdims", std::int64_t{keep}}};
}

struct ReduceCase {
  Shape shape;
  Ints axes;
};
const std::vector<ReduceCase>& reduce_cases() {
  static const std::vector<ReduceCase> all = {
      {{7}, {0}},
      {{5, 7}, {1}},
      {{5, 7}, {0}},
      {{3, 4, 5}, {1}},
      {{3, 4, 5}, {0, 2}},
      {{2, 3, 4, 5}, {0, 2, 3}},
      {{2, 3, 4, 5}, {1, 3}},
      {{2, 3, 4, 5}, {0, 2}},
      {{2, 1, 4}, {1}},
      {{2, 3}, {-1}},
      {{2, 3}, {0, 1}},
  };
  return all;
}

/// Σ over the axes by coordinates, in double.
std::vector<double> sum_by_definition(const HostTensor& x, const Ints& axes) {
  const Shape& shape = x.shape();
  std::vector<bool> reduced(shape.rank(), false);
  for (const std::int64_t axis : axes) {
    reduced[static_cast<std::size_t>(axis < 0 ? axis + static_cast<std::int64_t>(shape.rank())
                                              : axis)] = true;
  }
  std::int64_t kept = 1;
  for (std::size_t i = 0; i < shape.rank(); ++i) kept *= reduced[i] ? 1 : shape[i];
  std::vector<double> out(static_cast<std::size_t>(kept), 0.0);
  const std::vector<double> values = x.to_doubles();
  for (std::int64_t i = 0; i < x.type().count(); ++i) {
    std::int64_t rest = i, to = 0, step = 1;
    for (std::size_t axis = shape.rank(); axis-- > 0;) {
      const std::int64_t at = rest % shape[axis];
      rest /= shape[axis];
      if (reduced[axis]) continue;
      to += at * step;
      step *= shape[axis];
    }
    out[static_cast<std::size_t>(to)] += values[static_cast<std::size_t>(i)];
  }
  return out;
}

TEST(Reduce, SumMatchesItsDefinition) {
  for (const auto& [shape, axes] : reduce_cases()) {
    const HostTensor x = random_tensor({DType::kFloat64, shape}, 5);
    const HostTensor y = run_op("ReduceSum", over(axes), {x})[0];
    expect_values(y, y.shape(), sum_by_definition(x, axes), 1e-12);
  }
}

TEST(Reduce, Forward) {
  const HostTensor x = floats({2, 3}, {1, 5, 2, -4, 0, 3});
  expect_values(run_op("ReduceMean", over({1}, true), {x})[0], {2, 1}, {8.0 / 3, -1.0 / 3});
  expect_values(run_op("ReduceMax", over({0}), {x})[0], {3}, {1, 5, 3});
  expect_values(run_op("ReduceMin", over({0, 1}), {x})[0], {}, {-4});
  expect_values(run_op("ReduceProd", over({1}), {x})[0], {2}, {10, 0});
  expect_values(run_op("ReduceMax", over({0}), {int64s({3}, {3, 9, 2})})[0], {}, {9});
  expect_values(run_op("ReduceMin", over({0}), {bools({2, 2}, {1, 1, 0, 1})})[0], {2}, {0, 1});
  expect_values(run_op("ReduceSum", over({}), {x})[0], {2, 3}, {1, 5, 2, -4, 0, 3});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    expect_values(run_op("ReduceMax", over({0}), {floats({0, 2}, {})}, backend)[0], {2},
                  {-INFINITY, -INFINITY});
    expect_values(run_op("ReduceSum", over({1}), {floats({0, 2}, {})}, backend)[0], {0}, {});
    const auto with_nan =
        run_op("ReduceMax", over({1}), {floats({2, 2}, {1, NAN, NAN, 1})}, backend)[0];
    expect_values(with_nan, {2}, {NAN, NAN});
    expect_values(run_op("ReduceSum", over({0}), {floats({0, 2}, {})}, backend)[0], {2}, {0, 0});
    expect_values(run_op("ReduceMean", over({0}), {floats({0, 1}, {})}, backend)[0], {1}, {NAN});
  }
}

TEST(Reduce, Gradients) {
  for (const auto& [shape, axes] : reduce_cases()) {
    for (const bool keep : {false, true}) {
      check_gradients("ReduceSum", over(axes, keep), {{.shape = shape}});
      check_gradients("ReduceMean", over(axes, keep), {{.shape = shape}});
      check_gradients("ReduceMax", over(axes, keep), {{.shape = shape}});
      check_gradients("ReduceMin", over(axes, keep), {{.shape = shape}});
    }
  }
}

TEST(Reduce, OnTheCpu) {
  for (const auto& [shape, axes] : reduce_cases()) {
    for (const char* op : {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"}) {
      check_cpu(op, over(axes), {{.shape = shape}});
    }
    check_cpu("ReduceProd", over(axes), {{.shape = shape, .low = 0.8, .high = 1.2}});
  }
}

TEST(Reduce, LargeOnTheCpu) {
  check_cpu("ReduceSum", over({0}), {{.shape = {3000, 70}}}, 5e-5);   // rows in several splits
  check_cpu("ReduceSum", over({0}), {{.shape = {700, 1030}}}, 5e-5);  // columns in several chunks
  check_cpu("ReduceSum", over({1}), {{.shape = {70, 3001}}}, 5e-5);   // long runs
  check_cpu("ReduceMean", over({0, 2, 3}), {{.shape = {9, 70, 11, 13}}}, 5e-5);
  check_cpu("ReduceSum", over({0}), {{.shape = {20000, 8}}}, 5e-5);
  check_cpu("ReduceSum", over({0, 1}), {{.shape = {600, 401}}},
            2e-3);  // the error of the float32 reference
  check_cpu("ReduceMax", over({0, 2}), {{.shape = {700, 3, 50}}});
  check_cpu("ReduceSum", over({0, 2}), {{.shape = {5, 3, 5000}}}, 5e-5);  // a split per row
  // One run, in rows of which threads take some, and of a length that has no such rows.
  check_cpu("ReduceSum", over({0, 1}), {{.shape = {6, 32768}}}, 5e-5);
  check_cpu("ReduceMax", over({0}), {{.shape = {100003}}});
  check_cpu("ReduceMean", over({0, 2}), {{.shape = {6, 5, 7, 40}}});
}

TEST(Reduce, TheSumIsTheSameForAnyNumberOfThreads) {
  const HostTensor x = random_tensor({DType::kFloat32, {5000, 37}}, 9);
  const HostTensor exact = run_op("ReduceSum", over({0}), {as_float(x, DType::kFloat64)})[0];
  const int threads_before = omp_get_max_threads();
  omp_set_num_threads(1);
  const HostTensor once = run_op("ReduceSum", over({0}), {x}, Backend::kCpu)[0];
  expect_close(once, as_float(exact, DType::kFloat32), 2e-6);
  for (const int threads : {2, 3, 5}) {
    omp_set_num_threads(threads);
    expect_same_bits(run_op("ReduceSum", over({0}), {x}, Backend::kCpu)[0], once);
  }
  omp_set_num_threads(threads_before);
}

// Axes that end in a reduced run, and one run: of both, many threads take parts.
TEST(Reduce, RunsHaveTheSameSumForAnyNumberOfThreads) {
  const int threads_before = omp_get_max_threads();
  for (const auto& [shape, axes] : {std::pair{Shape{5, 3, 5000}, Ints{0, 2}},
                                    {Shape{6, 32768}, Ints{0, 1}},
                                    {Shape{2500, 1024}, Ints{0, 1}},
                                    {Shape{3000, 2, 300}, Ints{0, 2}}}) {
    SCOPED_TRACE(shape.text());
    const HostTensor x = random_tensor({DType::kFloat32, shape}, 9, 0, 1);
    const HostTensor exact = run_op("ReduceSum", over(axes), {as_float(x, DType::kFloat64)})[0];
    omp_set_num_threads(1);
    const HostTensor once = run_op("ReduceSum", over(axes), {x}, Backend::kCpu)[0];
    expect_close(once, as_float(exact, DType::kFloat32), 1e-6);
    for (const int threads : {2, 3, 5}) {
      omp_set_num_threads(threads);
      expect_same_bits(run_op("ReduceSum", over(axes), {x}, Backend::kCpu)[0], once);
    }
  }
  omp_set_num_threads(threads_before);
}

TEST(Reduce, BlockedInput) {
  // (2, 16, 2, 3) as (2, 2, 2, 3, 8); channel c of sample n is n + c everywhere.
  TensorType type{DType::kFloat32, {2, 16, 2, 3}, Layout::kBlocked8};
  HostTensor x(type);
  for (std::int64_t i = 0; i < type.count(); ++i) {
    const std::int64_t channel = i / 48 % 2 * 8 + i % 8;
    x.view().as<float>()[i] = static_cast<float>(i / 96 + channel);
  }
  std::vector<double> sums, means;
  for (int c = 0; c < 16; ++c) sums.push_back(6 * (2 * c + 1));
  for (int i = 0; i < 32; ++i) means.push_back(i / 16 + i % 16);
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    expect_values(run_op("ReduceSum", over({0, 2, 3}), {x}, backend)[0], {16}, sums);
    expect_values(run_op("ReduceMean", over({2, 3}), {x}, backend)[0], {2, 16}, means);
    expect_error(ErrorKind::kInternal, "blocked", [&] {
      run_op("ReduceSum", over({0, 1}), {x}, backend);
    });
  }
}

TEST(Reduce, SumTo) {
  const auto to = [](Ints shape) { return Attributes{{"shape", std::move(shape)}}; };
  const HostTensor x = floats({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  expect_values(run_op("SumTo", to({2}), {x})[0], {2}, {16, 20});
  expect_values(run_op("SumTo", to({2, 1}), {x})[0], {2, 1}, {14, 22});
  expect_values(run_op("SumTo", to({1, 2, 1}), {x})[0], {1, 2, 1}, {14, 22});
  expect_values(run_op("SumTo", to({}), {x})[0], {}, {36});
  expect_values(run_op("SumTo", to({1}), {floats({1, 1}, {3})})[0], {1}, {3});
  for (const Ints& shape : {Ints{4}, Ints{3, 1}, Ints{1, 1, 4}, Ints{}, Ints{2, 1, 1}}) {
    check_gradients("SumTo", to(shape), {{.shape = {2, 3, 4}}});
    check_cpu("SumTo", to(shape), {{.shape = {2, 3, 4}}});
  }
  expect_error(ErrorKind::kModel, "broadcast", [&] {
    infer_op("SumTo", to({3}), {{DType::kFloat32, {2, 2}}});
  });
}

TEST(Reduce, ArgMax) {
  const HostTensor x = floats({2, 3}, {1, 5, 5, 7, 0, 3});
  const auto with = [](std::int64_t axis, std::int64_t keep, std::int64_t last) {
    return Attributes{{"axis", axis}, {"keepdims", keep}, {"select_last_index", last}};
  };
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    expect_values(run_op("ArgMax", with(1, 0, 0), {x}, backend)[0], {2}, {1, 0});
    expect_values(run_op("ArgMax", with(-1, 1, 1), {x}, backend)[0], {2, 1}, {2, 0});
    expect_values(run_op("ArgMax", with(-2, 0, 0), {x}, backend)[0], {3}, {1, 0, 0});
    expect_values(run_op("ArgMin", with(0, 0, 0), {x}, backend)[0], {3}, {0, 1, 1});
  }
}

TEST(Reduce, WrongInputsAreRefused) {
  expect_error(ErrorKind::kModel, "axis 2", [] {
    infer_op("ReduceSum", over({2}), {{DType::kFloat32, {2, 2}}});
  });
  expect_error(ErrorKind::kModel, "numeric type", [] {
    infer_op("ReduceSum", over({0}), {{DType::kBool, {2}}});
  });
}

TEST(ReduceImport, AxesAreAnAttributeThenAnInput) {
  const ImportInput x = data(floats({2, 2}, {1, 2, 3, 4}));
  const auto result = [](const Imported& node) { return node.run()[0]; };
  expect_values(result(import_node("ReduceMean", 13, {{"axes", Ints{1}}}, {x})), {2, 1},
                {1.5, 3.5});
  expect_values(result(import_node("ReduceMean", 18, {{"keepdims", std::int64_t{0}}},
                                   {x, constant(int64s({1}, {0}))})),
                {2}, {2, 3});
  expect_values(result(import_node("ReduceSum", 11,
                                   {{"axes", Ints{-1}}, {"keepdims", std::int64_t{0}}}, {x})),
                {2}, {3, 7});
  expect_values(result(import_node("ReduceSum", 13, {}, {x})), {1, 1}, {10});
  const Imported nothing =
      import_node("ReduceSum", 13, {{"noop_with_empty_axes", std::int64_t{1}}}, {x});
  EXPECT_EQ(nothing.ops(), "");
}

TEST(ReduceImport, Compositions) {
  const ImportInput x = data(floats({2, 2}, {1, -2, 3, 4}));
  const auto result = [&](std::string_view op) {
    return import_node(op, 13, {{"axes", Ints{1}}, {"keepdims", std::int64_t{0}}}, {x}).run()[0];
  };
  expect_values(result("ReduceL1"), {2}, {3, 7});
  expect_values(result("ReduceL2"), {2}, {std::sqrt(5.0), 5});
  expect_values(result("ReduceSumSquare"), {2}, {5, 25});
  expect_values(result("ReduceLogSumExp"), {2}, {1.04858735, 4.31326169});
  const Imported large = import_node("ReduceLogSumExp", 18, {}, {data(floats({2}, {1000, 1000}))});
  expect_values(large.run()[0], {1}, {1000 + std::log(2.0)});
  // As torch.logsumexp, also that a row of -inf has a gradient of 0.
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const ImportInput rows =
      data(floats({4, 2}, {-kInfinity, -kInfinity, -kInfinity, 3, kInfinity, 3, kNaN, 3}));
  const Imported limits = import_node("ReduceLogSumExp", 13,
                                      {{"axes", Ints{1}}, {"keepdims", std::int64_t{0}}}, {rows});
  expect_values(limits.run()[0], {4}, {-kInfinity, 3, kInfinity, kNaN});
  for (const std::string op : {"ReduceL2", "ReduceLogSum", "ReduceLogSumExp"}) {
    expect_error(ErrorKind::kModel, op + " takes floats", [&] {
      import_node(op, 18, {}, {data(int64s({2}, {1, 2}))});
    });
  }
}

// Two equal extremes get half each; central differences agree.
TEST(Reduce, EqualExtremesShareTheGradient) {
  for (const char* op : {"ReduceMax", "ReduceMin"}) {
    InputSpec x{{2, 3}};
    x.values = {1, 5, 5, 7, 0, 7};
    if (std::string_view(op) == "ReduceMin") x.values = {1, 1, 5, 0, 7, 0};
    check_gradients(op, over({1}), {x});
  }
}

}  // namespace
}  // namespace pipetrain::test
