#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/op_check.h"

namespace pipetrain::test {
namespace {

/// sin(phase + 0.7 i): the input of the goldens, which were made with PyTorch 2.15 in double.
HostTensor ramp(Shape shape, double phase) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  int i = 0;
  for (float& value : out.span<float>()) value = static_cast<float>(std::sin(phase + 0.7 * i++));
  return out;
}

Attributes causal() { return {{"causal", std::int64_t{1}}}; }

// scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) and its backward pass.
TEST(Attention, CausalWithSharedKeysAsInPyTorch) {
  const HostTensor q = ramp({1, 2, 3, 2}, 0.1), k = ramp({1, 1, 3, 2}, 0.2),
                   v = ramp({1, 1, 3, 2}, 0.3), dy = ramp({1, 2, 3, 2}, 0.5);
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const auto out = run_op("Attention", causal(), {q, k, v}, backend);
    expect_values(out[0], {1, 2, 3, 2},
                  {0.295520207, 0.841470985, 0.73590306, 0.736454024, 0.412523074, 0.194471935,
                   0.295520207, 0.841470985, 0.589225506, 0.771431841, 0.62008699, 0.560442963},
                  2e-6);
    const auto gradients =
        run_op("AttentionGrad", causal(), {dy, q, k, v, {}, {}, out[0], out[1]}, backend);
    expect_values(gradients[0], {1, 2, 3, 2},
                  {0.0, 0.0, 0.075444413, -0.003543928, -0.092943622, -0.250097197, 0.0, 0.0,
                   -0.028846201, 0.001355022, 0.142296729, 0.199251251},
                  2e-6);
    expect_values(gradients[1], {1, 1, 3, 2},
                  {-0.14285669, -0.041499959, 0.210675484, 0.283348728, -0.067818794, -0.241848769},
                  2e-6);
    expect_values(gradients[2], {1, 1, 3, 2},
                  {0.007150994, 0.756533241, 0.955084316, 0.779240058, 0.061658836, -0.182955916},
                  2e-6);
  }
}

// With zero queries all visible keys have equal weights.
TEST(Attention, WindowsOfKeys) {
  const HostTensor zeros = floats({1, 1, 4, 1}, {0, 0, 0, 0});
  const HostTensor v = floats({1, 1, 4, 1}, {1, 2, 4, 8});
  const auto y = [&](std::int64_t left, std::int64_t right, Backend backend) {
    return run_op("Attention", {{"left", left}, {"right", right}}, {zeros, zeros, v}, backend)[0];
  };
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    expect_values(y(1, 0, backend), {1, 1, 4, 1}, {1, 1.5, 3, 6});
    expect_values(y(0, 1, backend), {1, 1, 4, 1}, {1.5, 3, 6, 8});
    expect_values(y(2, -1, backend), {1, 1, 4, 1}, {3.75, 3.75, 3.75, 14.0 / 3});
  }
}

InputSpec absent_spec() {
  InputSpec out{Shape{1}};
  out.absent = true;
  return out;
}

/// All relevant combinations of attributes, and of q, k, v, mask, lengths.
struct Case {
  Attributes attributes;
  std::vector<InputSpec> inputs;
};

std::vector<Case> small_cases() {
  std::vector<Case> out;
  const InputSpec q{{2, 4, 5, 3}}, k{{2, 2, 6, 3}}, v{{2, 2, 6, 2}};
  const InputSpec hides{{5, 6}, 0, 2, DType::kBool};
  InputSpec hides_all = hides;
  for (int i = 0; i < 30; ++i)
    hides_all.values.push_back(i >= 6 && i % 4 != 0);  // row 0 has no visible key
  const InputSpec lengths{{2}, 0, 1, DType::kInt64, {6, 3}};
  out.push_back({{}, {q, k, v}});
  out.push_back({causal(), {q, k, v}});
  out.push_back({{{"scale", 0.3}, {"softcap", 0.9}}, {q, k, v, {{1, 4, 5, 6}}}});
  out.push_back({{{"left", std::int64_t{1}}, {"right", std::int64_t{2}}}, {q, k, v, {{6}}}});
  out.push_back({{{"causal", std::int64_t{1}}, {"offset", std::int64_t{1}}}, {q, k, v, hides_all}});
  out.push_back({{{"offset_from_lengths", std::int64_t{1}}, {"causal", std::int64_t{1}}},
                 {q, k, v, absent_spec(), lengths}});
  const Attributes heads = {{"heads", std::int64_t{4}}, {"key_heads", std::int64_t{2}}};
  out.push_back({heads, {{{2, 5, 12}}, {{2, 6, 6}}, {{2, 6, 4}}, {{2, 1, 5, 1}}}});
  out.push_back({heads, {{{2, 5, 12}}, k, v}});
  return out;
}

