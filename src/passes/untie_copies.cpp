// Gives tensors that an exporter merged, since they had equal values, copies of their own.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/name_table.h"
#include "onnx_io/subgraph.h"
#include "passes/exporter_traces.h"
#include "passes/parameter_names.h"
#include "passes/parameters.h"

namespace pipetrain {
namespace {

/// The operator that a call calls: "torch.ops.aten.group_norm.default".
std::string_view target_of(std::string_view call) {
  constexpr std::string_view kBefore = "target=";
  const std::size_t at = call.find(kBefore);
  if (at == call.npos) return {};
  call.remove_prefix(at + kBefore.size());
  return call.substr(0, call.find(']'));
}

/// (C), a group norm's (C, 1, 1) or a token's (1, 1, C).
bool is_row(const Shape& shape) {
  return shape.rank() == 1 ||
         std::count_if(shape.begin(), shape.end(), [](std::int64_t d) { return d > 1; }) == 1;
}

bool is_uniform_row(const OnnxInitializer& tensor) {
  return is_row(tensor.shape) && tensor.shape.count() > 0 && tensor.value &&
         is_uniform(tensor.value);
}

/// Equal for uniform tensors that are equal.
std::string contents_of(const OnnxInitializer& tensor) {
  return fmt::format("{} {} {}", static_cast<int>(tensor.value.type().dtype),
                     fmt::join(tensor.shape, ","), tensor.value.to_doubles()[0]);
}

class Untier {
 public:
  Untier(OnnxModel& model, std::map<std::string, TensorRule>& rules,
         const std::set<std::string_view>& restored)
      : model_(model), rules_(rules), restored_(restored) {
    for (const OnnxInitializer& initializer : model.initializers) {
      originals_[initializer.name] = initializer;
      if (use_of(initializer.name) != TensorUse::kFrozen && is_uniform_row(initializer))
        ++stored_[contents_of(initializer)];
    }
    for (const OnnxNode& node : model.nodes) {
      for (std::size_t slot = 0; slot < node.inputs.size(); ++slot) {
        if (is_statistic_slot(node, slot)) statistics_.insert(node.inputs[slot]);
      }
    }
  }

  std::vector<UntiedCopy> untie() {
    untie_identities();
    // PyTorch's older exporter leaves an Identity for each tensor that it merges: then what nodes
    // read directly is shared.
    const bool says_what_is_merged = !copies_.empty() && model_.producer.starts_with("pytorch") &&
                                     std::ranges::all_of(model_.nodes, [&](const OnnxNode& node) {
                                       return call_of(model_, node).empty();
                                     });
    if (!says_what_is_merged) untie_uniform_vectors();
    return std::move(copies_);
  }

 private:
  struct Use {
    std::size_t node = 0, slot = 0;  // of model_.nodes
    /// Which parameter of PyTorch it is, of those that were merged: the same at all calls of a
    /// module. Empty if the file does not say.
    std::string parameter;
    friend bool operator==(const Use&, const Use&) = default;
  };

  /// Identity nodes: the exporter merged equal tensors and kept their names. One that only leads to
  /// outputs of the graph is none of them: the model returns its weight.
  void untie_identities() {
    NameSet read;
    std::vector<std::set<std::string>> captured;
    for (std::size_t i = model_.nodes.size(); i-- > 0;) {
      const OnnxNode& node = model_.nodes[i];
      if (node.op_type == "Identity" && node.has_output(0) && !read.contains(node.outputs[0]))
        continue;
      read.insert_all(node.inputs);
      if (has_subgraphs(node)) read.insert_all(captured.emplace_back(captured_names(node)));
    }
    std::vector<bool> removed(model_.nodes.size(), false);
    std::size_t n = 0;  // among the nodes as read
    for (std::size_t i = 0; i < model_.nodes.size(); ++i) {
      const OnnxNode& node = model_.nodes[i];
      if (node.is_added) {
        index_as_read_.push_back(kNotRead);
        continue;
      }
      const bool copies_tensor = node.op_type == "Identity" && node.has_input(0) &&
                                 node.has_output(0) && read.contains(node.outputs[0]) &&
                                 originals_.contains(node.inputs[0]) && node.function.empty() &&
                                 use_of(node.inputs[0]) != TensorUse::kFrozen;
      const bool statistic = copies_tensor && statistics_.contains(node.outputs[0]);
      // A result of a call: what an earlier call of a norm leaves to the next one.
      const bool passed_on = statistic && !call_of(model_, node).empty();
      if (passed_on) {
        index_as_read_.push_back(n++);
        continue;
      }
      if (statistic || (copies_tensor && node.outputs[0].find("Constant") == std::string::npos)) {
        add_copy(node.inputs[0], node.outputs[0], n++, 0,
                 statistic ? TensorUse::kRunningStatistic : TensorUse::kTrained);
        removed[i] = true;
        continue;
      }
      index_as_read_.push_back(n++);
    }
    if (copies_.empty()) return;
    std::size_t i = 0;
    std::erase_if(model_.nodes.edit(), [&](const OnnxNode&) { return removed[i++]; });
  }

