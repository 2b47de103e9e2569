#include "passes/adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "base/setting.h"
#include "onnx_io/model_file.h"
#include "onnx_io/subgraph.h"
#include "onnx_io/tensors_by_name.h"
#include "passes/exporter_traces.h"
#include "passes/parameter_names.h"

namespace pipetrain {
namespace {

constexpr std::string_view kFoldedKey = "pkg.onnxscript.optimizer.folded_from";
constexpr std::string_view kWeight = ".weight";

/// A layer that can have an adapter: a node, and the weight that it reads, maybe transposed.
struct Layer {
  std::size_t node = 0;
  bool outputs_first = false;
};

class Layers {
 public:
  explicit Layers(const OnnxModel& model) : model_(model) {
    for (std::size_t n = 0; n < model.nodes.size(); ++n) {
      for (const std::string& input : model.nodes[n].inputs) users_[input].push_back(n);
      for (const std::string& name : captured_names(model.nodes[n])) users_[name].push_back(n);
    }
    for (const OnnxInitializer& tensor : model.initializers) shapes_[tensor.name] = tensor.shape;
  }

  /// Those of a weight; none if anything but such layers reads it.
  std::vector<Layer> of(const std::string& weight) const {
    std::vector<Layer> layers;
    const bool only_those = add(weight, weight, /*transposed=*/false, layers);
    const bool alike = std::ranges::all_of(
        layers, [&](const Layer& layer) { return layer.outputs_first == layers[0].outputs_first; });
    return only_those && alike ? layers : std::vector<Layer>();
  }

 private:
  /// False if anything else reads the value.
  bool add(const std::string& value, const std::string& weight, bool transposed,
           std::vector<Layer>& layers) const {
    const auto users = users_.find(value);
    if (users == users_.end()) return false;
    for (const std::size_t n : users->second) {
      const OnnxNode& node = model_.nodes[n];
      if (!node.has_output(0)) return false;
      const bool in_place = node.inputs.size() > 1 && node.inputs[1] == value &&
                            std::ranges::count(node.inputs, value) == 1 && node.domain.empty();
      if (node.op_type == "Transpose" && !transposed && shapes_.at(weight).rank() == 2) {
        if (!add(node.outputs[0], weight, /*transposed=*/true, layers)) return false;
      } else if (in_place && node.op_type == "Gemm") {
        if (node.float_attribute("alpha", 1.0F) != 1 || node.int_attribute("transA", 0) != 0)
          return false;
        layers.push_back({n, transposed != (node.int_attribute("transB", 0) != 0)});
      } else if (in_place && node.op_type == "MatMul") {
        if (shapes_.at(weight).rank() != 2) return false;
        layers.push_back({n, transposed});
      } else if (in_place && node.op_type == "Conv" && !transposed) {
        const Shape& shape = shapes_.at(weight);
        if (shape.rank() < 3 || shape.count(2, shape.rank()) != 1 ||
            node.int_attribute("group", 1) != 1)
          return false;
        layers.push_back({n, true});
      } else {
        return false;
      }
    }
    return true;
  }

  const OnnxModel& model_;
  std::map<std::string, std::vector<std::size_t>> users_;
  std::map<std::string, Shape> shapes_;
};

/// What PyTorch calls the layer of a weight.
std::string module_name(const OnnxModel& model, const OnnxInitializer& weight,
                        const OnnxNode& node) {
  const auto without_suffix = [](const std::string& name) {
    return name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : std::string();
  };
  std::string name = without_suffix(weight.name);
  if (!name.empty()) return name;
  if (const auto folded = weight.metadata.find(std::string(kFoldedKey));
      folded != weight.metadata.end()) {
    const std::vector<std::string> sources = folded_sources(folded->second).parameters;
    if (sources.size() == 1) name = without_suffix(sources[0]);
    if (!name.empty()) return name;
  }
  name = module_of(model, node);
  // The older exporter calls a node "/blocks.0/q_proj/MatMul".
  if (name.empty() && node.name.starts_with('/') && node.name.rfind('/') > 0) {
    name = node.name.substr(1, node.name.rfind('/') - 1);
    std::ranges::replace(name, '/', '.');
  }
  return name.empty() ? weight.name : name;
}

/// Patterns of layers.
class Targets {
 public:
  explicit Targets(const std::vector<std::string>& globs) : globs_(globs), used_(globs.size()) {}

  /// As PEFT takes target modules: a pattern, or the last part of a module's name.
  bool choose(const std::string& module, const std::string& weight) {
    bool chosen = globs_.empty();
    for (std::size_t i = 0; i < globs_.size(); ++i) {
      if (!matches_glob(globs_[i], module) && !matches_glob(globs_[i], weight) &&
          !module.ends_with("." + globs_[i]))
        continue;
      used_[i] = true;
      chosen = true;
    }
    return chosen;
  }

  void check_used(const std::string& option, const char* nothing) const {
    for (std::size_t i = 0; i < globs_.size(); ++i) {
      PT_CHECK(used_[i], kUsage,
               "{}: {} matches \"{}\"; list the tensors with: pipetrain inspect {}", option,
               nothing, printable(globs_[i]), setting("params"));
    }
  }