TEST(Attention, Gradients) {
  for (const Case& one : small_cases()) check_gradients("Attention", one.attributes, one.inputs);
}

TEST(Attention, CpuAgreesWithReference) {
  std::vector<Case> cases = small_cases();
  cases.push_back({causal(), {{{2, 3, 130, 20}}, {{2, 3, 130, 20}}, {{2, 3, 130, 33}}}});
  cases.push_back({{{"heads", std::int64_t{2}}, {"left", std::int64_t{17}}},
                   {{{1, 75, 32}}, {{1, 75, 32}}, {{1, 75, 32}}, {{75, 75}}}});
  cases.push_back({causal(), {{{1, 1, 5, 8}}, {{1, 1, 2100, 8}}, {{1, 1, 2100, 8}}}});
  cases.push_back({{}, {{{1, 2, 30, 256}}, {{1, 2, 256, 256}}, {{1, 2, 256, 256}}}});
  for (const Case& one : cases) {
    SCOPED_TRACE(one.attributes.to_text());
    check_cpu("Attention", one.attributes, one.inputs, 2e-5);
    // The gradient, from the reference's own results.
    std::vector<HostTensor> in;
    std::uint64_t seed = 1;
    for (const InputSpec& spec : one.inputs) {
      if (spec.absent) {
        in.push_back({});
        continue;
      }
      in.push_back(random_tensor({spec.dtype, spec.shape}, ++seed, spec.low, spec.high));
      if (!spec.values.empty() && spec.dtype == DType::kBool) {
        in.back() = bools(spec.shape, {spec.values.begin(), spec.values.end()});
      }
      if (spec.dtype == DType::kInt64) {
        in.back() = int64s(spec.shape, {spec.values.begin(), spec.values.end()});
      }
    }
    in.resize(5);
    const auto out = run_op("Attention", one.attributes, in);
    std::vector<HostTensor> gradient_in = {random_tensor(out[0].type(), 9)};
    gradient_in.insert(gradient_in.end(), in.begin(), in.end());
    gradient_in.insert(gradient_in.end(), out.begin(), out.end());
    const auto expected = run_op("AttentionGrad", one.attributes, gradient_in);
    const auto got = run_op("AttentionGrad", one.attributes, gradient_in, Backend::kCpu);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expect_close(got[i], expected[i], 5e-5, fmt::format("gradient {}", i));
    }
  }
}

TEST(Attention, AQueryThatSeesNoKeyGivesZero) {
  const HostTensor q = ramp({1, 1, 2, 2}, 0.1), k = ramp({1, 1, 2, 2}, 0.2);
  const float hidden = -std::numeric_limits<float>::infinity();
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const HostTensor mask = floats({2, 2}, {hidden, hidden, 0, hidden});
    const auto y = run_op("Attention", {}, {q, k, k, mask}, backend);
    const auto row = k.to_doubles();
    expect_values(y[0], {1, 1, 2, 2}, {0, 0, row[0], row[1]});
  }
}