  /// Vectors of equal elements used at several places: fresh biases and gains, merged by value.
  void untie_uniform_vectors() {
    for (std::size_t n = 0; n < model_.nodes.size(); ++n) {
      for (const std::string& output : model_.nodes[n].outputs) producers_.emplace(output, n);
    }
    std::vector<std::pair<std::string, Use>> uses;  // in the order of the nodes
    std::map<std::string, std::vector<Use>> places;
    for (std::size_t n = 0; n < model_.nodes.size(); ++n) {
      const OnnxNode& node = model_.nodes[n];
      for (std::size_t slot = 0; slot < node.inputs.size(); ++slot) {
        const std::string& name = node.inputs[slot];
        if (!is_merged_vector(node, name)) continue;
        uses.push_back({name, {n, slot, parameter_of(node, slot)}});
        places[name].push_back(uses.back().second);
      }
    }
    std::map<std::string, Use> owners;
    for (const auto& [name, found] : places) owners[name] = owner_of(name, found);
    std::map<std::pair<std::string, std::string>, std::string> known;  // copies of parameters
    for (const auto& [name, use] : uses) {
      const Use& owner = owners[name];
      const bool names_parameter = !use.parameter.empty();
      if (use == owner || (names_parameter && use.parameter == owner.parameter)) continue;
      OnnxNode& node = model_.nodes.edit()[use.node];
      std::string& input = node.inputs[use.slot];
      const auto copy = known.find({name, use.parameter});
      if (copy != known.end()) {
        input = copy->second;
        copies_.push_back({input, name, index_as_read_[use.node], use.slot});
        continue;
      }
      const TensorUse copied = is_statistic_slot(node, use.slot)  ? TensorUse::kRunningStatistic
                               : is_constant_here(node, use.slot) ? TensorUse::kFrozen
                                                                  : TensorUse::kTrained;
      input = name_of_copy(node, use.slot, name);
      if (names_parameter) known[{name, use.parameter}] = input;
      add_copy(name, input, index_as_read_[use.node], use.slot, copied);
    }
  }

  /// By the parameters that the call of a node takes, and the place among its nodes. A call may
  /// read merged parameters at several nodes, and a module may be called several times. Without a
  /// call: by the layer's weights, which are not equal by accident.
  std::string parameter_of(const OnnxNode& node, std::size_t slot) {
    const std::string place = fmt::format("{} {} {}", node.op_type, slot, node.inputs[slot]);
    const std::string_view call = call_of(model_, node);
    if (call.empty()) {
      const std::string weights = weights_beside(node, slot);
      return weights.empty() ? weights : place + " of" + weights;
    }
    const std::vector<std::string_view> parameters = parameters_of_call(call);
    if (parameters.empty()) return {};
    return fmt::format("{} {} of {}", place, places_in_call_[fmt::format("{} {}", place, call)]++,
                       fmt::join(parameters, " "));
  }

  /// The trained tensors that the layer of an input reads elsewhere and that were not merged, and
  /// how. The layer of what an Add or a Mul adds to a product is that of the product.
  std::string weights_beside(const OnnxNode& node, std::size_t slot) const {
    std::string found;
    for (std::size_t other = 0; other < node.inputs.size(); ++other) {
      if (other != slot) found += distinct_tensor(node.inputs[other]);
    }
    if (!found.empty() || (node.op_type != "Add" && node.op_type != "Mul")) return found;
    const auto producer = producers_.find(node.inputs[slot == 0 ? 1 : 0]);
    if (producer == producers_.end()) return found;
    const OnnxNode& product = model_.nodes[producer->second];
    for (const std::string& input : product.inputs) found += distinct_tensor(input);
    return found.empty() ? found : " " + product.op_type + found;
  }

  /// " Transpose w" for a value that only copies or turns a trained tensor that is not uniform, or
  /// that the file stores beside an equal one.
  std::string distinct_tensor(const std::string& value) const {
    std::string path, name = value;
    for (int depth = 0; depth < 8; ++depth) {
      const auto original = originals_.find(name);
      if (original != originals_.end())
        return use_of(name) != TensorUse::kFrozen &&
                       (!is_uniform(original->second.value) || has_an_equal(original->second))
                   ? path + " " + name
                   : std::string();
      const auto producer = producers_.find(name);
      if (producer == producers_.end()) return {};
      const OnnxNode& node = model_.nodes[producer->second];
      const std::string& op = node.op_type;
      if (op == "Constant")
        return use_of(name) != TensorUse::kFrozen && !is_uniform(constant_value(node))
                   ? path + " " + name
                   : std::string();
      const bool copies = op == "Identity" || op == "Cast";
      if ((!copies && op != "Transpose") || !node.has_input(0)) return {};
      if (!copies) path += " " + op;
      name = node.inputs[0];
    }
    return {};
  }

