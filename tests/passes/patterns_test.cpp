// Every pattern is built from primitives, and the rewritten graph must give the same numbers.
#include "passes/patterns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "passes/lower.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A graph of primitives with random inputs and one result.
class Primitives {
 public:
  Primitives() : builder_(make_builder(graph_)) {}

  ValueId input(Shape shape, double low = -1, double high = 1) {
    Value value;
    value.name = fmt::format("x{}", feeds_.size());
    value.type = {DType::kFloat32, std::move(shape)};
    value.role = Role::kInput;
    const TensorType type = value.type;
    const ValueId id = builder_.add_value(std::move(value));
    feeds_[id] = random_tensor(type, 7 + feeds_.size(), low, high);
    return id;
  }
  ValueId constant(HostTensor tensor) { return builder_.constant(std::move(tensor)); }
  ValueId add(std::string_view op, std::vector<ValueId> inputs, Attributes attributes = {}) {
    return builder_.add(op, std::move(inputs), std::move(attributes));
  }
  ValueId scaled(ValueId x, double factor) { return add("Mul", {x, builder_.scalar(factor)}); }
  ValueId product(ValueId a, ValueId b) {
    return add("MatMul", {a, b}, {{"trans_a", std::int64_t{0}}, {"trans_b", std::int64_t{0}}});
  }
  ValueId turned(ValueId x, Ints perm) { return add("Transpose", {x}, {{"perm", perm}}); }
  ValueId shaped(ValueId x, const Shape& shape) { return builder_.reshape(x, shape); }
  ValueId cast(ValueId x, DType to) {
    return add("Cast", {x}, {{"to", static_cast<std::int64_t>(to)}});
  }
  ValueId softmax(ValueId x) { return add("Softmax", {x}, {{"axis", std::int64_t{-1}}}); }
  ValueId mean(ValueId x) {
    return add("ReduceMean", {x}, {{"axes", Ints{-1}}, {"keepdims", std::int64_t{1}}});
  }
  ValueId part(ValueId x, std::int64_t begin, std::int64_t end) {
    return add(
        "Slice", {x},
        {{"starts", Ints{begin}}, {"ends", Ints{end}}, {"axes", Ints{3}}, {"steps", Ints{1}}});
  }
  GraphBuilder& builder() { return builder_; }

  /// Rewrites, compares, and returns the operators that are left, sorted by name.
  std::string fused(ValueId result, double tolerance = 1e-5) {
    return rewritten(result, tolerance,
                     [&](Graph& graph) { fuse_patterns(graph, std::span(&result, 1)); });
  }
  std::string expanded(ValueId result) {
    return rewritten(result, 1e-5, [](Graph& graph) {
      expand_group_norms(graph);
      expand_patches(graph);
    });
  }
  const Node& node(std::string_view op) const {
    for (const Node& node : graph_.nodes) {
      if (node.op->name == op) return node;
    }
    throw std::runtime_error("no such node");
  }

 private:
  template <class Rewrite>
  std::string rewritten(ValueId result, double tolerance, Rewrite rewrite) {
    const HostTensor before = value_of(result);
    rewrite(graph_);
    graph_.verify();
    remove_dead_nodes(graph_, {result});
    graph_.verify();
    expect_close(value_of(result), before, tolerance);
    std::vector<std::string_view> names;
    for (const Node& node : graph_.nodes) {
      if (node.op->name != "Reshape") names.push_back(node.op->name);
    }
    std::sort(names.begin(), names.end());
    std::string text;
    for (const std::string_view name : names) text += (text.empty() ? "" : " ") + std::string(name);
    return text;
  }
  HostTensor value_of(ValueId id) const {
    return run_graph(graph_, Backend::kReference, feeds_)[static_cast<std::size_t>(id.index)];
  }

  Graph graph_;
  GraphBuilder builder_;
  Feeds feeds_;
};

constexpr std::int64_t kB = 2, kT = 5, kH = 3, kD = 4;

/// 0 where a token may look, `hidden` at later ones.
HostTensor causal_mask(float hidden) {
  HostTensor out(TensorType{DType::kFloat32, {kT, kT}});
  for (std::int64_t i = 0; i < kT; ++i) {
    for (std::int64_t j = i + 1; j < kT; ++j) {
      out.span<float>()[static_cast<std::size_t>(i * kT + j)] = hidden;
    }
  }
  return out;
}