// Masks of -1e9 and of the lowest float swallow the logarithm of the sum. Expected values by hand:
// with a zero query all keys weigh the same.
TEST(Attention, GradientsOfRowsWhoseKeysAreAllMasked) {
  const HostTensor q = floats({1, 1, 1, 1}, {0}), k = floats({1, 1, 3, 1}, {1, 2, 4}),
                   v = floats({1, 1, 3, 1}, {1, 3, 8}), dy = floats({1, 1, 1, 1}, {2});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    for (const float hidden : {std::numeric_limits<float>::lowest(), -1e9F, -1e6F, 1e9F}) {
      const HostTensor mask = floats({1, 3}, {hidden, hidden, hidden});
      const auto out = run_op("Attention", {}, {q, k, v, mask}, backend);
      expect_values(out[0], {1, 1, 1, 1}, {4}, 1e-5);
      const auto gradients =
          run_op("AttentionGrad", {}, {dy, q, k, v, mask, {}, out[0], out[1]}, backend);
      expect_values(gradients[0], {1, 1, 1, 1}, {22.0 / 3}, 1e-5);
      expect_values(gradients[2], {1, 1, 3, 1}, {2.0 / 3, 2.0 / 3, 2.0 / 3}, 1e-6);
      expect_values(gradients[3], {1, 1, 1, 3}, {-2, -2.0 / 3, 8.0 / 3}, 1e-5);
    }
    // One key is hidden deeper than the others.
    const HostTensor mask = floats({1, 3}, {-1e9F, -1e9F, std::numeric_limits<float>::lowest()});
    const auto out = run_op("Attention", {}, {q, k, v, mask}, backend);
    const auto gradients =
        run_op("AttentionGrad", {}, {dy, q, k, v, mask, {}, out[0], out[1]}, backend);
    expect_values(gradients[0], {1, 1, 1, 1}, {1}, 1e-5);
    expect_values(gradients[2], {1, 1, 3, 1}, {1, 1, 0}, 1e-6);
  }
}

// A query or a key that is NaN, and a mask of +inf.
TEST(Attention, NanStays) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  InputSpec q{{1, 1, 2, 2}}, k{{1, 1, 3, 2}}, mask{{2, 3}};
  const InputSpec v{{1, 1, 3, 2}}, dy{{1, 1, 2, 2}};
  for (const int kind : {0, 1, 2}) {
    q.values = {kind == 0 ? nan : 1, 2, 0.5, 0.25};
    k.values = {1, 2, kind == 1 ? nan : 3, 4, 5, 6};
    mask.values = {0, kind == 2 ? infinity : 0, 0, 0, 0, 0};
    check_cpu("Attention", {}, {q, k, v, mask});
    const HostTensor in[] = {floats(q.shape, {q.values.begin(), q.values.end()}),
                             floats(k.shape, {k.values.begin(), k.values.end()}),
                             ramp(v.shape, 0.3),
                             floats(mask.shape, {mask.values.begin(), mask.values.end()})};
    for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
      const auto out = run_op("Attention", {}, {in[0], in[1], in[2], in[3]}, backend);
      EXPECT_TRUE(std::isnan(out[0].span<float>()[0]));
      EXPECT_TRUE(std::isnan(out[1].span<float>()[0]));
      EXPECT_EQ(std::isnan(out[0].span<float>()[2]), kind == 1);
      const auto gradients =
          run_op("AttentionGrad", {},
                 {ramp(dy.shape, 0.5), in[0], in[1], in[2], in[3], {}, out[0], out[1]}, backend);
      EXPECT_TRUE(std::isnan(gradients[0].span<float>()[0]));
      EXPECT_EQ(std::isnan(gradients[0].span<float>()[2]), kind == 1);
    }
  }
}

TEST(Attention, RefusesWhatDoesNotFit) {
  const TensorType q{DType::kFloat32, {1, 2, 3, 4}}, k{DType::kFloat32, {1, 2, 5, 4}};
  expect_error(ErrorKind::kModel, "incompatible shapes", [&] {
    infer_op("Attention", {}, {q, {DType::kFloat32, {1, 2, 5, 3}}, k});
  });
  expect_error(ErrorKind::kModel, "cannot be broadcast to (1, 2, 3, 5)", [&] {
    infer_op("Attention", {}, {q, k, k, {DType::kFloat32, {4, 5}}});
  });
}

// The import of opset 23: rank 3 with past keys, and the scores as a fourth output.
TEST(AttentionImport, PastKeysComeFirst) {
  const HostTensor q = ramp({1, 2, 4}, 0.1), k = ramp({1, 2, 4}, 0.2), past = ramp({1, 2, 1, 2}, 1);
  const Attributes attributes = {{"q_num_heads", std::int64_t{2}},
                                 {"kv_num_heads", std::int64_t{2}},
                                 {"is_causal", std::int64_t{1}},
                                 {"qk_matmul_output_mode", std::int64_t{3}}};
  const auto out = import_node("Attention", 23, attributes,
                               {data(q), data(k), data(k), absent(), data(past), data(past)}, 4)
                       .run();
  EXPECT_EQ(out[1].shape(), (Shape{1, 2, 3, 2}));
  EXPECT_EQ(out[1].to_doubles()[0], past.to_doubles()[0]);
  const std::vector<double> shares = out[3].to_doubles();
  EXPECT_EQ(out[3].shape(), (Shape{1, 2, 2, 3}));
  EXPECT_EQ(shares[2], 0);  // query 0 attends to the past and itself
  // The output is the weighted mean of the values: past, then new.
  const std::vector<double> v = k.to_doubles(), old = past.to_doubles();
  EXPECT_NEAR(out[0].to_doubles()[0], shares[0] * old[0] + shares[1] * v[0], 1e-6);
}

