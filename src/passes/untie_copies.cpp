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

class Untier {
 public:
  Untier(OnnxModel& model, std::map<std::string, TensorRule>& rules,
         const std::set<std::string_view>& restored)
      : model_(model), rules_(rules), restored_(restored) {
    for (const OnnxInitializer& initializer : model.initializers)
      originals_[initializer.name] = initializer;
    for (const OnnxNode& node : model.nodes) {
      for (std::size_t slot = 0; slot < node.inputs.size(); ++slot) {
        if (is_statistic_slot(node, slot)) statistics_.insert(node.inputs[slot]);
      }
    }
  }

  std::vector<UntiedCopy> untie() {
    untie_identities();
    untie_uniform_vectors();
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
  /// read merged parameters at several nodes, and a module may be called several times.
  std::string parameter_of(const OnnxNode& node, std::size_t slot) {
    if (is_statistic_slot(node, slot)) return {};
    const std::string_view call = call_of(model_, node);
    const std::vector<std::string_view> parameters = parameters_of_call(call);
    if (parameters.empty()) return {};
    const std::string place = fmt::format("{} {} {}", node.op_type, slot, node.inputs[slot]);
    return fmt::format("{} {} of {}", place, places_in_call_[fmt::format("{} {}", place, call)]++,
                       fmt::join(parameters, " "));
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
    return original != originals_.end() && use_of(name) != TensorUse::kFrozen &&
           !restored_.contains(name) && is_row(original->second.shape) && original->second.value &&
           node.function.empty() && !node.is_added && is_uniform(original->second.value);
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