  /// Whether PyTorch's call has a constant there, which had the value of a parameter: a norm
  /// without weights, what it makes of a group norm, or a buffer.
  bool is_constant_here(const OnnxNode& node, std::size_t slot) const {
    const std::string_view call = call_of(model_, node);
    if (call.empty() || is_statistic_slot(node, slot)) return false;
    const auto has = [&](std::string_view part) { return call.find(part) != call.npos; };
    const bool is_of_group_norm = target_of(call).find("group_norm") != call.npos;
    if (node.op_type == "InstanceNormalization" && is_of_group_norm) return true;
    if (!parameters_of_call(call).empty()) return false;
    if (has("%b_")) return true;
    return node.op_type.ends_with("Normalization") && has("args") &&
           std::ranges::count(call.substr(call.find("args")), '%') == 1;
  }

  bool is_merged_vector(const OnnxNode& node, const std::string& name) const {
    const auto original = originals_.find(name);
    const bool passes_on =
        node.op_type == "Identity" && node.has_output(0) && statistics_.contains(node.outputs[0]);
    return original != originals_.end() && use_of(name) != TensorUse::kFrozen && !passes_on &&
           !restored_.contains(name) && node.function.empty() && !node.is_added &&
           is_uniform_row(original->second) &&
           !(call_of(model_, node).empty() && has_an_equal(original->second));
  }

  /// Whether another tensor of the file has the same elements: then nothing was merged by value.
  bool has_an_equal(const OnnxInitializer& tensor) const {
    if (!is_uniform_row(tensor)) return false;
    const auto found = stored_.find(contents_of(tensor));
    return found != stored_.end() && found->second > 1;
  }

  /// The use that keeps the tensor: that of the module that it is named after, or else the first;
  /// but no statistic's where the tensor is trained elsewhere, and no constant's: then none.
  Use owner_of(const std::string& name, const std::vector<Use>& places) const {
    const auto may_own = [&](const Use& use) {
      const OnnxNode& node = model_.nodes[use.node];
      return is_statistic_slot(node, use.slot) ? use_of(name) == TensorUse::kRunningStatistic
                                               : !is_constant_here(node, use.slot);
    };
    const std::string module = name.substr(0, std::min(name.rfind('.'), name.size()));
    const auto named = std::ranges::find_if(places, [&](const Use& use) {
      return may_own(use) && module_of(model_, model_.nodes[use.node]) == module;
    });
    if (named != places.end()) return *named;
    return may_own(places[0]) ? places[0] : Use{kNotRead, 0, {}};
  }

  /// PyTorch's name, where the file tells the module.
  std::string name_of_copy(const OnnxNode& node, std::size_t slot, const std::string& name) const {
    const std::string module = module_of(model_, node);
    const std::size_t dot = name.rfind('.');
    if (!module.empty() && dot != std::string::npos) {
      std::string own = module + name.substr(dot);
      if (!originals_.contains(own) && !rules_.contains(own)) return own;
    }
    return fmt::format("{}@{}.{}", name,
                       node.name.empty() ? fmt::format("node{}", node.file_index) : node.name,
                       slot);
  }

  void add_copy(const std::string& original, const std::string& name, std::size_t node,
                std::size_t slot, TensorUse use) {
    OnnxInitializer copy = originals_[original];
    copy.name = name;
    copies_.push_back({name, original, node, slot});
    std::string reason = "copy of " + printable(original) + ", trained separately";
    if (use == TensorUse::kRunningStatistic)
      reason = "running statistic, merged with " + printable(original);
    if (use == TensorUse::kFrozen) reason = "constant, merged with " + printable(original);
    rules_[name] = {use, std::move(reason), rules_[original].decays};
    model_.initializers.push_back(std::move(copy));
  }

  TensorUse use_of(const std::string& name) const {
    const auto rule = rules_.find(name);
    return rule == rules_.end() ? TensorUse::kFrozen : rule->second.use;
  }

  static constexpr std::size_t kNotRead = static_cast<std::size_t>(-1);

  OnnxModel& model_;
  std::map<std::string, TensorRule>& rules_;
  const std::set<std::string_view>& restored_;
  std::map<std::string, OnnxInitializer> originals_;
  std::map<std::string, int> stored_;                  // uniform tensors, by contents_of()
  std::map<std::string, std::size_t> producers_;       // of values, among the nodes that are left
  std::set<std::string> statistics_;                   // values that serve as running statistics
  std::vector<std::size_t> index_as_read_;             // of each node that is left
  std::map<std::string, std::size_t> places_in_call_;  // that were seen so far
  std::vector<UntiedCopy> copies_;
};

}  // namespace

std::vector<UntiedCopy> untie_copies(OnnxModel& model, std::map<std::string, TensorRule>& rules,
                                     const std::set<std::string_view>& restored) {
  return Untier(model, rules, restored).untie();
}

}  // namespace pipetrain
