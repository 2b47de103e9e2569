#include "train/fresh_weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/random.h"
#include "onnx_io/model_file.h"
#include "onnx_io/tensors_by_name.h"

namespace pipetrain {
namespace {

/// How a tensor is drawn: uniform within `bound`, normal, or `constant`.
struct Draw {
  double bound = 0;
  double deviation = 0;
  double constant = 0;
};

class Drawing {
 public:
  explicit Drawing(const LoadedModel& loaded)
      : model_(loaded.model), rules_(loaded.rules), tensors_(loaded.model) {
    for (const OnnxNode& node : model_.nodes) {
      if (!node.has_output(0) || node.inputs.empty()) continue;
      if (node.op_type == "Identity" || node.op_type == "Cast")
        copies_.emplace(node.outputs[0], node.inputs[0]);
      if (node.op_type == "Transpose") transposes_.emplace(node.outputs[0], node.inputs[0]);
    }
  }

  /// Of an initializer or a Constant; nothing where the model has no such tensor.
  std::optional<Shape> shape_of(const std::string& name) const {
    if (const OnnxInitializer* tensor = tensors_.initializer(name)) return tensor->shape;
    if (const OnnxNode* constant = tensors_.constant(name))
      return constant_value(*constant).shape();
    return {};
  }

  /// Whether a tensor is a running statistic of a norm whose gain and shift an option freezes.
  bool is_of_frozen_norm(const std::string& name) const {
    for (const OnnxNode& node : model_.nodes) {
      for (std::size_t slot = 0; slot < node.inputs.size(); ++slot) {
        if (!is_statistic_slot(node, slot) || stored(node.inputs[slot]) != name) continue;
        const TensorRule gain = rule_of(node.inputs[1]), shift = rule_of(node.inputs[2]);
        const bool trained = gain.use == TensorUse::kTrained || shift.use == TensorUse::kTrained;
        if (!trained && (gain.frozen_by_option || shift.frozen_by_option)) return true;
      }
    }
    return false;
  }

  Draw rule(const std::string& name) const {
    for (const OnnxNode& node : model_.nodes) {
      for (std::size_t slot = 0; slot < node.inputs.size(); ++slot) {
        if (node.inputs[slot] != name) continue;
        // A weight may be transposed before it is used.
        const bool turned = node.op_type == "Transpose" || node.op_type == "Identity";
        const std::string& used = turned ? node.outputs[0] : name;
        for (const OnnxNode& user : model_.nodes) {
          for (std::size_t at = 0; at < user.inputs.size(); ++at) {
            if (user.inputs[at] != used) continue;
            if (const auto draw = rule_in(user, at, name, node.op_type == "Transpose"))
              return *draw;
          }
        }
      }
    }
    const bool gain = name.find("gamma") != std::string::npos || name.ends_with("scale");
    const std::optional<Shape> shape = shape_of(name);
    const bool vector = shape && shape->rank() <= 1;
    if (gain || (vector && name.ends_with("weight"))) return {.constant = 1};
    if (vector) return {};
    return {.deviation = 0.02};
  }

 private:
  /// The name of the tensor that a node reads, perhaps through copies and conversions.
  const std::string& stored(const std::string& name) const {
    const std::string* found = &name;
    for (auto copy = copies_.find(name); copy != copies_.end(); copy = copies_.find(*found))
      found = &copy->second;
    return *found;
  }

  /// The tensor that a layer reads as its weight, and whether it is transposed before.
  std::pair<std::string, bool> weight_of(const std::string& read) const {
    std::pair<std::string, bool> weight(stored(read), false);
    for (auto found = transposes_.find(weight.first); found != transposes_.end();
         found = transposes_.find(weight.first))
      weight = {stored(found->second), !weight.second};
    return weight;
  }

  TensorRule rule_of(const std::string& read) const {
    const auto rule = rules_.find(stored(read));
    return rule != rules_.end() ? rule->second : TensorRule();
  }

  static Draw within(double fan) { return {.bound = fan > 0 ? 1 / std::sqrt(fan) : 0}; }

  /// Inputs that each output of the weight of a layer sums over.
  double fan_in(const OnnxNode& node, const Shape& shape, bool turned) const {
    if (shape.rank() < 2) return static_cast<double>(shape.count());
    if (node.op_type.starts_with("Conv"))
      return static_cast<double>(shape.count()) / static_cast<double>(shape[0]);
    const bool outputs_first =
        turned || (node.op_type == "Gemm" && node.int_attribute("transB", 0) != 0);
    return static_cast<double>(shape[shape.rank() - (outputs_first ? 1 : 2)]);
  }

  std::optional<Draw> rule_in(const OnnxNode& node, std::size_t slot, const std::string& name,
                              bool turned) const {
    const std::string& op = node.op_type;
    if (op.starts_with("Conv") || op == "Gemm" || op == "MatMul") {
      const bool weight = slot == 1 || (op == "MatMul" && slot == 0);
      if (weight || node.inputs.size() < 2)
        return within(fan_in(node, shape_of(name).value_or(Shape{}), turned));
      const auto [layer, is_turned] = weight_of(node.inputs[1]);
      const std::optional<Shape> shape = shape_of(layer);
      // Nothing tells what a computed weight sums over.
      return shape ? within(fan_in(node, *shape, is_turned)) : Draw{};
    }
    if (op == "LSTM" || op == "GRU" || op == "RNN")
      return within(static_cast<double>(node.int_attribute("hidden_size", 0)));
    if (op == "BatchNormalization" && slot >= 3) return Draw{.constant = slot == 4 ? 1.0 : 0.0};
    if (op.find("Normalization") != std::string::npos)
      return Draw{.constant = slot == 1 ? 1.0 : 0.0};
    if (op == "PRelu") return Draw{.constant = 0.25};
    if (op == "Gather") return Draw{.deviation = 0.02};
    return {};
  }

  const OnnxModel& model_;
  const std::map<std::string, TensorRule>& rules_;
  TensorsByName tensors_;
  std::map<std::string, std::string> copies_;      // what a node copies or converts, by its output
  std::map<std::string, std::string> transposes_;  // the same of what it transposes
};

}  // namespace

std::map<std::string, HostTensor> fresh_weights(const LoadedModel& model, std::uint64_t seed) {
  const Drawing drawing(model);
  std::map<std::string, HostTensor> out;
  for (const auto& [name, rule] : model.rules) {
    if (rule.use == TensorUse::kFrozen) continue;
    if (rule.use == TensorUse::kRunningStatistic && drawing.is_of_frozen_norm(name)) continue;
    const std::optional<Shape> shape = drawing.shape_of(name);
    // New adapters have their own rule, under which they change nothing yet.
    const bool of_adapter = std::ranges::any_of(model.adapters, [&](const Adapter& adapter) {
      return name == adapter.a || name == adapter.b;
    });
    if (!shape || of_adapter) continue;
    const Draw draw = drawing.rule(name);
    HostTensor value(TensorType{DType::kFloat32, *shape});
    RandomStream random(seed, hash_bytes(std::as_bytes(std::span(name))));
    for (float& x : value.span<float>()) {
      x = static_cast<float>(draw.deviation > 0 ? draw.deviation * random.normal()
                             : draw.bound > 0   ? draw.bound * (2 * random.uniform() - 1)
                                                : draw.constant);
    }
    out[name] = std::move(value);
  }
  return out;
}

}  // namespace pipetrain