HostTensor seen(bool value_if_seen) {
  HostTensor out(TensorType{DType::kBool, {1, 1, kT, kT}});
  for (std::int64_t i = 0; i < kT * kT; ++i) {
    out.view().as<bool>()[i] = (i % kT <= i / kT) == value_if_seen;
  }
  return out;
}

/// (B T, H D) -> (B, H, T, D), or another order of the axes.
ValueId heads(Primitives& p, Ints perm = {0, 2, 1, 3}) {
  return p.turned(p.shaped(p.input({kB * kT, kH * kD}), {kB, kT, kH, kD}), std::move(perm));
}

// As a GPT of opset 17 has it.
TEST(Patterns, CausalAttentionInRows) {
  Primitives p;
  const ValueId q = p.scaled(heads(p), 0.5), k = heads(p, {0, 2, 3, 1}), v = heads(p);
  const ValueId scores = p.add("Add", {p.product(q, k), p.constant(causal_mask(-1e9F))});
  const ValueId y = p.turned(p.product(p.softmax(scores), v), {0, 2, 1, 3});
  EXPECT_EQ(p.fused(p.shaped(y, {kB * kT, kH * kD})), "Attention");
  const Node& node = p.node("Attention");
  EXPECT_TRUE(node.attributes.flag("causal"));
  EXPECT_EQ(node.attributes.real("scale"), 0.5);
  EXPECT_EQ(node.inputs.size(), 3U);
}

TEST(Patterns, AttentionKeepsAnOutputWhoseHeadsAreMergedElsewhere) {
  Primitives p;
  const ValueId y = p.product(p.softmax(p.product(heads(p), heads(p, {0, 2, 3, 1}))), heads(p));
  p.turned(y, {0, 2, 1, 3});
  EXPECT_EQ(p.fused(y), "Attention");
}

TEST(Patterns, AttentionOfTheTokensOfAnother) {
  Primitives p;
  const ValueId first = p.turned(
      p.product(p.softmax(p.product(heads(p), heads(p, {0, 2, 3, 1}))), heads(p)), {0, 2, 1, 3});
  const auto others = [&](Ints perm) {
    return p.turned(p.shaped(p.input({kB * kH, kT * kD}), {kB, kH, kT, kD}), std::move(perm));
  };
  const ValueId scores = p.product(first, others({0, 2, 3, 1}));
  const ValueId y = p.turned(p.product(p.softmax(scores), others({0, 2, 1, 3})), {0, 2, 1, 3});
  const std::string ops = p.fused(p.shaped(y, {kB * kH, kT * kD}));
  EXPECT_TRUE(ops.starts_with("Attention Attention")) << ops;
}

// q and k are scaled before their rows are split into heads; a negative number stays.
TEST(Patterns, AttentionOfScaledRows) {
  for (const double factor : {0.5, -0.5}) {
    Primitives p;
    const auto scaled_heads = [&](double by) {
      const ValueId rows = p.scaled(p.input({kB * kT, kH * kD}), by);
      return p.turned(p.shaped(rows, {kB, kT, kH, kD}), {0, 2, 1, 3});
    };
    const ValueId q = scaled_heads(factor), k = p.turned(scaled_heads(0.25), {0, 1, 3, 2});
    const ValueId y = p.turned(p.product(p.softmax(p.product(q, k)), heads(p)), {0, 2, 1, 3});
    EXPECT_EQ(p.fused(p.shaped(y, {kB * kT, kH * kD})), factor > 0 ? "Attention" : "Attention Mul");
    EXPECT_EQ(p.node("Attention").attributes.real("scale"), factor > 0 ? 0.125 : 0.25);
  }
}

