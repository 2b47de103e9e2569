#include <gtest/gtest.h>

#include "support/op_check.h"

namespace pipetrain::test {
namespace {

Attributes equation(const char* text) { return {{"equation", std::string(text)}}; }

Imported einsum(const char* text, const std::vector<HostTensor>& operands) {
  std::vector<ImportInput> inputs;
  for (const HostTensor& operand : operands) inputs.push_back(data(operand));
  return import_node("Einsum", 12, equation(text), inputs);
}

/// 1, 2, 3, … in this shape.
HostTensor counted_from_one(Shape shape) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  float next = 1;
  for (float& value : out.span<float>()) value = next++;
  return out;
}

TEST(Einsum, OneOperand) {
  const HostTensor x = counted_from_one({2, 3});
  expect_values(einsum("ij->ji", {x}).run()[0], {3, 2}, {1, 4, 2, 5, 3, 6});
  expect_values(einsum("ij->i", {x}).run()[0], {2}, {6, 15});
  expect_values(einsum("ij->", {x}).run()[0], {}, {21});
  expect_values(einsum("ba", {x}).run()[0], {3, 2}, {1, 4, 2, 5, 3, 6});
}

TEST(Einsum, Diagonals) {
  const HostTensor x = counted_from_one({2, 2});
  expect_values(einsum("ii->i", {x}).run()[0], {2}, {1, 4});
  expect_values(einsum("ii", {x}).run()[0], {}, {5});
  expect_values(einsum("...ii->...i", {counted_from_one({2, 2, 2})}).run()[0], {2, 2},
                {1, 4, 5, 8});
  expect_values(einsum("iji->j", {counted_from_one({2, 3, 2})}).run()[0], {3}, {9, 13, 17});
  expect_values(einsum("iii->i", {counted_from_one({2, 2, 2})}).run()[0], {2}, {1, 8});
  expect_values(einsum("ii,ij->j", {x, x}).run()[0], {2}, {13, 18});
  expect_error(ErrorKind::kModel, "different sizes", [] {
    einsum("ii->i", {counted_from_one({2, 3})});
  });
}

TEST(Einsum, MatrixProducts) {
  const HostTensor a = counted_from_one({2, 3});
  const HostTensor b = counted_from_one({3, 2});
  expect_values(einsum("ik,kj->ij", {a, b}).run()[0], {2, 2}, {22, 28, 49, 64});
  expect_values(einsum(" ik , kj ", {a, b}).run()[0], {2, 2}, {22, 28, 49, 64});
  expect_values(einsum("ik,kj->ji", {a, b}).run()[0], {2, 2}, {22, 49, 28, 64});
  expect_values(einsum("ij,ij->ij", {a, a}).run()[0], {2, 3}, {1, 4, 9, 16, 25, 36});
  expect_values(einsum("i,j->ij", {counted_from_one({2}), counted_from_one({3})}).run()[0], {2, 3},
                {1, 2, 3, 2, 4, 6});
  expect_values(einsum("i,i", {counted_from_one({3}), counted_from_one({3})}).run()[0], {}, {14});
}

// numpy: a = arange(1, 13).reshape(2, 2, 3), b = arange(1, 7).reshape(1, 2, 3)
TEST(Einsum, AttentionScoresWithBroadcastAxis) {
  const HostTensor q = counted_from_one({2, 2, 3});
  const HostTensor k = counted_from_one({1, 2, 3});
  expect_values(einsum("bid,bjd->bij", {q, k}).run()[0], {2, 2, 2},
                {14, 32, 32, 77, 50, 122, 68, 167});
  expect_values(einsum("...id,...jd->...ij", {q, k}).run()[0], {2, 2, 2},
                {14, 32, 32, 77, 50, 122, 68, 167});
  expect_values(einsum("...id,jd->...ij", {q, counted_from_one({2, 3})}).run()[0], {2, 2, 2},
                {14, 32, 32, 77, 50, 122, 68, 167});
}

TEST(Einsum, ThreeOperandsFoldFromTheLeft) {
  expect_values(
      einsum("i,ij,j->", {counted_from_one({2}), counted_from_one({2, 3}), counted_from_one({3})})
          .run()[0],
      {}, {1 * (1 + 4 + 9) + 2 * (4 + 10 + 18)});
}

TEST(Einsum, OperandsWithoutAxes) {
  const HostTensor x = floats({2}, {5, -5}), two = floats({}, {2});
  expect_values(einsum("i,->i", {x, two}).run()[0], {2}, {10, -10});
  expect_values(einsum(",i", {two, x}).run()[0], {2}, {10, -10});
  expect_values(einsum("->", {two}).run()[0], {}, {2});
  expect_error(ErrorKind::kModel, "fewer operands", [&] { einsum("i->i", {x, two}); });
  expect_error(ErrorKind::kModel, "more operands", [&] { einsum("i,->i", {x}); });
}

TEST(Einsum, RefusesWhatItCannotRead) {
  const HostTensor x = counted_from_one({2, 2});
  expect_error(ErrorKind::kModel, "rank", [&] { einsum("i->i", {x}); });
  expect_error(ErrorKind::kModel, "fewer operands", [&] { einsum("ij->ij", {x, x}); });
  expect_error(ErrorKind::kModel, "more operands", [&] { einsum("ij,jk->ik", {x}); });
  expect_error(ErrorKind::kModel, "unknown", [&] { einsum("ij->k", {x}); });
  expect_error(ErrorKind::kModel, "different sizes", [&] {
    einsum("ij,jk->ik", {x, counted_from_one({3, 2})});
  });
}

}  // namespace
}  // namespace pipetrain::test
