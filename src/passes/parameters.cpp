#include "passes/parameters.h"

#include <algorithm>
#include <array>
#include <deque>
#include <set>

#include "base/error.h"
#include "base/name_table.h"
#include "base/setting.h"
#include "onnx_io/subgraph.h"
#include "ops/conv/conv.h"
#include "passes/exporter_traces.h"
#include "passes/parameter_names.h"
#include "passes/single_biases.h"

namespace pipetrain {
namespace {

constexpr std::string_view kKindKey = "pkg.torch.export.graph_signature.InputSpec.kind";

struct Use {
  const OnnxNode* node;
  std::size_t slot;
  bool meets_data;  // the node has another input that depends on data
};

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> list) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

/// Inputs that hold learned weights, per operator.
bool is_parameter_slot(const OnnxNode& node, std::size_t slot) {
  const std::string& op = node.op_type;
  if (is_one_of(op, {"Conv", "ConvTranspose", "CausalConvWithState"})) {
    return slot == 1 || slot == 2;
  }
  if (op == "Gemm") return slot <= 2;
  if (op == "DeformConv") return slot == 1 || slot == 3;
  if (op == "MatMul") return slot <= 1;
  if (op == "Einsum") return true;
  if (op == "Gather") return slot == 0;
  if (is_one_of(op, {"LayerNormalization", "GroupNormalization", "InstanceNormalization",
                     "BatchNormalization"})) {
    return slot == 1 || slot == 2;
  }
  if (is_one_of(op, {"RMSNormalization", "SimplifiedLayerNormalization", "PRelu"}))
    return slot == 1;
  if (is_one_of(op, {"LSTM", "GRU", "RNN"})) return (slot >= 1 && slot <= 3) || slot == 7;
  return false;
}

/// Operators through which a weight may reach its slot; a Gather with constant indices selects rows
/// of an embedding.
bool passes_weight(const OnnxNode& node, std::size_t slot) {
  if (is_one_of(node.op_type, {"Concat", "Add"})) return true;
  return slot == 0 &&
         (node.op_type == "Gather" ||
          is_one_of(node.op_type, {"Identity", "Transpose", "Reshape", "Slice", "Split", "Squeeze",
                                   "Unsqueeze", "Expand", "Cast", "Flatten"}));
}

/// Whether the operator's result changes smoothly with the input, so that a gradient passes.
bool passes_gradient(const OnnxNode& node, std::size_t slot) {
  if (is_one_of(
          node.op_type,
          {"Shape",           "Size",    "Equal",         "Greater", "GreaterOrEqual", "Less",
           "LessOrEqual",     "IsNaN",   "IsInf",         "ArgMax",  "ArgMin",         "Sign",
           "Round",           "Floor",   "Ceil",          "NonZero", "OneHot",         "Range",
           "ConstantOfShape", "EyeLike", "QuantizeLinear"}))
    return false;
  if (node.op_type == "BatchNormalization") return slot <= 2;
  return slot == 0 || !is_one_of(node.op_type, {"CastLike", "Clip", "Pad", "Resize"});
}

/// Whether a value is all zeros or all ones.
bool is_neutral(const HostTensor& value) {
  if (!is_uniform(value)) return false;
  const std::vector<double> values = value.to_doubles();
  return values.empty() || values.front() == 0 || values.front() == 1;
}

/// A vector of ones or zeros without a name of its own in a normalization: part of the operator,
/// not learned. Those of layer norms that do learn are not Constant nodes.
bool is_neutral_normalization(const OnnxNode& node, const std::string& name,
                              const HostTensor& value) {
  const bool stored = name.find("Constant") == std::string::npos;
  if (!is_one_of(node.op_type, {"InstanceNormalization", "GroupNormalization"}) &&
      (stored || !is_one_of(node.op_type, {"LayerNormalization", "RMSNormalization",
                                           "SimplifiedLayerNormalization"})))
    return false;
  return !has_parameter_name(name) && is_neutral(value);
}

class Classifier {
 public:
  explicit Classifier(const OnnxModel& model) : single_biases_(single_biases(model)) {
    data_.reserve(model.nodes.size());
    for (const OnnxValue& input : model.inputs) {
      data_.insert(input.name);
      inputs_.insert(input.name);
    }
    for (std::size_t n = 0; n < model.nodes.size(); ++n) {
      const OnnxNode& outer = model.nodes[n];
      if (n + kNamesAhead < model.nodes.size()) {
        for (const std::string& output : model.nodes[n + kNamesAhead].outputs) data_.expect(output);
      }
      if (!has_subgraphs(outer)) {
        add_uses(outer);
        continue;
      }
      std::vector<OnnxNode> nodes = with_inner_nodes(outer);
      for (const OnnxNode& node : nodes) add_states(node);
      for (OnnxNode& node : nodes) add_uses(inner_.emplace_back(std::move(node)));
    }
    for (const OnnxInitializer& initializer : model.initializers) {
      const auto kind = initializer.metadata.find(std::string(kKindKey));
      has_torch_metadata_ = has_torch_metadata_ || kind != initializer.metadata.end();
    }
  }

