// Attention on tiles against the reference kernels in double, on the same bfloat16 numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/vectors.h"
#include "graph/op.h"
#include "ops/attention/attention_tiles_cpu.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

struct TiledAttention {
  Attributes attributes;
  std::vector<Shape> shapes;  // of q, k, v and perhaps a mask
  bool hides = false;         // the mask is of bool
  std::vector<std::int64_t> lengths = {};
  std::vector<float> mask = {};  // of its values, where they are given
};

/// q, k, v, mask, lengths; q, k and v are bfloat16.
std::vector<HostTensor> drawn_inputs(const TiledAttention& one) {
  std::vector<HostTensor> in;
  for (std::size_t i = 0; i < one.shapes.size(); ++i) {
    const DType dtype = i == 3 && one.hides ? DType::kBool : DType::kFloat32;
    in.push_back(random_tensor({dtype, one.shapes[i]}, i + 1, i == 3 && one.hides ? 0 : -2, 2));
    if (i < 3) in.back() = as_float(in.back(), DType::kBFloat16);
  }
  if (!one.mask.empty()) in[3] = floats(one.shapes[3], one.mask);
  in.resize(5);
  if (!one.lengths.empty())
    in[4] = int64s({static_cast<std::int64_t>(one.lengths.size())}, one.lengths);
  return in;
}

std::vector<HostTensor> in_double(std::vector<HostTensor> tensors) {
  for (HostTensor& tensor : tensors) {
    if (tensor && is_float(tensor.type().dtype)) tensor = as_float(tensor, DType::kFloat64);
  }
  return tensors;
}

std::vector<HostTensor> run_tiled(std::string_view op, const Attributes& attributes,
                                  const std::vector<HostTensor>& in,
                                  const std::vector<TensorType>& types,
                                  const tiles::Instructions& instructions) {
  Node node;
  node.op = find_op(op);
  node.attributes = attributes;
  KernelRequest request{node, {}, types};
  std::vector<Tensor> from, to;
  for (const HostTensor& tensor : in) {
    request.inputs.push_back(tensor ? tensor.type() : TensorType{});
    from.push_back(tensor ? tensor.view() : Tensor{});
  }
  EXPECT_TRUE(attention::fits_tiles(request));
  std::vector<HostTensor> out;
  for (const TensorType& type : types) {
    out.emplace_back(type);
    to.push_back(out.back().view());
  }
  const auto kernel = attention::make_on_tiles(request, instructions);
  const Buffer workspace(kernel->workspace_bytes());
  RunContext context;
  context.workspace = workspace.data();
  kernel->run(from, to, context);
  return out;
}

/// Every element within a few roundings to bfloat16 of the root mean square.
void expect_near(const HostTensor& got, const HostTensor& expected, std::string_view what) {
  const std::vector<double> a = got.to_doubles(), b = expected.to_doubles();
  double squares = 0, count = 0;
  for (const double value : b) {
    if (std::isfinite(value)) squares += value * value, ++count;
  }
  const double size = std::sqrt(squares / std::max(1.0, count));
  for (std::size_t i = 0; i < b.size(); ++i) {
    if (std::isfinite(b[i])) {
      ASSERT_NEAR(a[i], b[i], 0.02 * (std::fabs(b[i]) + size)) << what << ", element " << i;
    } else {
      ASSERT_EQ(a[i], b[i]) << what << ", element " << i;
    }
  }
}

void check_tiled(const TiledAttention& one, const tiles::Instructions& instructions) {
  SCOPED_TRACE(one.attributes.to_text());
  const std::vector<HostTensor> in = drawn_inputs(one);
  const auto expected = run_op("Attention", one.attributes, in_double(in));
  const TensorType y{DType::kBFloat16, expected[0].type().shape};
  const TensorType lse{DType::kFloat32, expected[1].type().shape};
  const auto out = run_tiled("Attention", one.attributes, in, {y, lse}, instructions);
  expect_near(out[0], expected[0], "y");
  expect_near(out[1], expected[1], "lse");
  std::vector<HostTensor> backward = {
      as_float(random_tensor({DType::kFloat32, y.shape}, 9), DType::kBFloat16)};
  backward.insert(backward.end(), in.begin(), in.end());
  backward.insert(backward.end(), {out[0], out[1]});
  const auto slopes = run_op("AttentionGrad", one.attributes, in_double(backward));
  std::vector<TensorType> types;
  for (std::size_t i = 0; i < 4; ++i)
    types.push_back({i < 3 ? DType::kBFloat16 : DType::kFloat32, slopes[i].type().shape});
  const auto got = run_tiled("AttentionGrad", one.attributes, backward, types, instructions);
  for (std::size_t i = 0; i < 4; ++i) expect_near(got[i], slopes[i], fmt::format("gradient {}", i));
}

void check_all_tiled(const tiles::Instructions& instructions) {
  const Attributes causal = {{"causal", std::int64_t{1}}};
  const Attributes rows = {{"heads", std::int64_t{4}}, {"key_heads", std::int64_t{2}}};
  const std::vector<TiledAttention> cases = {
      {{}, {{2, 4, 5, 3}, {2, 2, 6, 3}, {2, 2, 6, 2}}},
      {causal, {{1, 2, 130, 20}, {1, 2, 130, 20}, {1, 2, 130, 33}}},
      {causal, {{1, 1, 197, 64}, {1, 1, 197, 64}, {1, 1, 197, 64}}},
      {{{"scale", 0.3}, {"softcap", 0.9}}, {{2, 2, 40, 8}, {2, 2, 50, 8}, {2, 2, 50, 8}, {50}}},
      {{{"left", std::int64_t{17}}, {"right", std::int64_t{3}}},
       {{1, 1, 75, 32}, {1, 1, 75, 32}, {1, 1, 75, 32}, {75, 75}}},
      {{{"causal", std::int64_t{1}}, {"offset", std::int64_t{-2}}},
       {{2, 2, 9, 16}, {2, 2, 40, 16}, {2, 2, 40, 16}, {9, 40}},
       /*hides=*/true},
      {{{"offset_from_lengths", std::int64_t{1}}, {"causal", std::int64_t{1}}},
       {{2, 4, 33, 16}, {2, 2, 70, 16}, {2, 2, 70, 16}},
       false,
       {70, 34}},
      {rows, {{2, 45, 12}, {2, 36, 6}, {2, 36, 4}, {2, 1, 45, 1}}},
      {{}, {{1, 4, 200, 16}, {1, 1, 16, 16}, {1, 1, 16, 128}}},  // half a block of keys
  };
  for (const TiledAttention& one : cases) check_tiled(one, instructions);
  // The last query sees keys, the others none: their masks swallow all scores.
  TiledAttention hidden{{}, {{1, 1, 3, 16}, {1, 1, 20, 16}, {1, 1, 20, 16}, {3, 20}}};
  hidden.mask.assign(60, std::numeric_limits<float>::lowest());
  std::fill_n(hidden.mask.begin() + 40, 7, 0.0F);
  check_tiled(hidden, instructions);
}

TEST(AttentionTiles, VectorsFollowTheReference) {
  if (!has_avx512_bfloat16()) GTEST_SKIP() << "this processor has no AVX512_BF16";
  check_all_tiled(tiles::vectors());
}

TEST(AttentionTiles, PortableOnesFollowTheReference) { check_all_tiled(tiles::portable()); }

TEST(AttentionTiles, AmxFollowsTheReference) {
  if (!has_amx()) GTEST_SKIP() << "this processor has no AMX, or this process may not use it";
  check_all_tiled(tiles::amx());
}

}  // namespace
}  // namespace pipetrain::test