 private:
  const std::vector<std::string>& globs_;
  std::vector<bool> used_;
};

OnnxInitializer new_tensor(std::string name, Shape shape) {
  OnnxInitializer tensor;
  tensor.name = std::move(name);
  tensor.file_dtype = DType::kFloat32;
  tensor.shape = shape;
  tensor.value = HostTensor(TensorType{DType::kFloat32, std::move(shape)});
  return tensor;
}

/// A and B of a layer whose weight has this shape, with their first values.
void add_matrices(const Adapter& adapter, const Shape& weight, std::int64_t rank,
                  std::uint64_t seed, std::vector<OnnxInitializer>& added) {
  Shape a = weight, b = weight;
  a[1] = weight[adapter.outputs_first ? 1 : 0];
  b[0] = weight[adapter.outputs_first ? 0 : 1];
  a[0] = b[1] = rank;
  RandomStream random(seed, hash_bytes(std::as_bytes(std::span(adapter.a))));
  const double bound = 1 / std::sqrt(static_cast<double>(a[1]));
  added.push_back(new_tensor(adapter.a, std::move(a)));
  for (float& x : added.back().value.span<float>())
    x = static_cast<float>(bound * (2 * random.uniform() - 1));
  added.push_back(new_tensor(adapter.b, std::move(b)));  // zeros
}

/// Freezes the trained tensors in Constant nodes, which get no adapters, and returns how many; what
/// was a constant before is left alone, too.
std::size_t freeze_constants(const OnnxModel& model, const AdapterOptions& options, Targets& whole,
                             std::map<std::string, TensorRule>& rules) {
  const TensorsByName tensors(model);
  std::size_t frozen = 0;
  for (auto& [name, rule] : rules) {
    if (rule.use == TensorUse::kFrozen) rule.frozen_by_option = true;
    if (rule.use != TensorUse::kTrained || tensors.initializer(name)) continue;
    if (!options.trained_whole.empty() && whole.choose(name, name)) continue;
    rule = frozen_rule(
        fmt::format("beside adapters ({}), which Constant nodes cannot have", setting("lora")),
        rule.decays);
    ++frozen;
  }
  return frozen;
}

/// A product of A and B has at most the rank of its smaller side.
void check_rank(const std::vector<Shape>& weights, std::int64_t rank) {
  std::int64_t most = 0;
  for (const Shape& shape : weights) most = std::max(most, std::min(shape[0], shape[1]));
  PT_CHECK(rank <= most, kUsage,
           "{} {}: no layer that gets an adapter has so many inputs and outputs; the highest rank "
           "is {}",
           setting("lora"), rank, most);
}

/// Writes the path through A and B beside the node, whose result becomes their sum.
class Insertion {
 public:
  Insertion(const OnnxNode& layer, const Adapter& adapter) : layer_(layer), adapter_(adapter) {}

  std::vector<OnnxNode> nodes() {
    OnnxNode base = layer_;
    const std::string result = layer_.outputs[0];
    base.outputs[0] = inner("base");
    nodes_.push_back(std::move(base));
    const bool conv = layer_.op_type == "Conv";
    std::string low = times(layer_.inputs[0], adapter_.a, "lora_A",
                            conv ? layer_.attributes : decltype(layer_.attributes){});
    if (adapter_.scale != 1) {
      HostTensor scale(TensorType{DType::kFloat32, {}});
      scale.span<float>()[0] = static_cast<float>(adapter_.scale);
      add("Constant", {}, inner("scale"), {OnnxAttribute::of_tensor("value", std::move(scale))});
      low = add("Mul", {low, inner("scale")}, inner("scaled"));
    }
    add("Add", {inner("base"), times(low, adapter_.b, "lora_B", {})}, result);
    return std::move(nodes_);
  }

 private:
  std::string inner(const std::string& what) const { return layer_.outputs[0] + "/" + what; }

  std::string add(const std::string& op, std::vector<std::string> inputs, std::string output,
                  std::vector<OnnxAttribute> attributes = {}) {
    OnnxNode node = layer_;
    node.op_type = op;
    node.name =
        layer_.name.empty() ? output : layer_.name + output.substr(layer_.outputs[0].size());
    node.inputs = std::move(inputs);
    node.outputs = {output};
    node.attributes = std::move(attributes);
    nodes_.push_back(std::move(node));
    return output;
  }

  /// x Mᵀ; of a convolution with M as kernels.
  std::string times(const std::string& x, const std::string& matrix, const std::string& name,
                    std::vector<OnnxAttribute> attributes) {
    if (layer_.op_type == "Conv")
      return add("Conv", {x, matrix}, inner(name), std::move(attributes));
    add("Transpose", {matrix}, inner(name + ".T"), {OnnxAttribute::of_ints("perm", {1, 0})});
    return add("MatMul", {x, inner(name + ".T")}, inner(name));
  }