// As scaled_dot_product_attention is exported at opset 18, with repeated key heads and the guard.
TEST(Patterns, GroupedAttentionWithGuard) {
  Primitives p;
  const auto repeated = [&] {
    const ValueId few = p.turned(p.input({kB, kT, 2, kD}), {0, 2, 1, 3});
    const ValueId one = p.shaped(few, {kB, 2, 1, kT, kD});
    const ValueId many = p.add("Expand", {one}, {{"shape", Ints{kB, 2, 3, kT, kD}}});
    return p.shaped(many, {kB, 6, kT, kD});
  };
  const ValueId q = p.input({kB, 6, kT, kD}), k = repeated(), v = repeated();
  const ValueId flat = p.turned(p.shaped(k, {kB * 6, kT, kD}), {0, 2, 1});
  const ValueId k_turned = p.scaled(p.shaped(flat, {kB, 6, kD, kT}), 0.7);
  const ValueId scores =
      p.add("Add", {p.product(p.scaled(q, 0.7), k_turned), p.constant(causal_mask(-kInfinity))});
  const ValueId shares = p.softmax(scores);
  const ValueId guarded = p.add("Where", {p.add("IsNaN", {shares}), p.builder().scalar(0), shares});
  EXPECT_EQ(p.fused(p.product(guarded, v)), "Attention");
  const Node& node = p.node("Attention");
  EXPECT_EQ(node.attributes.integer("key_heads"), 2);
  EXPECT_NEAR(node.attributes.real("scale"), 0.49, 1e-6);
}

// Outside of the Reshapes all is as it would be, but the tokens are not what is swapped.
TEST(Patterns, ATransposeOfOtherMatricesIsNotThatOfTheKeys) {
  Primitives p;
  const ValueId flat = p.turned(p.shaped(heads(p), {kB * kH * kD / 2, kT, 2}), {0, 2, 1});
  const ValueId scores = p.product(heads(p), p.shaped(flat, {kB, kH, kD, kT}));
  EXPECT_EQ(p.fused(p.product(p.softmax(scores), heads(p))),
            "Attention Transpose Transpose Transpose");
}

TEST(Patterns, MasksByWhere) {
  for (const bool inverted : {false, true}) {
    for (const float hidden : {-kInfinity, -65504.0F}) {
      Primitives p;
      const ValueId q = heads(p), k = heads(p, {0, 2, 3, 1}), v = heads(p);
      const ValueId scores = p.add("Div", {p.product(q, k), p.builder().scalar(2)});
      const ValueId condition = p.constant(seen(!inverted)), other = p.builder().scalar(hidden);
      const ValueId masked = inverted ? p.add("Where", {condition, other, scores})
                                      : p.add("Where", {condition, scores, other});
      EXPECT_EQ(p.fused(p.product(p.softmax(masked), v)), "Attention");
      EXPECT_TRUE(p.node("Attention").attributes.flag("causal"));
    }
  }
}

// A mask that is computed, and 3 axes as nn.MultiheadAttention has them.
TEST(Patterns, OtherMasksStayInputs) {
  Primitives p;
  const ValueId q = p.input({6, kT, kD}), k = p.turned(p.input({6, kT, kD}), {0, 2, 1}),
                v = p.input({6, kT, 3});
  const ValueId scores = p.add("Add", {p.input({6, 1, kT}), p.product(q, k)});
  EXPECT_EQ(p.fused(p.product(p.softmax(scores), v)), "Attention");
  EXPECT_EQ(p.node("Attention").inputs.size(), 4U);
}

TEST(Patterns, SharesThatAreNeededAreNotFusedAway) {
  Primitives p;
  const ValueId shares = p.softmax(p.product(heads(p), heads(p, {0, 2, 3, 1})));
  const ValueId y = p.product(shares, heads(p));
  EXPECT_EQ(p.fused(p.add("Add", {p.mean(shares), p.mean(y)})).find("Attention"),
            std::string::npos);
  // With a number instead of -inf, a query without keys gets the mean of all values.
  Primitives other;
  HostTensor hides = seen(true);
  std::fill_n(hides.view().as<bool>(), kT, false);
  const ValueId scores = other.product(heads(other), heads(other, {0, 2, 3, 1}));
  const ValueId masked =
      other.add("Where", {other.constant(hides), scores, other.builder().scalar(-65504.0)});
  EXPECT_EQ(other.fused(other.product(other.softmax(masked), heads(other))).find("Attention"),
            std::string::npos);
}

