#include <gtest/gtest.h>

#include <limits>

#include "support/op_check.h"

namespace pipetrain::test {
namespace {

/// The constant that a node becomes.
HostTensor folded(std::string_view op, std::int64_t opset, const Attributes& attributes,
                  const std::vector<ImportInput>& inputs) {
  const Imported node = import_node(op, opset, attributes, inputs);
  EXPECT_TRUE(node.is_constant());
  EXPECT_EQ(node.ops(), "");
  return node.run()[0];
}

TEST(ShapeImport, Shape) {
  const ImportInput x = data(HostTensor(TensorType{DType::kFloat32, {2, 3, 4}}));
  expect_values(folded("Shape", 13, {}, {x}), {3}, {2, 3, 4});
  expect_values(folded("Shape", 15, {{"start", std::int64_t{1}}}, {x}), {2}, {3, 4});
  expect_values(folded("Shape", 15, {{"start", std::int64_t{-9}}, {"end", std::int64_t{-1}}}, {x}),
                {2}, {2, 3});
  expect_values(folded("Shape", 15, {{"start", std::int64_t{2}}, {"end", std::int64_t{1}}}, {x}),
                {0}, {});
  expect_values(folded("Size", 13, {}, {x}), {}, {24});
}

TEST(ShapeImport, Constants) {
  expect_values(folded("Constant", 13, {{"value", floats({2}, {1, 2})}}, {}), {2}, {1, 2});
  expect_values(folded("Constant", 13, {{"value_ints", Ints{4, 5}}}, {}), {2}, {4, 5});
  expect_values(folded("Constant", 13, {{"value_float", 0.5}}, {}), {}, {0.5});
  expect_values(folded("Constant", 13, {{"value_floats", Reals{0.5, 2}}}, {}), {2}, {0.5, 2});
  const Attributes half{{"value", HostTensor::scalar<double>(0.5)}};
  EXPECT_EQ(folded("Constant", 13, half, {}).type().text(), "float32 ()");
  expect_values(folded("Constant", 13, half, {}), {}, {0.5});
  // A mask beyond float32's range stays finite.
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double most = std::numeric_limits<double>::max();
  const Attributes masks{{"value", doubles({3}, {-most, most, -kInfinity})}};
  const double largest = std::numeric_limits<float>::max();
  expect_values(folded("Constant", 13, masks, {}), {3}, {-largest, largest, -kInfinity});
  EXPECT_EQ(folded("Constant", 13, {{"value_int", std::int64_t{3}}}, {}).type().text(), "int64 ()");
  expect_error(ErrorKind::kModel, "Constant", [] { import_node("Constant", 13, {}, {}); });
  expect_values(folded("ConstantOfShape", 9, {}, {constant(int64s({2}, {1, 2}))}), {1, 2}, {0, 0});
  const Attributes seven{{"value", int64s({1}, {7})}};
  EXPECT_EQ(folded("ConstantOfShape", 9, seven, {constant(int64s({1}, {2}))}).type().text(),
            "int64 (2)");
  expect_values(folded("ConstantOfShape", 9, seven, {constant(int64s({0}, {}))}), {}, {7});
  expect_error(ErrorKind::kModel, "too large", [&] {
    folded("ConstantOfShape", 9, seven, {constant(int64s({2}, {1 << 30, 1 << 30}))});
  });
}

TEST(ShapeImport, Range) {
  const auto range = [](std::int64_t start, std::int64_t limit, std::int64_t delta) {
    return folded("Range", 11, {},
                  {constant(int64s({}, {start})), constant(int64s({}, {limit})),
                   constant(int64s({}, {delta}))});
  };
  expect_values(range(0, 5, 2), {3}, {0, 2, 4});
  expect_values(range(5, 0, -2), {3}, {5, 3, 1});
  expect_values(range(5, 0, 1), {0}, {});
  expect_values(
      folded("Range", 11, {},
             {constant(floats({}, {0})), constant(floats({}, {1})), constant(floats({}, {0.25F}))}),
      {4}, {0, 0.25, 0.5, 0.75});
  expect_error(ErrorKind::kModel, "step 0", [&] { range(0, 1, 0); });
}

TEST(ShapeImport, EyeLike) {
  const ImportInput x = data(HostTensor(TensorType{DType::kFloat32, {2, 3}}));
  expect_values(folded("EyeLike", 9, {{"k", std::int64_t{1}}}, {x}), {2, 3}, {0, 1, 0, 0, 0, 1});
  expect_values(folded("EyeLike", 9, {{"k", std::int64_t{-1}}, {"dtype", std::int64_t{7}}}, {x}),
                {2, 3}, {0, 0, 0, 1, 0, 0});
  const auto made = [](DType input, std::int64_t dtype) {
    const Attributes given = dtype ? Attributes{{"dtype", dtype}} : Attributes{};
    const HostTensor eye =
        folded("EyeLike", 22, given, {data(HostTensor(TensorType{input, {2, 3}}))});
    expect_values(eye, {2, 3}, {1, 0, 0, 0, 1, 0});
    return eye.type().text();
  };
  EXPECT_EQ(made(DType::kFloat32, 9), "bool (2, 3)");
  EXPECT_EQ(made(DType::kBool, 0), "bool (2, 3)");
  // Floating-point constants become float32.
  EXPECT_EQ(made(DType::kFloat32, 10), "float32 (2, 3)");
  EXPECT_EQ(made(DType::kFloat32, 16), "float32 (2, 3)");
  EXPECT_EQ(made(DType::kInt64, 11), "float32 (2, 3)");
  expect_values(folded("EyeLike", 22, {{"k", std::numeric_limits<std::int64_t>::max()}}, {x}),
                {2, 3}, {0, 0, 0, 0, 0, 0});
}

TEST(ShapeImport, NonZeroUniqueWindows) {
  expect_values(folded("NonZero", 13, {}, {constant(floats({2, 2}, {1, 0, 2, 3}))}), {2, 3},
                {0, 1, 1, 0, 0, 1});
  const ImportInput x = constant(int64s({6}, {4, 1, 4, 3, 1, 4}));
  const auto unique = [&](std::int64_t sorted) {
    return import_node("Unique", 11, {{"sorted", sorted}}, {x}, 4).run();
  };
  const auto ascending = unique(1);
  expect_values(ascending[0], {3}, {1, 3, 4});
  expect_values(ascending[1], {3}, {1, 3, 0});
  expect_values(ascending[2], {6}, {2, 0, 2, 1, 0, 2});
  expect_values(ascending[3], {3}, {2, 1, 3});
  const auto found = unique(0);
  expect_values(found[0], {3}, {4, 1, 3});
  expect_values(found[2], {6}, {0, 1, 0, 2, 1, 0});
  expect_values(folded("Unique", 11, {{"axis", std::int64_t{1}}},
                       {constant(floats({2, 3}, {1, 0, 1, 2, 5, 2}))}),
                {2, 2}, {0, 1, 5, 2});
  expect_values(folded("HannWindow", 17, {}, {constant(int64s({}, {4}))}), {4}, {0, 0.5, 1, 0.5});
}

TEST(ShapeImport, DependenceOnDataIsRefused) {
  expect_error(ErrorKind::kModel, "before training",
               [] { import_node("ConstantOfShape", 9, {}, {data(int64s({1}, {2}))}); });
}

}  // namespace
}  // namespace pipetrain::test