  TensorRule classify(const std::string& name, const Shape& shape, const HostTensor& value,
                      const OnnxMetadata& metadata) const {
    if (is_running_statistic(name)) return {TensorUse::kRunningStatistic, "running statistic"};
    const auto kind = metadata.find(std::string(kKindKey));
    if (kind != metadata.end() && kind->second.find("PARAMETER") != std::string::npos)
      return {TensorUse::kTrained, "PyTorch parameter"};
    if (shape.rank() == 0 && !is_gain(name)) return {TensorUse::kFrozen, "scalar constant"};
    const std::string folded = folded_from(metadata);
    if (shape.count() <= 1 && !has_parameter_name(name) && !reached_slot(name)) {
      if (single_biases_.contains(name) && !has_torch_metadata_ && folded.empty() &&
          !has_buffer_name(name, shape) && name.find("Constant") == std::string::npos)
        return {TensorUse::kTrained, "bias of one element"};
      return {TensorUse::kFrozen, "single-element constant"};
    }
    if (kind != metadata.end()) {
      if (kind->second.find("CONSTANT_TENSOR") != std::string::npos && !is_vector(shape) &&
          !is_uniform(value) && !has_pattern(value) && reached_slot(name))
        return classify_kernel(name, shape);
      return {TensorUse::kFrozen, "PyTorch " + printable(kind->second)};
    }
    if (!folded.empty()) return classify_folded(name, shape, value, folded_sources(folded));
    const bool buffer = has_buffer_name(name, shape);
    if (const OnnxNode* node = reached_slot(name)) {
      if (is_neutral_normalization(*node, name, value))
        return {TensorUse::kFrozen, "neutral constant of " + printable(node->op_type)};
      if (node->op_type == "Conv" && stands_for_no_bias(value))
        return {TensorUse::kFrozen, "zeros in place of a bias"};
      const bool filter = buffer ? !is_uniform(value)
                                 : name.find("Constant") != std::string::npos && has_pattern(value);
      if (filter && !is_vector(shape))
        return taken_for_constant("weight of " + printable(node->op_type), shape);
      return {TensorUse::kTrained, "weight of " + printable(node->op_type)};
    }
    const bool learned = has_parameter_name(name) && !buffer;
    const OnnxNode* const layer = reached_slot(name, kAnyOperator);
    if (layer && learned)
      return {TensorUse::kTrained,
              "named like a parameter, reaches the weight of " + printable(layer->op_type)};
    if (layer && !buffer && may_be_learned(name, shape, value))
      return {TensorUse::kTrained, "part of the weight of " + printable(layer->op_type)};
    const bool constant = buffer || name.find("Constant") != std::string::npos;
    const bool part = !buffer &&
                      (belongs_to_module(name) ? is_vector(shape) : !slots_of(name).empty()) &&
                      may_be_learned(name, shape, value);
    if (const OnnxNode* node =
            arithmetic_with_data(name, learned || part ? kAnyOperator : kMovement)) {
      if (has_parameter_name(name) && !(buffer && is_buffer_of_module(name)))
        return {TensorUse::kTrained, "operand of " + node->op_type + ", named like a parameter"};
      if (is_vector(shape) && !has_torch_metadata_ && scales_input(*node))
        return taken_for_constant("mean or deviation of an input", shape);
      if (is_vector(shape) && !has_torch_metadata_ && !constant)
        return {TensorUse::kTrained, "vector operand of " + node->op_type};
      if (part) return {TensorUse::kTrained, "part of an operand of " + node->op_type};
    }
    if (layer)
      return taken_for_constant("part of the weight of " + printable(layer->op_type), shape);
    if (const OnnxNode* node = arithmetic_with_data(name, kAnyOperator)) {
      TensorRule rule{TensorUse::kFrozen, "constant operand of " + node->op_type};
      rule.doubtful =
          !constant && shape.count() > kFew && !is_uniform(value) && !has_pattern(value);
      return rule;
    }
    return {TensorUse::kFrozen, "not in a weight position"};
  }