  const OnnxNode& layer_;
  const Adapter& adapter_;
  std::vector<OnnxNode> nodes_;
};

}  // namespace

std::vector<Adapter> add_adapters(OnnxModel& model, std::map<std::string, TensorRule>& rules,
                                  const AdapterOptions& options, std::uint64_t seed) {
  constexpr double kMostAlpha = 1e9;
  PT_CHECK(options.alpha >= 0 && options.alpha <= kMostAlpha, kUsage,
           "{} must be from 0 to {:g}, not {}", setting("lora-alpha"), kMostAlpha, options.alpha);
  const Layers layers(model);
  Targets targets(options.targets), whole(options.trained_whole);
  std::vector<Adapter> adapters;
  std::vector<Shape> shapes;  // of their weights
  std::map<std::size_t, std::size_t> adapter_of_node;
  std::set<std::string> modules;
  std::vector<OnnxInitializer> added;
  for (const OnnxInitializer& tensor : model.initializers) {
    const auto rule = rules.find(tensor.name);
    if (rule == rules.end() || rule->second.use != TensorUse::kTrained) continue;
    const std::vector<Layer> uses = layers.of(tensor.name);
    std::string module =
        uses.empty() ? tensor.name : module_name(model, tensor, model.nodes[uses[0].node]);
    if (!options.trained_whole.empty() && whole.choose(module, tensor.name)) continue;
    rule->second =
        frozen_rule(fmt::format("beside adapters ({})", setting("lora")), rule->second.decays);
    if (uses.empty() || !targets.choose(module, tensor.name)) continue;
    rule->second.reason = fmt::format("has an adapter ({})", setting("lora"));
    while (!modules.insert(module).second) module += "@";
    for (const Layer& layer : uses) adapter_of_node[layer.node] = adapters.size();
    adapters.push_back(
        {.module = module,
         .weight = tensor.name,
         .a = module + ".lora_A.weight",
         .b = module + ".lora_B.weight",
         .scale = options.alpha == 0 ? 1 : options.alpha / static_cast<double>(options.rank),
         .outputs_first = uses[0].outputs_first});
    shapes.push_back(tensor.shape);
  }
  const std::size_t constants = freeze_constants(model, options, whole, rules);
  const char* const whose =
      constants > 0 ? "initializer (Constant nodes cannot have adapters)" : "weight";
  targets.check_used(
      setting("lora"),
      fmt::format("no trainable {} of a MatMul, Gemm or 1x1 Conv node", whose).c_str());
  whole.check_used(setting("train-only"), "no trainable tensor");
  PT_CHECK(!adapters.empty(), kUsage,
           "{}: the model has no MatMul, Gemm or 1x1 Conv node with a trainable weight of its "
           "own{}",
           setting("lora"),
           constants > 0 ? " that is an initializer; Constant nodes cannot have adapters" : "");
  check_rank(shapes, options.rank);
  for (std::size_t i = 0; i < adapters.size(); ++i)
    add_matrices(adapters[i], shapes[i], options.rank, seed, added);

  std::vector<OnnxNode> nodes;
  for (std::size_t n = 0; n < model.nodes.size(); ++n) {
    const auto found = adapter_of_node.find(n);
    if (found == adapter_of_node.end()) {
      nodes.push_back(std::move(model.nodes.edit()[n]));
      continue;
    }
    for (OnnxNode& node : Insertion(model.nodes[n], adapters[found->second]).nodes())
      nodes.push_back(std::move(node));
  }
  model.nodes = std::move(nodes);
  for (OnnxInitializer& tensor : added) {
    rules[tensor.name] = {TensorUse::kTrained, "low-rank adapter"};
    model.initializers.push_back(std::move(tensor));
  }
  return adapters;
}

HostTensor merged_weight(const Adapter& adapter, const HostTensor& weight, const HostTensor& a,
                         const HostTensor& b) {
  HostTensor merged(TensorType{DType::kFloat32, weight.shape()});
  const std::int64_t rank = a.shape()[0], inputs = a.shape()[1], outputs = b.shape()[0];
  const auto from = weight.span<const float>();
  const auto left = a.span<const float>(), right = b.span<const float>();
  const auto to = merged.span<float>();
  std::vector<double> row(static_cast<std::size_t>(inputs));
  for (std::int64_t o = 0; o < outputs; ++o) {
    std::ranges::fill(row, 0.0);
    for (std::int64_t r = 0; r < rank; ++r) {
      const double factor = right[static_cast<std::size_t>(o * rank + r)];
      const float* source = left.data() + r * inputs;
      for (std::int64_t i = 0; i < inputs; ++i)
        row[static_cast<std::size_t>(i)] += factor * source[i];
    }
    for (std::int64_t i = 0; i < inputs; ++i) {
      const auto at =
          static_cast<std::size_t>(adapter.outputs_first ? o * inputs + i : i * outputs + o);
      to[at] = static_cast<float>(from[at] + adapter.scale * row[static_cast<std::size_t>(i)]);
    }
  }
  return merged;
}

}  // namespace pipetrain
