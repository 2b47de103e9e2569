#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/op_check.h"

namespace pipetrain::test {
namespace {

Attributes axis(std::int64_t value) { return {{"axis", value}}; }

const HostTensor& sample() {
  static const HostTensor x = floats({2, 3}, {1, 2, 3, -1, 0.5, 0.25});
  return x;
}

TEST(Softmax, GoldenNumbers) {
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    expect_values(
        run_op("Softmax", axis(-1), {sample()}, backend)[0], {2, 3},
        {0.0900305732, 0.2447284711, 0.6652409558, 0.1114574711, 0.4995177298, 0.3890247991});
    expect_values(
        run_op("Softmax", axis(0), {sample()}, backend)[0], {2, 3},
        {0.880797078, 0.8175744762, 0.9399133498, 0.119202922, 0.1824255238, 0.0600866502});
    expect_values(
        run_op("LogSoftmax", axis(1), {sample()}, backend)[0], {2, 3},
        {-2.4076059644, -1.4076059644, -0.4076059644, -2.1941121864, -0.6941121864, -0.9441121864});
  }
}

TEST(Softmax, Gradients) {
  for (const char* op : {"Softmax", "LogSoftmax"}) {
    check_gradients(op, axis(-1), {{{4, 7}}});
    check_gradients(op, axis(1), {{{2, 5, 3}}});
    check_gradients(op, axis(0), {{{3, 2}}});
  }
}

TEST(Softmax, CpuAgreesWithReference) {
  for (const char* op : {"Softmax", "LogSoftmax", "SoftmaxGrad", "LogSoftmaxGrad"}) {
    const bool gradient = std::string_view(op).ends_with("Grad");
    const double low = std::string_view(op).starts_with("Log") ? -5 : 0;
    for (const Shape& shape : {Shape{3, 257}, Shape{300, 65}, Shape{2, 21, 9, 13}, Shape{1, 1}}) {
      for (const std::int64_t at : {-1, 0, 1}) {
        if (gradient) {
          check_cpu(op, axis(at), {{shape}, {shape, low, low + 1}}, 2e-6);
        } else {
          // The logarithm of a sum near 1 has the absolute error of the sum.
          const bool is_log = std::string_view(op) == "LogSoftmax";
          check_cpu(op, axis(at), {{shape, -10, 10}}, is_log ? of_the_whole(2e-6) : 2e-6);
        }
      }
    }
  }
}

TEST(Softmax, LargeNumbersAndMaskedEntries) {
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    expect_values(
        run_op("Softmax", axis(-1), {floats({3}, {1000, 1000, minus_infinity})}, backend)[0], {3},
        {0.5, 0.5, 0});
    expect_values(run_op("LogSoftmax", axis(-1), {floats({2}, {1000, 0})}, backend)[0], {2},
                  {0, -1000});
    const double nan = std::nan("");
    expect_values(
        run_op("Softmax", axis(-1), {floats({2}, {minus_infinity, minus_infinity})}, backend)[0],
        {2}, {nan, nan});
  }
}

TEST(Softmax, RefusesBadAxisAndType) {
  expect_error(ErrorKind::kModel, "axis 2", [] {
    infer_op("Softmax", axis(2), {{DType::kFloat32, Shape{2, 3}}});
  });
  expect_error(ErrorKind::kModel, "floating-point", [] {
    infer_op("Softmax", axis(0), {{DType::kInt64, Shape{2, 3}}});
  });
}

// Golden: (1, 2, 2) over all of the last two axes, as opset 12 defines axis 1.
TEST(SoftmaxImport, OldOpsetsFlattenFromTheAxisOn) {
  const HostTensor x = floats({1, 2, 2}, {0, 0, 0, static_cast<float>(std::log(5.0))});
  expect_values(import_node("Softmax", 12, {}, {data(x)}).run()[0], {1, 2, 2},
                {0.125, 0.125, 0.125, 0.625});
  expect_values(import_node("Softmax", 13, {}, {data(x)}).run()[0], {1, 2, 2},
                {0.5, 0.5, 1.0 / 6, 5.0 / 6});
  expect_values(import_node("LogSoftmax", 13, {{"axis", std::int64_t{1}}}, {data(x)}).run()[0],
                {1, 2, 2}, {std::log(0.5), std::log(1.0 / 6), std::log(0.5), std::log(5.0 / 6)});
}

// Golden: onnxruntime's. Before opset 13 the default axis is 1, and all axes from it on are
// flattened; since 13 it is the last axis only.
TEST(SoftmaxImport, AxesOfEveryOpset) {
  const HostTensor x = floats({2, 3, 2}, {1, 3, 2, 3, 0, -1, 4, 4, -2, 5, 1, 0});
  const auto expect = [&](std::int64_t opset, const Attributes& attributes,
                          const std::vector<double>& logarithms) {
    std::vector<double> shares;
    for (const double logarithm : logarithms) shares.push_back(std::exp(logarithm));
    for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
      SCOPED_TRACE(opset);
      expect_values(import_node("LogSoftmax", opset, attributes, {data(x)}).run(backend)[0],
                    {2, 3, 2}, logarithms);
      expect_values(import_node("Softmax", opset, attributes, {data(x)}).run(backend)[0], {2, 3, 2},
                    shares);
    }
  };
  const std::vector<double> pairs = {-2.1269281,  -0.12692805, -1.3132616, -0.31326166,
                                     -0.31326166, -1.3132616,  -0.6931472, -0.6931472,
                                     -7.0009112,  -0.00091142, -0.3132617, -1.3132616};
  for (const std::int64_t opset : {1, 11}) {
    expect(opset, {},
           {-2.9444184, -0.9444184, -1.9444184, -0.9444184, -3.9444184, -4.9444184, -1.5662930,
            -1.5662930, -7.5662932, -0.5662931, -4.5662932, -5.5662932});
    expect(opset, axis(0),
           {-4.7465525, -2.7465525, -3.7465525, -2.7465525, -5.7465525, -6.7465525, -1.7465525,
            -1.7465525, -7.7465525, -0.7465525, -4.7465525, -5.7465525});
    expect(opset, axis(-1), pairs);
  }
  expect(13, {}, pairs);
  expect(13, axis(0),
         {-3.0485873, -1.3132616, -0.0181500, -2.1269280, -1.3132616, -1.3132616, -0.0485873,
          -0.3132617, -4.0181500, -0.1269281, -0.3132617, -0.3132617});
}

}  // namespace
}  // namespace pipetrain::test