// A query that sees nothing has no shares, as the output has nothing of any value.
TEST(AttentionImport, SharesOfHiddenRowsAreZero) {
  const HostTensor q = ramp({1, 1, 2, 2}, 0.1), k = ramp({1, 1, 3, 2}, 0.2);
  const HostTensor shown = bools({2, 3}, {0, 0, 0, 1, 0, 0});
  const float inf = std::numeric_limits<float>::infinity();
  const HostTensor added = floats({2, 3}, {-inf, -inf, -inf, 0, -inf, -inf});
  for (const HostTensor& mask : {shown, added}) {
    const auto out = import_node("Attention", 23, {{"qk_matmul_output_mode", std::int64_t{3}}},
                                 {data(q), data(k), data(k), data(mask)}, 4)
                         .run();
    expect_values(out[3], {1, 1, 2, 3}, {0, 0, 0, 1, 0, 0});
    const std::vector<double> v = k.to_doubles();
    expect_values(out[0], {1, 1, 2, 2}, {0, 0, v[0], v[1]});
  }
  // A window to the left of each query: keys 0, and 0 to 1.
  const Attributes window = {{"qk_matmul_output_mode", std::int64_t{3}},
                             {"left_window_size", std::int64_t{1}},
                             {"right_window_size", std::int64_t{0}}};
  const auto out = import_node("Attention", 23, window, {data(q), data(k), data(k)}, 4).run();
  const std::vector<double> shares = out[3].to_doubles();
  EXPECT_EQ(std::vector<double>(shares.begin(), shares.begin() + 3),
            (std::vector<double>{1, 0, 0}));
  EXPECT_NEAR(shares[3] + shares[4], 1, 1e-6);
  EXPECT_EQ(shares[5], 0);
}

/// Shares of zero queries: all keys that a query sees have the same.
std::vector<double> shares_of(const Attributes& attributes, Shape queries, std::int64_t keys,
                              std::vector<ImportInput> more) {
  Attributes all = attributes;
  all.set("qk_matmul_output_mode", std::int64_t{3});
  const HostTensor zeros(TensorType{DType::kFloat32, queries});
  queries[2] = keys;
  const HostTensor k = ramp(queries, 0.2);
  std::vector<ImportInput> inputs = {data(zeros), data(k), data(k)};
  inputs.insert(inputs.end(), more.begin(), more.end());
  return import_node("Attention", 24, all, inputs, 4).run()[3].to_doubles();
}

TEST(AttentionImport, SharesKnowTheLengths) {
  using Shares = std::vector<double>;
  const std::vector<ImportInput> lengths = {absent(), absent(), absent(),
                                            data(int64s({2}, {1, 3}))};
  EXPECT_EQ(shares_of({}, {2, 1, 1, 2}, 4, lengths),
            (Shares{1, 0, 0, 0, 1.0F / 3, 1.0F / 3, 1.0F / 3, 0}));
  // The last query sees the last valid key: 0 and 1, then 1 and 2 of sample 0, all of sample 1.
  const std::vector<ImportInput> more = {absent(), absent(), absent(), data(int64s({2}, {3, 4}))};
  const Attributes window = {{"is_causal", std::int64_t{1}}, {"left_window_size", std::int64_t{1}}};
  EXPECT_EQ(shares_of(window, {2, 1, 2, 2}, 4, more),
            (Shares{0.5, 0.5, 0, 0, 0, 0.5, 0.5, 0, 0, 0.5, 0.5, 0, 0, 0, 0.5, 0.5}));
}