  /// Whether weight decay applies to a tensor: not to vectors, biases and norm parameters.
  bool decays(const std::string& name, const Shape& shape) const {
    if (shape.rank() <= 1 || name.ends_with("bias")) return false;
    if (const OnnxNode* node = reached_slot(name)) {
      if (node->op_type.find("Normalization") != std::string::npos || node->op_type == "PRelu")
        return false;
      // Biases that are stored as matrices: (1, N) of Gemm, (directions, N) of recurrent layers.
      const std::size_t bias_slot = node->op_type == "Gemm" ? 2 : 3;
      const auto is_bias = [&](const Use& use) {
        return use.node == node && use.slot == bias_slot;
      };
      const std::vector<Use>& uses = uses_of(name);
      return std::none_of(uses.begin(), uses.end(), is_bias);
    }
    return !is_vector(shape);
  }

  /// Whether the tensor, `depth` nodes before the value of this name, is used as running statistics
  /// only. An exporter may have merged one with a bias.
  bool is_running_statistic(const std::string& name, int depth = 0) const {
    const std::vector<Use>& uses = uses_of(name);
    return depth <= kMaximumDepth && !uses.empty() &&
           std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
             return is_statistic_slot(*use.node, use.slot) ||
                    (is_one_of(use.node->op_type, {"Identity", "Cast"}) && use.slot == 0 &&
                     use.node->has_output(0) &&
                     is_running_statistic(use.node->outputs[0], depth + 1));
           });
  }

 private:
  /// What a Loop or Scan carries along, and the elements of what a Scan reads: data.
  void add_states(const OnnxNode& node) {
    if (!has_subgraphs(node) || node.op_type == "If") return;
    const std::vector<std::string> inputs = read_subgraph(node, "body").inputs;
    // A Loop's counter and condition come first.
    for (std::size_t i = node.op_type == "Loop" ? 2 : 0; i < inputs.size(); ++i)
      data_.insert(states_.emplace_back(inputs[i]));
  }

  void add_uses(const OnnxNode& node) {
    const bool shape_only = is_one_of(node.op_type, {"Shape", "Size"});
    bool reads_data = false;
    std::vector<std::size_t> others;  // slots
    for (std::size_t slot = 0; slot < node.inputs.size(); ++slot) {
      if (node.inputs[slot].empty()) continue;
      if (data_.contains(node.inputs[slot])) {
        reads_data = true;
      } else {
        others.push_back(slot);
      }
    }
    for (const std::size_t slot : others)
      uses_.add(node.inputs[slot]).first->push_back({&node, slot, reads_data});
    bool data = reads_data && !shape_only;
    for (const std::string& name : captured_names(node)) data = data || data_.contains(name);
    if (data) data_.insert_all(node.outputs);
    const bool keeps = is_one_of(node.op_type, {"Cast", "Reshape", "Transpose", "Sub", "Div"});
    if (keeps && node.has_input(0) && inputs_.contains(node.inputs[0])) {
      for (const std::string& output : node.outputs) inputs_.insert(output);
    }
  }

  /// Whether a node subtracts from an input or divides it, as Keras' Normalization does.
  bool scales_input(const OnnxNode& node) const {
    return is_one_of(node.op_type, {"Sub", "Div"}) && inputs_.contains(node.inputs[0]);
  }

  static constexpr int kMaximumDepth = 32;
  static constexpr std::int64_t kFew = 8;  // tensors up to this size are not reported

  /// At most one dimension is larger than 1.
  static bool is_vector(const Shape& shape) {
    return std::count_if(shape.begin(), shape.end(), [](std::int64_t d) { return d > 1; }) <= 1;
  }

  static TensorRule taken_for_constant(const std::string& place, const Shape& shape) {
    TensorRule rule{TensorUse::kFrozen, "taken for a constant, " + place};
    rule.doubtful = shape.count() > kFew;
    return rule;
  }

  /// A constant in the place of a weight: what weight normalization has made of a convolution's
  /// parameters, or, in other layers, anything.
  TensorRule classify_kernel(const std::string& name, const Shape& shape) const {
    const OnnxNode* const layer = reached_slot(name);
    if (is_one_of(layer->op_type, {"Conv", "ConvTranspose"}))
      return {TensorUse::kTrained, "constant weight of " + printable(layer->op_type)};
    return taken_for_constant("weight of " + printable(layer->op_type), shape);
  }

  /// A tensor that the exporter computed from others, of which only names are left.
  TensorRule classify_folded(const std::string& name, const Shape& shape, const HostTensor& value,
                             const FoldedSources& sources) const {
    if (!sources.parameters.empty()) {
      const std::size_t others = sources.parameters.size() - 1;
      return {TensorUse::kTrained, "folded from " + printable(sources.parameters[0]) +
                                       (others > 0 ? fmt::format(" and {} more", others) : "")};
    }
    const OnnxNode* const layer = reached_slot(name, kAnyOperator);
    const bool neutral = is_vector(shape) && is_neutral(value);
    if (!layer || neutral) return {TensorUse::kFrozen, "folded from constants"};
    if (sources.is_normalized && !is_vector(shape) && !has_pattern(value) && reached_slot(name))
      return classify_kernel(name, shape);
    // Parameters of the outermost module have names without a dot.
    if (sources.unknown && shape.rank() >= 2 && !is_uniform(value) && !has_pattern(value))
      return {TensorUse::kTrained, "folded weight of " + printable(layer->op_type)};
    return taken_for_constant("folded weight of " + printable(layer->op_type), shape);
  }

  /// Whether a tensor in the arithmetic of weights may be a parameter. A module's vectors and what
  /// has no pattern may; of uniform vectors the gains and shifts of norms that are not neutral.
  bool may_be_learned(const std::string& name, const Shape& shape, const HostTensor& value) const {
    if (name.find("Constant") != std::string::npos) return false;
    if (belongs_to_module(name)) return is_vector(shape) || !has_pattern(value);
    const std::vector<Use> slots = slots_of(name);
    const bool shifts =
        std::any_of(slots.begin(), slots.end(), [](const Use& use) { return use.slot > 0; });
    if (is_uniform(value)) return shape.rank() == 1 && shifts && !is_neutral(value);
    return !has_pattern(value) && (shape.rank() >= 2 || shape.count() >= kFew || shifts);
  }

  /// The uses of a tensor as a weight, of data or of other weights.
  std::vector<Use> slots_of(const std::string& name) const {
    std::vector<Use> slots = uses_of(name);
    std::erase_if(slots, [](const Use& use) { return !is_parameter_slot(*use.node, use.slot); });
    return slots;
  }

  const std::vector<Use>& uses_of(const std::string& name) const {
    static const std::vector<Use> none;
    const std::vector<Use>* const found = uses_.find(name);
    return found ? *found : none;
  }

  /// Operators between a tensor and a weight's slot, as long as no data are involved.
  enum Way : std::uint8_t { kMovement, kAnyOperator };
  /// What is looked for: the layer of data whose weight a tensor is, or is a part of; the
  /// arithmetic node that combines it with data. A class token that is expanded and concatenated
  /// with data counts as well.
  enum Goal : std::uint8_t { kSlot, kArithmetic };

  static bool passes(const OnnxNode& node, std::size_t slot, Way way) {
    if (way == kMovement) return passes_weight(node, slot);
    return passes_gradient(node, slot);
  }

  static bool is_goal(const Use& use, int depth, Goal goal) {
    if (!use.meets_data) return false;
    if (goal == kSlot) return is_parameter_slot(*use.node, use.slot);
    return is_one_of(use.node->op_type, {"Add", "Sub", "Mul", "Div"}) ||
           (depth > 0 && use.node->op_type == "Concat");
  }

  const OnnxNode* reached_slot(const std::string& name, Way way = kMovement) const {
    return first_use(name, 0, way, kSlot);
  }

  const OnnxNode* arithmetic_with_data(const std::string& name, Way way) const {
    return first_use(name, 0, way, kArithmetic);
  }

  /// The first use that is the goal, of the tensor or of what is made of it without data, `depth`
  /// nodes after it. What a search has found is kept for those that come by later.
  const OnnxNode* first_use(const std::string& name, int depth, Way way, Goal goal) const {
    const std::vector<Use>& uses = uses_of(name);
    if (depth > kMaximumDepth || uses.empty()) return nullptr;
    Found& found = found_[way][goal][name];
    if (found.node || found.depth <= depth) return found.node;
    found.depth = depth;
    for (const Use& use : uses) {
      if (is_goal(use, depth, goal)) return found.node = use.node;
      if (use.meets_data || !passes(*use.node, use.slot, way)) continue;
      for (const std::string& output : use.node->outputs) {
        if (const OnnxNode* node = first_use(output, depth + 1, way, goal))
          return found.node = node;
      }
    }
    return nullptr;
  }

  /// The result of a search from a value.
  struct Found {
    const OnnxNode* node = nullptr;
    int depth = kMaximumDepth + 1;  // nodes before the value: with fewer, a search goes further
  };

  std::deque<OnnxNode> inner_;        // copies of nodes with sub-graphs, and the nodes of those
  std::deque<std::string> states_;    // names of what loops carry along
  std::set<std::string> inputs_;      // inputs of the model, scaled by constants or not
  NameSet single_biases_;             // of layers with one output
  NameSet data_;                      // depend on what is fed, not on its shape alone
  NameTable<std::vector<Use>> uses_;  // of what is not data
  mutable std::array<std::array<std::map<std::string_view, Found>, 2>, 2> found_;  // by Way, Goal
  bool has_torch_metadata_ = false;
};

