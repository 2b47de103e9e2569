#include <gtest/gtest.h>

#include <limits>

#include "support/op_check.h"

namespace pipetrain::test {
namespace {

Attributes top(std::int64_t axis, std::int64_t k, std::int64_t largest = 1) {
  return {{"axis", axis}, {"k", k}, {"largest", largest}};
}

TEST(TopK, BestFirstAndTheFirstOfEqualOnes) {
  const HostTensor x = floats({2, 4}, {3, 1, 3, 2, 0, 5, -1, 5});
  const auto most = run_op("TopK", top(1, 2), {x});
  expect_values(most[0], {2, 2}, {3, 3, 5, 5});
  expect_values(most[1], {2, 2}, {0, 2, 1, 3});
  const auto least = run_op("TopK", top(1, 3, 0), {x});
  expect_values(least[0], {2, 3}, {1, 2, 3, -1, 0, 5});
  expect_values(least[1], {2, 3}, {1, 3, 0, 2, 0, 1});
  const auto down = run_op("TopK", top(0, 1), {x});
  expect_values(down[0], {1, 4}, {3, 5, 3, 5});
  expect_values(down[1], {1, 4}, {0, 1, 0, 1});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  expect_values(run_op("TopK", top(0, 2), {floats({3}, {1, nan, 2})})[1], {2}, {1, 2});
  expect_values(run_op("TopK", top(0, 2, 0), {floats({3}, {1, nan, 2})})[1], {2}, {0, 2});
  EXPECT_EQ(run_op("TopK", top(0, 0), {x})[0].shape().text(), "(0, 4)");
}

TEST(TopK, Gradients) {
  for (const std::int64_t largest : {0, 1}) {
    check_gradients("TopK", top(1, 2, largest), {{.shape = {3, 5}}});
    check_gradients("TopK", top(0, 3, largest), {{.shape = {4, 2, 3}}});
    check_gradients("TopK", top(2, 1, largest), {{.shape = {2, 2, 1}}});
  }
}

TEST(TopK, OnTheCpu) {
  for (const std::int64_t largest : {0, 1}) {
    check_cpu("TopK", top(1, 5, largest), {{{60, 200}}}, 0);
    check_cpu("TopK", top(0, 7, largest), {{{20, 3, 5}}}, 0);
    check_cpu("TopK", top(1, 3, largest), {{.shape = {1, 6}, .values = {1, 2, 2, 1, 2, 0}}}, 0);
  }
}

TEST(TopK, Imports) {
  const HostTensor x = int64s({4}, {4, 9, 7, 1});
  expect_values(import_node("TopK", 1, {{"k", std::int64_t{1}}}, {data(x)}, 2).run()[0], {1}, {9});
  const Imported now =
      import_node("TopK", 24, {{"axis", std::int64_t{-1}}, {"largest", std::int64_t{0}}},
                  {data(x), constant(int64s({1}, {2}))}, 2);
  expect_values(now.run()[1], {2}, {3, 0});
  expect_error(ErrorKind::kModel, "cannot take 5 elements", [&] {
    import_node("TopK", 11, {}, {data(x), constant(int64s({1}, {5}))});
  });
}

}  // namespace
}  // namespace pipetrain::test