// The largest number for "no limit": one more than it overflows.
TEST(AttentionImport, WindowsMayBeLargerThanAnyLength) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const Attributes window = {{"left_window_size", most}, {"right_window_size", most}};
  EXPECT_EQ(shares_of(window, {1, 1, 2, 2}, 2, {}), (std::vector<double>(4, 0.5)));
  const std::vector<ImportInput> lengths = {absent(), absent(), absent(), data(int64s({1}, {2}))};
  EXPECT_EQ(shares_of(window, {1, 1, 2, 2}, 2, lengths), (std::vector<double>(4, 0.5)));
  const HostTensor k = ramp({1, 1, 2, 1}, 0.2);
  const std::vector<double> values = k.to_doubles();
  const HostTensor zeros(TensorType{DType::kFloat32, {1, 1, 2, 1}});
  const auto out = import_node("Attention", 24, window, {data(zeros), data(k), data(k)}).run();
  for (const double mean : out[0].to_doubles())
    EXPECT_NEAR(mean, (values[0] + values[1]) / 2, 1e-6);
}

TEST(AttentionImport, SharesOfKeysBeyondAShorterMaskAreZero) {
  using Shares = std::vector<double>;
  EXPECT_EQ(shares_of({}, {1, 1, 1, 2}, 4, {data(bools({1, 3}, {1, 0, 1}))}),
            (Shares{0.5, 0, 0.5, 0}));
  EXPECT_EQ(shares_of({}, {1, 1, 1, 2}, 4, {data(floats({1, 2}, {0, 0}))}),
            (Shares{0.5, 0.5, 0, 0}));
  EXPECT_EQ(
      shares_of({}, {1, 1, 1, 2}, 4,
                {data(floats({1, 3}, {0, 0, 0})), absent(), absent(), data(int64s({1}, {2}))}),
      (Shares{0.5, 0.5, 0, 0}));
}

// Without decay, token t gets scale q_t' Σ_{s <= t} k_s v_s'.
TEST(LinearAttentionImport, AddsUpWhatWasSeen) {
  const HostTensor q = floats({1, 2, 2}, {1, 2, 3, -1}), k = floats({1, 2, 2}, {1, 0, 2, 1}),
                   v = floats({1, 2, 1}, {4, 5});
  const Attributes attributes = {{"update_rule", std::string("linear")},
                                 {"q_num_heads", std::int64_t{1}},
                                 {"kv_num_heads", std::int64_t{1}},
                                 {"scale", 0.5}};
  const auto out =
      import_node("LinearAttention", 27, attributes, {data(q), data(k), data(v)}, 2).run();
  expect_values(out[0], {1, 2, 1}, {0.5 * 4, 0.5 * (3 * (4 + 10) - 5)});
  expect_values(out[1], {1, 1, 2, 1}, {14, 5});
}

TEST(CausalConvImport, LooksBackOnly) {
  const HostTensor x = floats({1, 1, 3}, {1, 2, 3}), w = floats({1, 1, 2}, {10, 1});
  const auto out = import_node("CausalConvWithState", 27, {}, {data(x), data(w)}, 2).run();
  expect_values(out[0], {1, 1, 3}, {1, 12, 23});
  expect_values(out[1], {1, 1, 1}, {3});
}

TEST(Rotary, TurnsPairs) {
  const HostTensor x = floats({1, 1, 1, 5}, {1, 2, 3, 4, 5});
  const HostTensor cosine = floats({1, 1, 2}, {0, 0.6F}), sine = floats({1, 1, 2}, {1, 0.8F});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    expect_values(run_op("Rotary", {}, {x, cosine, sine}, backend)[0], {1, 1, 1, 5},
                  {-3, 1.2 - 3.2, 1, 1.6 + 2.4, 5});
    expect_values(
        run_op("Rotary", {{"interleaved", std::int64_t{1}}}, {x, cosine, sine}, backend)[0],
        {1, 1, 1, 5}, {-2, 1, 1.8 - 3.2, 2.4 + 2.4, 5});
  }
}

TEST(Rotary, GradientsAndCpu) {
  for (const std::int64_t interleaved : {0, 1}) {
    const Attributes attributes = {{"interleaved", interleaved}, {"heads", std::int64_t{2}}};
    for (const Shape& x : {Shape{2, 2, 3, 6}, Shape{2, 3, 12}}) {
      InputSpec table{{2, 3, 2}};
      table.differentiate = false;
      check_gradients("Rotary", attributes, {{x}, table, table});
      check_cpu("Rotary", attributes, {{x}, table, table});
    }
  }
}

}  // namespace
}  // namespace pipetrain::test