bool matches_any(const std::vector<std::string>& globs, const std::string& name) {
  return std::any_of(globs.begin(), globs.end(),
                     [&](const std::string& glob) { return matches_glob(glob, name); });
}

}  // namespace

bool matches_glob(std::string_view glob, std::string_view text) {
  std::size_t g = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (g < glob.size() && (glob[g] == '?' || glob[g] == text[t])) {
      ++g, ++t;
    } else if (g < glob.size() && glob[g] == '*') {
      star = g++;
      resume = t;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

TensorRule frozen_rule(std::string reason, bool decays) {
  TensorRule rule{TensorUse::kFrozen, std::move(reason), decays};
  rule.frozen_by_option = true;
  return rule;
}

bool is_statistic_slot(const OnnxNode& node, std::size_t slot) {
  return node.op_type == "BatchNormalization" && slot >= 3;
}

std::map<std::string, TensorRule> classify_tensors(const OnnxModel& model,
                                                   const ParameterOptions& options) {
  const Classifier classifier(model);
  std::map<std::string, TensorRule> rules;
  const auto add = [&](const std::string& name, DType dtype, const Shape& shape,
                       const HostTensor& value, const OnnxMetadata& metadata) {
    if (!is_float(dtype)) return;
    TensorRule rule = classifier.classify(name, shape, value, metadata);
    rule.decays = classifier.decays(name, shape);
    if (rule.use != TensorUse::kRunningStatistic && matches_any(options.train_only, name))
      rule = {TensorUse::kTrained, setting("train-only"), rule.decays};
    rules[name] = rule;
  };
  for (const OnnxInitializer& initializer : model.initializers) {
    add(initializer.name, initializer.file_dtype, initializer.shape, initializer.value,
        initializer.metadata);
  }
  for (const OnnxNode& node : model.nodes) {
    if (node.op_type != "Constant" || node.outputs.empty()) continue;
    const OnnxAttribute* const tensor = node.find_attribute("value");
    const bool is_list = !tensor && node.has_attribute("value_floats");  // elsewhere a constant
    if (is_list ? !classifier.is_running_statistic(node.outputs[0]) : !tensor) continue;
    // Of a type without kernels: refuse_unsupported() says so where it is needed.
    if (tensor && tensor->kind == OnnxAttribute::Kind::kTensor && !tensor->tensor) continue;
    const HostTensor value = with_context(
        [&] { return "reading " + printable(model.path.string()); },
        [&] { return is_list ? constant_value(node) : node.tensor_attribute("value"); });
    if (value) add(node.outputs[0], value.dtype(), value.shape(), value, {});
  }
  return rules;
}

void freeze_tensors(std::map<std::string, TensorRule>& rules, const ParameterOptions& options) {
  for (auto& [name, rule] : rules) {
    if (rule.use == TensorUse::kRunningStatistic) continue;
    if (!options.train_only.empty() && !matches_any(options.train_only, name))
      rule = frozen_rule("not in " + setting("train-only"), rule.decays);
    if (matches_any(options.freeze, name)) rule = frozen_rule(setting("freeze"), rule.decays);
  }
  for (const auto& globs : {options.freeze, options.train_only}) {
    for (const std::string& glob : globs) {
      const bool used = std::any_of(rules.begin(), rules.end(), [&](const auto& rule) {
        return matches_glob(glob, rule.first);
      });
      PT_CHECK(used, kUsage,
               "no tensor of the model matches \"{}\"; list them with: pipetrain inspect {}",
               printable(glob), setting("params"));
    }
  }
}

}  // namespace pipetrain