TEST(Patterns, LayerNormOfOldOpsets) {
  for (const bool affine : {true, false}) {
    Primitives p;
    const ValueId x = p.input({3, 4, 6});
    const ValueId d = p.add("Sub", {x, p.mean(x)});
    const ValueId square = p.add("PowScalar", {d}, {{"exponent", 2.0}});
    const ValueId root = p.add("Sqrt", {p.add("Add", {p.mean(square), p.builder().scalar(1e-3)})});
    ValueId y = p.add("Div", {d, root});
    if (affine) y = p.add("Add", {p.add("Mul", {y, p.input({6})}), p.input({1, 6})});
    EXPECT_EQ(p.fused(y), "LayerNorm");
    EXPECT_NEAR(p.node("LayerNorm").attributes.real("epsilon"), 1e-3, 1e-9);
  }
}

TEST(Patterns, RmsNormOfOldOpsets) {
  Primitives p;
  const ValueId x = p.input({3, 4, 6});
  const ValueId square = p.add("PowScalar", {x}, {{"exponent", 2.0}});
  const ValueId root = p.add("Sqrt", {p.add("Add", {p.mean(square), p.builder().scalar(1e-3)})});
  const ValueId normal = p.add("Mul", {x, p.add("Reciprocal", {root})});
  EXPECT_EQ(p.fused(p.add("Mul", {p.input({6}), normal})), "RmsNorm");
}

TEST(Patterns, NormsOverOtherAxesStay) {
  Primitives p;
  const ValueId x = p.input({3, 4, 6});
  const ValueId square = p.add("PowScalar", {x}, {{"exponent", 2.0}});
  const ValueId mean =
      p.add("ReduceMean", {square}, {{"axes", Ints{1}}, {"keepdims", std::int64_t{1}}});
  const ValueId root = p.add("Sqrt", {p.add("Add", {mean, p.builder().scalar(1e-3)})});
  EXPECT_EQ(p.fused(p.add("Div", {x, root})).find("RmsNorm"), std::string::npos);
}

// As opset 20 and earlier have it: rows of groups, ones and zeros as their scale and shift.
TEST(Patterns, GroupNormOfRows) {
  const auto normalized = [](bool affine, std::int64_t width) {
    Primitives p;
    const ValueId rows = p.shaped(p.input({2, 6, 4, 5}), {2, 3, 40});
    const ValueId one = p.constant(floats({3}, {1, 1, 1})),
                  zero = p.constant(floats({3}, {0, 0, 0}));
    const ValueId normal = p.add("GroupNorm", {rows, one, zero}, {{"groups", std::int64_t{3}}});
    ValueId y = p.shaped(normal, {2, 6, 4, 5});
    if (affine) {
      y = p.add("Mul", {y, p.input({6, 1, 1})});
      y = p.add("Add", {p.input({width, 1, 1}), y});
    }
    return p.fused(y);
  };
  EXPECT_EQ(normalized(true, 6), "GroupNorm");
  EXPECT_EQ(normalized(false, 6), "GroupNorm");
  EXPECT_EQ(normalized(true, 1), "Add GroupNorm");  // one number for all channels
  // Scaled within the groups.
  Primitives p;
  const ValueId rows = p.shaped(p.input({2, 6, 4}), {2, 3, 8});
  const ValueId two = p.constant(floats({3}, {1, 2, 1})), zero = p.constant(floats({3}, {0, 0, 0}));
  const ValueId y = p.add("GroupNorm", {rows, two, zero}, {{"groups", std::int64_t{3}}});
  EXPECT_EQ(p.fused(p.add("Mul", {p.shaped(y, {2, 6, 4}), p.input({6, 1})})), "GroupNorm Mul");
}

