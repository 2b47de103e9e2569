// GPU kernels of integers and bools, and those that find or place elements: they have the values of
// the reference kernels.
#include <gtest/gtest.h>

#include <cmath>

#include "support/gpu_rows.h"
#include "support/run_kernels.h"
#include "support/test_tensors.h"

namespace pipetrain::test {
namespace {

void check(const std::string& op, const Attributes& attributes,
           const std::vector<HostTensor>& inputs, double tolerance = 0) {
  Node node;
  node.op = find_op(op);
  node.attributes = attributes;
  std::vector<TensorType> types;
  for (const HostTensor& input : inputs) types.push_back(input.type());
  SCOPED_TRACE(op + " of " + types[0].text());
  const auto results = run_on_gpu(node, inputs, infer_op(op, attributes, types));
  ASSERT_EQ(results.size(), 1U) << "no kernel";
  expect_close(results[0], run_op(op, attributes, inputs)[0], tolerance, op);
}

constexpr DType kIntegers[] = {DType::kInt32, DType::kInt64};

HostTensor numbers(DType type, Shape shape, const std::vector<double>& values) {
  return from_doubles({type, shape}, values);
}

TEST(GpuExact, Arithmetic) {
  for (const DType type : kIntegers) {
    const HostTensor a = numbers(type, {3, 4}, {7, -7, 7, -7, 0, 1, 2, 3, -8, 9, 100, -100});
    const HostTensor b = numbers(type, {4}, {2, 2, -3, 0});
    for (const std::string op : {"Add", "Div", "Max", "Min", "Mod", "Mul", "Sub", "BitwiseAnd",
                                 "BitwiseOr", "BitwiseXor", "ShiftLeft", "ShiftRight"}) {
      check(op, {}, {a, b});
      check(op, {}, {b, a});
    }
    check("Mod", {{"fmod", std::int64_t{1}}}, {a, b});
  }
}

TEST(GpuExact, LargeIntegersAreNotRounded) {
  constexpr std::int64_t kLarge = (std::int64_t{1} << 53) + 1;
  Node node;
  node.op = find_op("Sub");
  const auto results = run_on_gpu(node, {int64s({2}, {kLarge, -kLarge}), int64s({}, {1})},
                                  {{DType::kInt64, Shape{2}}});
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].span<std::int64_t>()[0], kLarge - 1);
  EXPECT_EQ(results[0].span<std::int64_t>()[1], -kLarge - 1);
}

TEST(GpuExact, Comparisons) {
  for (const DType type : kIntegers) {
    const HostTensor a = numbers(type, {2, 3}, {0, 1, 2, 3, -1, 5});
    for (const std::string op : {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
      check(op, {}, {a, numbers(type, {3}, {0, 2, 2})});
  }
}

TEST(GpuExact, Logic) {
  const HostTensor a = bools({2, 2}, {0, 1, 0, 1});
  for (const std::string op : {"And", "Or", "Xor", "Equal"})
    check(op, {}, {a, bools({2, 1}, {0, 1})});
  check("Not", {}, {a});
}

TEST(GpuExact, Casts) {
  using enum DType;
  for (const DType from : {kBool, kInt32, kInt64, kFloat32}) {
    const HostTensor x =
        from == kBool ? bools({5}, {0, 1, 1, 0, 1}) : numbers(from, {5}, {0, -1, 3, 70'000, -2.5});
    for (const DType to : {kBool, kInt32, kInt64, kFloat32})
      check("Cast", {{"to", static_cast<std::int64_t>(to)}}, {x});
  }
  check("IsNaN", {}, {floats({3}, {0, NAN, 1})});
}

TEST(GpuExact, CumulativeSumsAndProducts) {
  for (const std::int64_t reverse : {0, 1}) {
    for (const std::int64_t exclusive : {0, 1}) {
      const Attributes attributes = {
          {"axis", std::int64_t{1}}, {"exclusive", exclusive}, {"reverse", reverse}};
      for (const DType type : kIntegers) {
        check("CumSum", attributes, {random_tensor({type, {3, 700}}, 1, -9, 9)});
        check("CumProd", attributes, {random_tensor({type, {2, 5, 3}}, 2, -3, 3)});
      }
      // So many lines that a thread takes whole ones.
      check("CumSum", attributes, {random_tensor({DType::kInt32, {70, 3, 60}}, 3, -9, 9)});
      check("CumSum", attributes, {random_tensor({DType::kFloat32, {70, 3, 60}}, 4)}, 1e-6);
    }
  }
}

TEST(GpuExact, PlacesOfTheLargestAndSmallest) {
  const HostTensor few = floats({2, 5}, {1, 3, 3, 0, 0, 2, 2, 2, 2, 2});
  const HostTensor special = floats({2, 3}, {NAN, 1, 2, 1, NAN, 2});
  for (const std::string op : {"ArgMax", "ArgMin"}) {
    for (const std::int64_t last : {0, 1}) {
      for (const std::int64_t axis : {0, 1, -1}) {
        const Attributes attributes = {
            {"axis", axis}, {"keepdims", std::int64_t{0}}, {"select_last_index", last}};
        check(op, attributes, {few});
        check(op, attributes, {special});
        check(op, attributes, {random_tensor({DType::kFloat32, {4, 100, 3}}, 5)});
        for (const DType type : kIntegers)
          check(op, attributes, {random_tensor({type, {4, 100, 3}}, 6, -20, 20)});
      }
    }
  }
}

TEST(GpuExact, Scatters) {
  const HostTensor tuples = int64s({5, 1}, {3, 0, 3, -1, 3});
  for (const DType type : {DType::kFloat32, DType::kInt64, DType::kBool}) {
    const HostTensor data = random_tensor({type, {6, 7}}, 7, 0, 2);
    check("ScatterND", {{"reduction", std::string("none")}},
          {data, tuples, random_tensor({type, {5, 7}}, 8, 0, 2)});
    check(
        "ScatterElements", {{"axis", std::int64_t{1}}, {"reduction", std::string("none")}},
        {data, int64s({2, 4}, {6, 0, 6, -2, 1, 1, 1, 1}), random_tensor({type, {2, 4}}, 9, 0, 2)});
  }
  const HostTensor data = random_tensor({DType::kFloat32, {6, 7}}, 10);
  for (const std::string reduction : {"add", "mul", "max", "min"}) {
    check("ScatterND", {{"reduction", reduction}},
          {data, tuples, random_tensor({DType::kFloat32, {5, 7}}, 11)}, 1e-6);
    // More indices than are sorted in shared memory.
    check("ScatterElements", {{"axis", std::int64_t{0}}, {"reduction", reduction}},
          {data, random_tensor({DType::kInt32, {500, 7}}, 12, -6, 6),
           random_tensor({DType::kFloat32, {500, 7}}, 13)},
          1e-5);
  }
}

}  // namespace
}  // namespace pipetrain::test
