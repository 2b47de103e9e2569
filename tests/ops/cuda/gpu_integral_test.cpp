// GPU kernels of integers and bools, and those that accumulate, find or place elements: they have
// the values of the reference kernels.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "support/gpu_rows.h"
#include "support/run_kernels.h"
#include "support/test_tensors.h"

namespace pipetrain::test {
namespace {

HostTensor on_gpu(const std::string& op, const Attributes& attributes,
                  const std::vector<HostTensor>& inputs) {
  Node node;
  node.op = find_op(op);
  node.attributes = attributes;
  std::vector<TensorType> types;
  for (const HostTensor& input : inputs) types.push_back(input.type());
  const auto results = run_on_gpu(node, inputs, infer_op(op, attributes, types));
  EXPECT_EQ(results.size(), 1U) << "no kernel";
  return results.empty() ? HostTensor() : results[0];
}

void check(const std::string& op, const Attributes& attributes,
           const std::vector<HostTensor>& inputs, double tolerance = 0) {
  SCOPED_TRACE(op + " of " + inputs[0].type().text());
  const HostTensor found = on_gpu(op, attributes, inputs);
  ASSERT_TRUE(static_cast<bool>(found));
  const HostTensor expected = run_op(op, attributes, inputs)[0];
  if (tolerance == 0) {
    ASSERT_EQ(found.type(), expected.type());
    EXPECT_EQ(std::memcmp(found.view().data, expected.view().data, expected.type().bytes()), 0);
  } else {
    expect_close(found, expected, tolerance, op);
  }
}

constexpr DType kIntegers[] = {DType::kInt32, DType::kInt64};

HostTensor numbers(DType type, Shape shape, const std::vector<double>& values) {
  return from_doubles({type, shape}, values);
}

TEST(GpuIntegral, Arithmetic) {
  for (const DType type : kIntegers) {
    const HostTensor a = numbers(type, {3, 4}, {7, -7, 7, -7, 0, 1, 2, 3, -8, 9, 100, -100});
    const HostTensor b = numbers(type, {4}, {2, -1, -3, 0});
    const double least = type == DType::kInt32 ? std::numeric_limits<std::int32_t>::min()
                                               : std::numeric_limits<std::int64_t>::min();
    for (const std::string op : {"Add", "Div", "Max", "Min", "Mod", "Mul", "Sub", "BitwiseAnd",
                                 "BitwiseOr", "BitwiseXor", "ShiftLeft", "ShiftRight"}) {
      check(op, {}, {a, b});
      check(op, {}, {b, a});
    }
    for (const std::string op : {"Div", "Mod"})
      check(op, {}, {numbers(type, {2}, {least, least}), numbers(type, {2}, {-1, 3})});
    check("Mod", {{"fmod", std::int64_t{1}}}, {a, b});
    for (const std::string op : {"Abs", "Neg", "Sign"}) check(op, {}, {a});
  }
}

TEST(GpuIntegral, LargeIntegersAreNotRounded) {
  constexpr std::int64_t kLarge = (std::int64_t{1} << 53) + 1;
  const HostTensor a = int64s({4}, {kLarge, -kLarge, 3, kLarge + 1}), b = int64s({}, {kLarge});
  for (const std::string op : {"Add", "Div", "Max", "Min", "Mod", "Sub", "Equal", "Less"})
    check(op, {}, {a, b});
}

TEST(GpuIntegral, Comparisons) {
  for (const DType type : kIntegers) {
    const HostTensor a = numbers(type, {2, 3}, {0, 1, 2, 3, -1, 5});
    for (const std::string op : {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
      check(op, {}, {a, numbers(type, {3}, {0, 2, 2})});
  }
}

TEST(GpuIntegral, Logic) {
  const HostTensor a = bools({2, 2}, {0, 1, 0, 1});
  for (const std::string op : {"And", "Or", "Xor", "Equal"})
    check(op, {}, {a, bools({2, 1}, {0, 1})});
  check("Not", {}, {a});
}

TEST(GpuIntegral, Casts) {
  using enum DType;
  for (const DType from : {kBool, kInt32, kInt64, kFloat32, kBFloat16, kFloat16}) {
    const HostTensor wide = floats({5}, {0, -1, 3, 200, -2.5});
    HostTensor x = numbers(from == kBool || from == kInt32 || from == kInt64 ? from : kFloat32, {5},
                           {0, -1, 3, 200, -2.5});
    if (from == kBFloat16 || from == kFloat16) x = stored_as(wide, from);
    // Files may hold other bytes than 0 and 1.
    if (from == kBool) x.span<std::uint8_t>()[2] = 7;
    for (const DType to : {kBool, kInt32, kInt64, kFloat32, kBFloat16, kFloat16})
      check("Cast", {{"to", static_cast<std::int64_t>(to)}}, {x});
  }
  check("IsNaN", {}, {floats({3}, {0, NAN, 1})});
}

TEST(GpuCumulative, SumsAndProducts) {
  for (const std::int64_t reverse : {0, 1}) {
    for (const std::int64_t exclusive : {0, 1}) {
      const Attributes attributes = {
          {"axis", std::int64_t{1}}, {"exclusive", exclusive}, {"reverse", reverse}};
      for (const DType type : kIntegers) {
        check("CumSum", attributes, {random_tensor({type, {3, 700}}, 1, -9, 9)});
        check("CumSum", attributes, {random_tensor({type, {2, 300, 3}}, 1, -9, 9)});
        // Odd factors, whose products wrap around and are never 0.
        HostTensor factors = random_tensor({type, {2, 700, 3}}, 2, -9, 9);
        factors = run_op("BitwiseOr", {}, {factors, numbers(type, {}, {1})})[0];
        check("CumProd", attributes, {factors});
      }
      // So many lines that a thread takes whole ones.
      check("CumSum", attributes, {random_tensor({DType::kInt32, {70, 3, 60}}, 3, -9, 9)});
      check("CumSum", attributes, {random_tensor({DType::kFloat32, {70, 3, 60}}, 4)});
      check("CumSum", attributes, {random_tensor({DType::kFloat32, {2, 200, 3}}, 5)});
      check("CumSum", attributes, {random_tensor({DType::kFloat32, {2, 700}}, 6)}, 1e-5);
    }
  }
}

TEST(GpuCumulative, ShortLinesOverflowOnlyWhereTheHostDoes) {
  const Attributes attributes = {{"axis", std::int64_t{0}}};
  check("CumProd", attributes, {floats({4}, {0, 1e30F, 1e30F, 1})});
  check("CumSum", attributes, {floats({4}, {-3e38F, 3e38F, 3e38F, 0})});
}

TEST(GpuIntegral, Reductions) {
  for (const DType type : kIntegers) {
    const HostTensor x = random_tensor({type, {3, 5, 70}}, 14, -9, 9);
    for (const std::string op :
         {"ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"}) {
      for (const Ints axes : {Ints{2}, Ints{1}, Ints{0, 2}, Ints{0, 1, 2}})
        check(op, {{"axes", axes}, {"keepdims", std::int64_t{1}}}, {x});
    }
  }
}

TEST(GpuArg, PlacesOfTheLargestAndSmallest) {
  const HostTensor few = floats({2, 5}, {1, 3, 3, 0, 0, 2, 2, 2, 2, 2});
  const HostTensor special = floats({2, 3}, {NAN, 1, 2, 1, NAN, 2});
  HostTensor begins_with_nan = random_tensor({DType::kFloat32, {2, 100}}, 4);
  begins_with_nan.span<float>()[0] = NAN;
  for (const std::string op : {"ArgMax", "ArgMin"}) {
    for (const std::int64_t last : {0, 1}) {
      for (const std::int64_t axis : {0, 1, -1}) {
        const Attributes attributes = {
            {"axis", axis}, {"keepdims", std::int64_t{0}}, {"select_last_index", last}};
        for (const HostTensor& x : {few, special, begins_with_nan}) check(op, attributes, {x});
        check(op, attributes, {random_tensor({DType::kFloat32, {4, 100, 3}}, 5)});
        for (const DType type : kIntegers) {
          check(op, attributes, {random_tensor({type, {4, 100, 3}}, 6, -20, 20)});
          check(op, attributes, {random_tensor({type, {3, 9, 40}}, 6, -3, 3)});
        }
      }
    }
  }
}

Attributes reducing(const std::string& reduction, std::int64_t axis) {
  return {{"axis", axis}, {"reduction", reduction}};
}

TEST(GpuScatter, TheLastUpdateWins) {
  const HostTensor tuples = int64s({5, 1}, {3, 0, 3, -1, 3});
  const HostTensor pairs = int64s({3, 2}, {0, 1, 5, -1, 0, 1});
  for (const DType type : {DType::kFloat32, DType::kInt64, DType::kBool}) {
    const HostTensor data = random_tensor({type, {6, 7}}, 7, 0, 2);
    check("ScatterND", {}, {data, tuples, random_tensor({type, {5, 7}}, 8, 0, 2)});
    check("ScatterND", {}, {data, pairs, random_tensor({type, {3}}, 8, 0, 2)});
    check(
        "ScatterElements", reducing("none", 1),
        {data, int64s({2, 4}, {6, 0, 6, -2, 1, 1, 1, 1}), random_tensor({type, {2, 4}}, 9, 0, 2)});
    // More indices than are sorted in shared memory.
    check("ScatterElements", reducing("none", 0),
          {data, random_tensor({DType::kInt32, {500, 7}}, 10, -6, 6),
           random_tensor({type, {500, 7}}, 11, 0, 2)});
  }
}

TEST(GpuScatter, Reductions) {
  const HostTensor tuples = int64s({5, 1}, {3, 0, 3, -1, 3});
  const HostTensor data = random_tensor({DType::kFloat32, {6, 7}}, 10);
  HostTensor updates = random_tensor({DType::kFloat32, {5, 7}}, 11);
  updates.span<float>()[2] = NAN;
  for (const std::string reduction : {"add", "mul", "max", "min"}) {
    check("ScatterND", {{"reduction", reduction}}, {data, tuples, updates}, 1e-6);
    check("ScatterElements", reducing(reduction, 0),
          {data, random_tensor({DType::kInt32, {500, 7}}, 12, -6, 6),
           random_tensor({DType::kFloat32, {500, 7}}, 13)},
          1e-5);
  }
}

}  // namespace
}  // namespace pipetrain::test