TEST(Patterns, WhatIsNoGroupNormOfRows) {
  const auto normalize = [](Primitives& p, ValueId rows, std::int64_t channels,
                            std::int64_t groups) {
    const std::vector<float> ones(static_cast<std::size_t>(channels), 1), zeros(ones.size(), 0);
    return p.add(
        "GroupNorm",
        {rows, p.constant(floats({channels}, ones)), p.constant(floats({channels}, zeros))},
        {{"groups", groups}});
  };
  // Rows of several samples.
  Primitives p;
  const ValueId rows = p.shaped(p.input({4, 6, 4}), {2, 6, 8});
  EXPECT_EQ(p.fused(p.add("Mul", {p.shaped(normalize(p, rows, 6, 6), {4, 6, 4}), p.input({6, 1})})),
            "GroupNorm Mul");
  // Fewer groups than rows.
  Primitives q;
  const ValueId halves = q.shaped(q.input({2, 6, 4}), {2, 12, 2});
  EXPECT_EQ(
      q.fused(q.add("Mul", {q.shaped(normalize(q, halves, 12, 3), {2, 6, 4}), q.input({6, 1})})),
      "GroupNorm Mul");
  // Activations of one sample have the shape of numbers per channel.
  Primitives r;
  const auto one = [&] {
    const ValueId x = r.shaped(r.input({1, 6, 1, 1}), {1, 3, 2});
    return r.shaped(normalize(r, x, 3, 3), {1, 6, 1, 1});
  };
  const ValueId first = one();
  EXPECT_EQ(r.fused(r.add("Add", {first, one()})), "Add GroupNorm GroupNorm");
}

TEST(Patterns, GroupNormWithoutItsKernel) {
  Primitives p;
  const ValueId y = p.add("GroupNorm", {p.input({2, 6, 4, 5}), p.input({6}), p.input({6})},
                          {{"groups", std::int64_t{3}}});
  EXPECT_EQ(p.expanded(y), "Add LayerNorm Mul");
}

TEST(Patterns, PatchesAsProducts) {
  const auto convolved = [](Shape x, Shape w, Ints strides, bool bias, std::string name = "group",
                            Attributes::Value value = std::int64_t{1}) {
    Primitives p;
    std::vector<ValueId> operands = {p.input(x), p.input(w)};
    if (bias) operands.push_back(p.input({w[0]}));
    return p.expanded(p.add("Conv", operands, {{"strides", strides}, {name, value}}));
  };
  const std::string product = "MatMul Transpose Transpose";
  EXPECT_EQ(convolved({2, 3, 8, 12}, {5, 3, 4, 4}, {4, 4}, true), product);
  EXPECT_EQ(convolved({2, 3, 8, 12}, {5, 3, 2, 4}, {2, 4}, false), product);
  EXPECT_EQ(convolved({2, 1, 12}, {5, 1, 3}, {3}, true), product);
  EXPECT_EQ(convolved({2, 3, 4, 6, 8}, {5, 3, 2, 3, 4}, {2, 3, 4}, true), product);
  // Windows that overlap, leave a rest, lie apart or reach into padding; single positions; groups;
  // as many channels as feature maps have.
  EXPECT_EQ(convolved({2, 3, 8, 12}, {5, 3, 4, 4}, {4, 2}, true), "Conv");
  EXPECT_EQ(convolved({2, 3, 9, 12}, {5, 3, 4, 4}, {4, 4}, true), "Conv");
  EXPECT_EQ(convolved({2, 3, 8, 8}, {5, 3, 2, 2}, {2, 2}, true, "dilations", Ints{2, 2}), "Conv");
  EXPECT_EQ(convolved({2, 3, 6, 6}, {5, 3, 4, 4}, {4, 4}, true, "pads", Ints{1, 1, 1, 1}), "Conv");
  EXPECT_EQ(convolved({2, 3, 8, 12}, {5, 3, 1, 1}, {1, 1}, true), "Conv");
  EXPECT_EQ(convolved({2, 4, 8, 12}, {6, 2, 4, 4}, {4, 4}, true, "group", std::int64_t{2}), "Conv");
  EXPECT_EQ(convolved({2, 8, 8, 12}, {5, 8, 4, 4}, {4, 4}, true), "Conv");
}

