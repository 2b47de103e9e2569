#include "passes/causality.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/setting.h"
#include "graph/op.h"
#include "ops/registry/registry.h"
#include "passes/execute.h"

namespace pipetrain {
namespace {

// Operations of one forward pass: below the first limit a trial takes a second or two; above the
// second it takes too long.
constexpr double kQuicklyTried = 5e10;
constexpr double kEverTried = 1e13;

double forward_flops(const Graph& graph) {
  double sum = 0;
  for (const Node& node : graph.nodes) {
    if (!node.op->cost) continue;
    sum += node.op->cost(node.attributes, graph.input_types(node), graph.output_types(node)).flops;
  }
  return sum;
}

bool has_values(const TrainingGraph& training) {
  return std::ranges::all_of(training.parameters, [&](const Parameter& parameter) {
    return static_cast<bool>(training.graph[parameter.value].data);
  });
}

/// Whether a constant (…, T, T), added to attention scores, hides all later positions.
bool hides_later(const Value& mask, std::int64_t length) {
  const Shape& shape = mask.type.shape;
  const std::size_t rank = shape.rank();
  if (mask.role != Role::kConstant || mask.type.dtype != DType::kFloat32 || rank < 2 ||
      shape[rank - 1] != length || shape[rank - 2] != length) {
    return false;
  }
  constexpr float kHidden = -1e4F;  // exp() of it is zero beside any other score
  const std::span<const float> values = mask.data.span<const float>();
  for (std::int64_t row = 0; row < shape.count(0, rank - 1); ++row) {
    for (std::int64_t column = row % length + 1; column < length; ++column) {
      if (values[static_cast<std::size_t>(row * length + column)] > kHidden) return false;
    }
  }
  return true;
}

/// Whether there is attention over the T positions and every one, and every Softmax over them, is
/// of masked scores.
bool has_causal_masks(const Graph& graph, std::int64_t length) {
  std::map<ValueId, bool> known;  // networks use one mask everywhere
  int masked = 0;
  for (const Node& node : graph.nodes) {
    if (node.op->name == "Attention") {
      const Shape& keys = graph[node.inputs[1]].type.shape;
      if (keys[keys.rank() - 2] != length) continue;
      const bool hidden =
          node.inputs.size() > 3 && node.inputs[3] && hides_later(graph[node.inputs[3]], length);
      if (!node.attributes.flag("causal") && !hidden) return false;
      ++masked;
      continue;
    }
    if (node.op->name != "Softmax") continue;
    const Value& scores = graph[node.inputs[0]];
    const Shape& shape = scores.type.shape;
    if (shape.rank() < 3 || shape[shape.rank() - 1] != length) continue;
    const std::int64_t axis = node.attributes.integer("axis", -1);
    if (axis != -1 && axis + 1 != static_cast<std::int64_t>(shape.rank())) return false;
    if (!scores.producer || graph[scores.producer].op->name != "Add") return false;
    const bool hidden = std::ranges::any_of(graph[scores.producer].inputs, [&](ValueId id) {
      const auto [found, added] = known.try_emplace(id, false);
      if (added) found->second = hides_later(graph[id], length);
      return found->second;
    });
    if (!hidden) return false;
    ++masked;
  }
  return masked > 0;
}

/// Writes an integer or a truth value; false for other types.
bool put(HostTensor& tensor, std::int64_t at, std::int64_t value) {
  switch (tensor.dtype()) {
    case DType::kInt64:
      tensor.view().as<std::int64_t>()[at] = value;
      return true;
    case DType::kInt32:
      tensor.view().as<std::int32_t>()[at] = static_cast<std::int32_t>(value);
      return true;
    case DType::kBool:
      tensor.view().as<bool>()[at] = value != 0;
      return true;
    default:
      return false;
  }
}

/// Two forwards with another last token must agree before it.
bool is_causal_by_trial(const TrainingGraph& training, ValueId output, const GraphInput& tokens) {
  std::map<ValueId, HostTensor> feeds;
  for (const GraphInput& input : training.inputs) {
    const TensorType& type = training.graph[input.value].type;
    HostTensor tensor(type);
    if (is_float(type.dtype)) {
      for (std::int64_t i = 0; i < type.count(); ++i)
        tensor.view().as<float>()[i] = 0.01F * static_cast<float>(i % 97);
    } else {
      for (std::int64_t i = 0; i < type.count(); ++i)
        if (!put(tensor, i, input.upper_bound > 0 ? i % input.upper_bound : 1)) return false;
    }
    feeds[input.value] = tensor;
  }
  const Shape& shape = training.graph[output].type.shape;
  const std::int64_t length = shape[1];
  const std::vector<HostTensor> before = execute(training.graph, Backend::kCpu, feeds, {output});
  HostTensor changed(training.graph[tokens.value].type);
  const std::vector<std::int64_t> given = feeds[tokens.value].to_int64s();
  for (std::int64_t i = 0; i < changed.type().count(); ++i) {
    const std::int64_t token = given[static_cast<std::size_t>(i)];
    put(changed, i, i % length == length - 1 ? (token + 1) % tokens.upper_bound : token);
  }
  feeds[tokens.value] = changed;
  const std::vector<HostTensor> after = execute(training.graph, Backend::kCpu, feeds, {output});
  for (std::int64_t row = 0; row < shape[0] * length; ++row) {
    if (row % length == length - 1) continue;
    const float* a = before[0].view().as<float>() + row * shape[2];
    const float* b = after[0].view().as<float>() + row * shape[2];
    for (std::int64_t i = 0; i < shape[2]; ++i) {
      if (std::abs(a[i] - b[i]) > 1e-5F * (1 + std::abs(a[i]))) return false;
    }
  }
  return true;
}

}  // namespace

bool is_causal(const TrainingGraph& training, ValueId output, const GraphInput& tokens) {
  const double flops = forward_flops(training.graph);
  const bool can_try = has_values(training) && flops <= kEverTried;
  if (can_try && flops <= kQuicklyTried) return is_causal_by_trial(training, output, tokens);
  if (has_causal_masks(training.graph, training.graph[output].type.shape[1])) return true;
  PT_CHECK(
      can_try, kUsage,
      "output \"{}\" seems to predict the next token at every position, but the network is too "
      "large to try whether later tokens reach earlier ones; say what to train with: {} "
      "causal-lm, or cross-entropy with labels of shape (N, T)",
      printable(training.graph[output].name), setting("loss"));
  return is_causal_by_trial(training, output, tokens);
}

}  // namespace pipetrain
