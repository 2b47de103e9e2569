#include "passes/differentiate.h"

#include <algorithm>
#include <map>
#include <memory>

#include "base/error.h"
#include "ops/registry/registry.h"

namespace pipetrain {
namespace {

/// The gradient contribution of one use (input `slot` of node `node`) of a value.
struct Contribution {
  int node;
  std::size_t slot;
  ValueId gradient;
};

class Differentiation {
 public:
  explicit Differentiation(TrainingGraph& training)
      : training_(training), graph_(training.graph), builder_(make_builder(training.graph)) {}

  void run() {
    forward_nodes_ = static_cast<int>(graph_.nodes.size());
    contributions_.resize(graph_.values.size());
    mark_needed();
    PT_CHECK(needed_[index(training_.loss.loss_sum)], kModel,
             "nothing to train: no trained tensor reaches output \"{}\"; see: pipetrain inspect",
             printable(training_.loss.output));
    refuse_missing_gradients();
    contributions_[index(training_.loss.loss_sum)].push_back(
        {forward_nodes_, 0, training_.loss.loss_scale});
    for (int n = forward_nodes_; n-- > 0;) {
      if (graph_.nodes[static_cast<std::size_t>(n)].part == Part::kForward)
        differentiate_node(n, Part::kInputGradient);
    }
    accumulate();
    for (int n = forward_nodes_; n-- > 0;) {
      if (graph_.nodes[static_cast<std::size_t>(n)].part == Part::kPrepare)
        differentiate_node(n, Part::kFinish);
    }
    for (Parameter& parameter : training_.parameters) {
      builder_.set_origin(parameter.name, Part::kFinish);
      parameter.gradient = total(parameter.value);
    }
    mark_weight_gradients();
  }

 private:
  static std::size_t index(ValueId id) { return static_cast<std::size_t>(id.index); }

  void mark_needed() {
    needed_.assign(graph_.values.size(), false);
    for (const Parameter& parameter : training_.parameters) needed_[index(parameter.value)] = true;
    for (const Node& node : graph_.nodes) {
      const bool reached = std::any_of(node.inputs.begin(), node.inputs.end(),
                                       [&](ValueId id) { return id && needed_[index(id)]; });
      if (!reached) continue;
      for (const ValueId id : node.outputs) needed_[index(id)] = is_float(graph_[id].type.dtype);
    }
  }

  void refuse_missing_gradients() const {
    std::vector<bool> live(graph_.values.size(), false);
    live[index(training_.loss.loss_sum)] = true;
    std::map<std::string_view, std::vector<std::string>> missing;
    for (int n = forward_nodes_; n-- > 0;) {
      const Node& node = graph_.nodes[static_cast<std::size_t>(n)];
      const bool wanted = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
        return live[index(id)] && needed_[index(id)];
      });
      if (!wanted) continue;
      for (const ValueId id : node.inputs) {
        if (id) live[index(id)] = true;
      }
      if (!node.op->differentiate) missing[node.op->name].push_back(node.name);
    }
    if (missing.empty()) return;
    std::string list;
    for (const auto& [op, nodes] : missing) {
      list += fmt::format("\n  {:<23} {} node{}  {}", op, nodes.size(),
                          nodes.size() == 1 ? " " : "s", printable(nodes.back()));
    }
    PT_FAIL(kModel, "the model cannot be trained: {} operator{} no gradient here{}", missing.size(),
            missing.size() == 1 ? " has" : "s have", list);
  }

  /// The sum of the gradient contributions of all uses of a value, in the order of the uses; absent
  /// when there is none.
  ValueId total(ValueId value) {
    std::vector<Contribution>& uses = contributions_[index(value)];
    if (uses.empty()) return {};
    std::sort(uses.begin(), uses.end(), [](const Contribution& a, const Contribution& b) {
      return std::tie(a.node, a.slot) < std::tie(b.node, b.slot);
    });
    if (uses.size() == 1) return uses[0].gradient;
    std::vector<ValueId> terms;
    for (const Contribution& use : uses) terms.push_back(use.gradient);
    return builder_.add("Sum", std::move(terms));
  }

  bool is_leaf_weight(ValueId id) const {
    const Value& value = graph_[id];
    return value.role == Role::kParameter ||
           (value.producer && graph_[value.producer].part == Part::kPrepare);
  }