TEST(Patterns, RotaryInRows) {
  Primitives p;
  const ValueId x = heads(p);
  HostTensor cosine(TensorType{DType::kFloat32, {1, 1, kT, kD}});
  HostTensor sine(cosine.type());
  for (std::int64_t i = 0; i < kT * kD; ++i) {
    const auto angle = static_cast<float>(i / kD * (i % 2 + 1)) * 0.3F;
    cosine.span<float>()[static_cast<std::size_t>(i)] = std::cos(angle);
    sine.span<float>()[static_cast<std::size_t>(i)] = std::sin(angle);
  }
  const ValueId turned = p.add("Concat", {p.add("Neg", {p.part(x, 2, 4)}), p.part(x, 0, 2)},
                               {{"axis", std::int64_t{3}}});
  const ValueId y = p.add(
      "Add", {p.add("Mul", {x, p.constant(cosine)}), p.add("Mul", {turned, p.constant(sine)})});
  EXPECT_EQ(p.fused(y), "Rotary Transpose");
}

TEST(Patterns, GeluByTanhAndSilu) {
  Primitives p;
  const ValueId x = p.input({4, 5}, -3, 3);
  const ValueId cube = p.add("PowScalar", {x}, {{"exponent", 3.0}});
  const ValueId inner = p.scaled(p.add("Add", {x, p.scaled(cube, 0.044715)}), 0.7978845608);
  const ValueId sum = p.add("Add", {p.add("Tanh", {inner}), p.builder().scalar(1)});
  EXPECT_EQ(p.fused(p.add("Mul", {p.scaled(x, 0.5), sum})), "Gelu");
  Primitives q;
  const ValueId z = q.input({4, 5}, -3, 3);
  EXPECT_EQ(q.fused(q.add("Mul", {z, q.add("Sigmoid", {z})})), "Silu");
}

// As an LSTM is exported: PyTorch's gates (i, f, g, o) become those of ONNX (i, o, f, g).
TEST(Patterns, WeightsWhoseRowsChangePlaces) {
  const auto joined = [](Role role,
                         const std::vector<std::pair<std::int64_t, std::int64_t>>& parts) {
    Primitives p;
    const ValueId weight = p.input({8, 3});
    p.builder().graph()[weight].role = role;
    std::vector<ValueId> slices;
    for (const auto& [begin, end] : parts) {
      slices.push_back(p.add(
          "Slice", {weight},
          {{"starts", Ints{begin}}, {"ends", Ints{end}}, {"axes", Ints{0}}, {"steps", Ints{1}}}));
    }
    return p.fused(p.add("Concat", slices, {{"axis", std::int64_t{0}}}), 0);
  };
  EXPECT_EQ(joined(Role::kParameter, {{0, 2}, {6, 8}, {2, 4}, {4, 6}}), "Gather");
  EXPECT_EQ(joined(Role::kParameter, {{4, 8}, {0, 4}}), "Gather");
  // A row twice, a row missing, and what is no weight.
  EXPECT_EQ(joined(Role::kParameter, {{0, 5}, {4, 8}}), "Concat Slice Slice");
  EXPECT_EQ(joined(Role::kParameter, {{4, 7}, {0, 4}}), "Concat Slice Slice");
  EXPECT_EQ(joined(Role::kInput, {{4, 8}, {0, 4}}), "Concat Slice Slice");
}

/// The product of an input and a trained tensor.
ValueId trained_input(Primitives& p, const Shape& shape) {
  const ValueId weight = p.input({shape[shape.rank() - 1]});
  p.builder().graph()[weight].role = Role::kParameter;
  return p.add("Mul", {p.input(shape), weight});
}

