#include <gtest/gtest.h>

#include "support/op_check.h"

namespace pipetrain::test {
namespace {

Attributes along(std::int64_t axis, std::int64_t exclusive, std::int64_t reverse) {
  return {{"axis", axis}, {"exclusive", exclusive}, {"reverse", reverse}};
}

/// Calls body(exclusive, reverse) for all four combinations.
template <class Body>
void for_all_forms(Body body) {
  for (const std::int64_t exclusive : {0, 1}) {
    for (const std::int64_t reverse : {0, 1}) body(exclusive, reverse);
  }
}

TEST(Cumulative, SumsAndProducts) {
  const HostTensor x = int64s({4}, {1, 2, 3, 4});
  expect_values(run_op("CumSum", along(0, 0, 0), {x})[0], {4}, {1, 3, 6, 10});
  expect_values(run_op("CumSum", along(0, 1, 0), {x})[0], {4}, {0, 1, 3, 6});
  expect_values(run_op("CumSum", along(0, 0, 1), {x})[0], {4}, {10, 9, 7, 4});
  expect_values(run_op("CumSum", along(0, 1, 1), {x})[0], {4}, {9, 7, 4, 0});
  expect_values(run_op("CumProd", along(0, 0, 0), {x})[0], {4}, {1, 2, 6, 24});
  expect_values(run_op("CumProd", along(0, 1, 0), {x})[0], {4}, {1, 1, 2, 6});
  expect_values(run_op("CumProd", along(0, 0, 1), {x})[0], {4}, {24, 24, 12, 4});
  expect_values(run_op("CumProd", along(0, 1, 1), {x})[0], {4}, {24, 12, 4, 1});
  expect_values(run_op("CumProd", along(0, 0, 0), {floats({2, 2}, {1, 2, 3, 4})})[0], {2, 2},
                {1, 2, 3, 8});
  EXPECT_EQ(run_op("CumSum", along(1, 0, 0), {floats({2, 0}, {})})[0].shape().text(), "(2, 0)");
}

TEST(Cumulative, Gradients) {
  for_all_forms([](std::int64_t exclusive, std::int64_t reverse) {
    for (const std::int64_t axis : {0, 1, 2}) {
      check_gradients("CumSum", along(axis, exclusive, reverse), {{.shape = {3, 4, 2}}});
      check_gradients("CumProd", along(axis, exclusive, reverse), {{.shape = {3, 4, 2}}});
    }
    check_gradients("CumProd", along(0, exclusive, reverse), {{.shape = {1, 3}}});
    // Zeros: a quotient of products would be NaN.
    check_gradients("CumProd", along(0, exclusive, reverse),
                    {{.shape = {5}, .values = {2, 0, -3, 0, 0.5}}});
  });
}

TEST(Cumulative, OnTheCpu) {
  for_all_forms([](std::int64_t exclusive, std::int64_t reverse) {
    for (const std::int64_t axis : {0, 1, 2}) {
      const Attributes attributes = along(axis, exclusive, reverse);
      check_cpu("CumSum", attributes, {{{5, 9, 70}}}, 1e-5);
      check_cpu("CumProd", attributes, {{{5, 9, 70}, 0.8, 1.2}}, 1e-5);
      check_cpu("CumProdGrad", attributes, {{{5, 9, 70}}, {{5, 9, 70}, 0.8, 1.2}}, 1e-5);
    }
  });
  check_cpu("CumSum", along(1, 0, 0), {{{40, 1000}}}, 1e-4);
}

TEST(Cumulative, ImportsNegativeAxes) {
  const Imported product = import_node(
      "CumProd", 26, {}, {data(floats({2, 2}, {1, 2, 3, 4})), constant(int32s({}, {-1}))});
  expect_values(product.run()[0], {2, 2}, {1, 2, 3, 12});
  expect_error(ErrorKind::kModel, "axis 2 does not exist", [] {
    import_node("CumSum", 14, {}, {data(floats({1, 1}, {1})), constant(int64s({}, {2}))});
  });
}

// The product of the others, zeros or not.
TEST(Cumulative, ReduceProdGradients) {
  const auto over = [](Ints axes, std::int64_t keep = 0) {
    return Attributes{{"axes", std::move(axes)}, {"keepdims", keep}};
  };
  for (const Ints& axes : {Ints{0}, Ints{1}, Ints{2}, Ints{0, 2}, Ints{0, 1, 2}}) {
    check_gradients("ReduceProd", over(axes), {{.shape = {3, 2, 4}}});
    check_gradients("ReduceProd", over(axes, 1), {{.shape = {1, 2, 3}}});
  }
  check_gradients("ReduceProd", over({-1}), {{.shape = {2, 3}, .values = {2, 0, 3, 0, 4, 0}}});
}

}  // namespace
}  // namespace pipetrain::test