  void differentiate_node(int n, Part part) {
    const NodeId id{n};
    const std::string name = graph_[id].name;
    const std::vector<ValueId> inputs = graph_[id].inputs;
    const std::vector<ValueId> outputs = graph_[id].outputs;
    builder_.set_origin(name, part, id);
    std::vector<ValueId> gradients;
    for (const ValueId output : outputs) gradients.push_back(total(output));
    if (std::none_of(gradients.begin(), gradients.end(),
                     [](ValueId g) { return static_cast<bool>(g); }))
      return;
    // Not a vector, whose bools have no addresses.
    const auto wants_storage = std::make_unique<bool[]>(inputs.size());
    for (std::size_t slot = 0; slot < inputs.size(); ++slot)
      wants_storage[slot] = inputs[slot] && needed_[index(inputs[slot])];
    const std::span<const bool> wanted(wants_storage.get(), inputs.size());
    if (std::find(wanted.begin(), wanted.end(), true) == wanted.end()) return;
    GradientContext context(builder_, id, gradients, wanted);
    with_context(
        [&] {
          return fmt::format("differentiating {} ({})", printable(name), graph_[id].op->name);
        },
        [&] { graph_[id].op->differentiate(context); });
    for (std::size_t slot = 0; slot < inputs.size(); ++slot) {
      const ValueId gradient = context.input_gradients()[slot];
      if (!wanted[slot] || !gradient) continue;
      PT_CHECK(graph_[gradient].type.shape == graph_[inputs[slot]].type.shape, kInternal,
               "the gradient of input {} of {} has shape {} instead of {}", slot,
               graph_[id].op->name, graph_[gradient].type.shape.text(),
               graph_[inputs[slot]].type.shape.text());
      contributions_[index(inputs[slot])].push_back({n, slot, gradient});
    }
  }

  /// Adds an accumulator over the micro-batches between the W nodes and the finish nodes.
  void accumulate() {
    std::vector<std::pair<Contribution*, ValueId>> uses;
    for (std::size_t v = 0; v < contributions_.size(); ++v) {
      const ValueId value{static_cast<int>(v)};
      if (contributions_[v].empty() || !is_leaf_weight(value)) continue;
      for (Contribution& use : contributions_[v]) uses.emplace_back(&use, value);
    }
    std::sort(uses.begin(), uses.end(), [](const auto& a, const auto& b) {
      return std::tie(a.first->node, a.first->slot) < std::tie(b.first->node, b.first->slot);
    });
    for (const auto& [use, weight] : uses) {
      Value accumulator;
      accumulator.name = fmt::format("gradient of {}", graph_[weight].name);
      accumulator.type = graph_[use->gradient].type;
      accumulator.role = Role::kAccumulator;
      const ValueId id = builder_.add_value(std::move(accumulator));
      training_.accumulations.push_back({use->gradient, id, NodeId{use->node}});
      use->gradient = id;
    }
  }

  /// A gradient node is W when no other forward node's gradient depends on it.
  void mark_weight_gradients() {
    std::vector<bool> feeds_input_gradient(graph_.values.size(), false);
    for (std::size_t n = graph_.nodes.size(); n-- > static_cast<std::size_t>(forward_nodes_);) {
      Node& node = graph_.nodes[n];
      if (node.part == Part::kFinish) continue;
      const bool input_gradient =
          std::any_of(node.outputs.begin(), node.outputs.end(),
                      [&](ValueId id) { return feeds_input_gradient[index(id)]; });
      node.part = input_gradient ? Part::kInputGradient : Part::kWeightGradient;
      for (const ValueId id : node.inputs) {
        if (!id || !graph_[id].producer) continue;
        const Node& producer = graph_[graph_[id].producer];
        const bool of_another = producer.gradient_of && producer.gradient_of != node.gradient_of;
        if (input_gradient || of_another) feeds_input_gradient[index(id)] = true;
      }
    }
  }

  TrainingGraph& training_;
  Graph& graph_;
  GraphBuilder builder_;
  int forward_nodes_ = 0;
  std::vector<bool> needed_;
  std::vector<std::vector<Contribution>> contributions_;  // by value of the forward pass
};

}  // namespace

void differentiate(TrainingGraph& training) { Differentiation(training).run(); }

}  // namespace pipetrain