TEST(Patterns, SlicesThatReadATensorAreOneSplit) {
  struct Part {
    std::int64_t start, end, axis, step = 1;
  };
  const auto joined = [](const std::vector<Part>& parts, DType dtype = DType::kFloat32,
                         bool is_trained = true) {
    Primitives p;
    ValueId x = is_trained ? trained_input(p, {2, 6, 4}) : p.input({2, 6, 4});
    if (dtype != DType::kFloat32) x = p.cast(x, dtype);
    std::vector<ValueId> slices;
    for (const Part& part : parts) {
      ValueId slice = p.add("Slice", {x},
                            {{"starts", Ints{part.start}},
                             {"ends", Ints{part.end}},
                             {"axes", Ints{part.axis}},
                             {"steps", Ints{part.step}}});
      if (dtype != DType::kFloat32) slice = p.cast(slice, DType::kFloat32);
      slices.push_back(p.scaled(slice, 1.0 + static_cast<double>(slices.size())));
    }
    const std::int64_t axis = parts[0].axis == 2 ? 2 : 1;
    return p.fused(p.add("Concat", slices, {{"axis", axis}}), 0);
  };
  EXPECT_EQ(joined({{1, 6, 1}, {0, 1, 1}}), "Concat Mul Mul Mul Split");
  EXPECT_EQ(joined({{0, 2, 2}, {2, 3, 2}, {3, 4, 2}}), "Concat Mul Mul Mul Mul Split");
  EXPECT_EQ(joined({{1, 6, 1, 2}, {0, 6, 1, 2}}), "Concat Mul Mul Mul Split");
  EXPECT_EQ(joined({{2, 6, 1, 3}, {0, 6, 1, 3}, {1, 6, 1, 3}}), "Concat Mul Mul Mul Mul Split");
  EXPECT_EQ(joined({{0, 4, 2, 2}, {1, 4, 2, 2}}), "Concat Mul Mul Mul Split");
  // With gaps.
  EXPECT_EQ(joined({{0, 3, 1}, {4, 6, 1}}), "Concat Mul Mul Mul Split");
  EXPECT_EQ(joined({{2, 3, 1}, {3, 5, 1}}), "Concat Mul Mul Mul Split");
  EXPECT_EQ(joined({{0, 6, 1, 3}, {2, 6, 1, 3}}), "Concat Mul Mul Mul Split");
  // An element is read twice, most are not read, or the axis is no multiple of the step.
  EXPECT_EQ(joined({{0, 4, 1}, {3, 6, 1}}), "Concat Mul Mul Mul Slice Slice");
  EXPECT_EQ(joined({{0, 1, 1}, {5, 6, 1}}), "Concat Mul Mul Mul Slice Slice");
  EXPECT_EQ(joined({{0, 6, 1}}), "Concat Mul Mul Slice");
  EXPECT_EQ(joined({{0, 5, 1, 3}, {1, 5, 1, 3}, {2, 3, 1, 3}}),
            "Concat Mul Mul Mul Mul Slice Split");
  EXPECT_EQ(joined({{0, 5, 1, 4}, {1, 6, 1, 4}, {2, 3, 1, 4}, {3, 4, 1, 4}}),
            "Concat Mul Mul Mul Mul Mul Slice Slice Slice Slice");
  // What is not trained, and integers, have no gradient.
  EXPECT_EQ(joined({{1, 6, 1}, {0, 1, 1}}, DType::kFloat32, false), "Concat Mul Mul Slice Slice");
  EXPECT_EQ(joined({{1, 6, 1}, {0, 1, 1}}, DType::kInt64),
            "Cast Cast Cast Concat Mul Mul Mul Slice Slice");
}

TEST(Patterns, IndicesThatReadATensorAreOneSplit) {
  const auto joined = [](std::int64_t axis, const std::vector<std::int64_t>& indices, Shape shape) {
    Primitives p;
    const ValueId x = trained_input(p, {2, 3, 4});
    ValueId sum;
    for (const std::int64_t index : indices) {
      HostTensor one(TensorType{DType::kInt64, shape});
      one.span<std::int64_t>()[0] = index;
      const ValueId part = p.add("Gather", {x, p.constant(std::move(one))}, {{"axis", axis}});
      const ValueId scaled = p.scaled(part, 1.0 + static_cast<double>(index));
      sum = sum ? p.add("Add", {sum, scaled}) : scaled;
    }
    return p.fused(sum, 0);
  };
  EXPECT_EQ(joined(1, {2, 0, 1}, {}), "Add Add Mul Mul Mul Mul Split");
  EXPECT_EQ(joined(-2, {0, -1, 1}, {}), "Add Add Mul Mul Mul Mul Split");
  EXPECT_EQ(joined(0, {0, 1}, {1}), "Add Mul Mul Mul Split");
  EXPECT_EQ(joined(1, {2, 0}, {}), "Add Mul Mul Mul Split");
  EXPECT_EQ(joined(2, {3}, {}), "Gather Mul Mul");
  EXPECT_EQ(joined(1, {0, 1, 2, 2}, {}),
            "Add Add Add Gather Gather Gather Gather Mul Mul Mul Mul Mul");
}

}  // namespace
}  // namespace pipetrain::test
