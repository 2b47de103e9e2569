#include "passes/precision.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "graph/op.h"
#include "ops/registry/registry.h"

namespace pipetrain {
namespace {

using Rule = PrecisionRule;

const Rule& rule_of(const Node& node) {
  static const Rule keeps_float{Rule::kFloat};
  return node.attributes.flag("keep_float") ? keeps_float : node.op->traits.precision;
}

class PrecisionPass {
 public:
  PrecisionPass(TrainingGraph& training, DType narrow)
      : training_(training), graph_(training.graph), narrow_(narrow) {}

  void run() {
    find_roots();
    fix_what_others_read();
    find_demand();
    for (const Node& node : graph_.nodes) store(node);
    insert_casts();
  }

 private:
  static std::size_t at(ValueId id) { return static_cast<std::size_t>(id.index); }
  ValueId root(ValueId id) const { return root_[at(id)]; }
  bool is_narrow(ValueId id) const { return graph_[id].type.dtype == narrow_; }
  static bool in_pass(const Node& node) {
    return node.part != Part::kPrepare && node.part != Part::kFinish;
  }

  void find_roots() {
    for (std::size_t v = 0; v < graph_.values.size(); ++v) root_.push_back({static_cast<int>(v)});
    for (const Node& node : graph_.nodes) {
      if (node.op->flags & kView) root_[at(node.outputs[0])] = root(node.inputs[0]);
    }
  }

  /// Sampling positions and what they are computed of, back to products and the like: a few bits
  /// would move them by pixels.
  std::vector<ValueId> sampling_positions() const {
    std::vector<ValueId> found;
    std::vector<bool> seen(graph_.values.size(), false);
    const auto add = [&](ValueId id) {
      if (!id || !is_float(graph_[id].type.dtype) || seen[at(id)]) return;
      seen[at(id)] = true;
      found.push_back(id);
    };
    for (const Node& node : graph_.nodes) {
      if (node.op->name == "GridSample") add(node.inputs[1]);
    }
    for (std::size_t next = 0; next < found.size(); ++next) {
      const NodeId producer = graph_[found[next]].producer;
      if (!producer) continue;
      const Node& node = graph_[producer];
      const bool computes = (node.op->flags & kView) || rule_of(node).moves() ||
                            node.op->traits.kind == KernelKind::kElementwise ||
                            node.attributes.flag("keep_float");
      if (computes) std::for_each(node.inputs.begin(), node.inputs.end(), add);
    }
    return found;
  }

  /// Values that are also read outside the graph stay float.
  void fix_what_others_read() {
    fixed_.assign(graph_.values.size(), false);
    const auto fix = [&](ValueId id) {
      if (id) fixed_[at(root(id))] = true;
    };
    std::set<ValueId> trained;  // logits
    for (const Node& node : graph_.nodes) {
      if (node.op->name == "SoftmaxCrossEntropyGrad") trained.insert(root(node.inputs[0]));
    }
    for (const Node& node : graph_.nodes) {
      if (node.attributes.flag("keep_float"))
        std::for_each(node.inputs.begin(), node.inputs.end(), fix);
    }
    for (const ValueId id : sampling_positions()) fix(id);
    for (const ValueId id : training_.outputs) {
      if (!trained.contains(root(id))) fix(id);
    }
    fix(training_.loss.loss_sum);
    fix(training_.loss.correct);
    for (const Accumulation& use : training_.accumulations) fix(use.contribution);
    for (const Parameter& parameter : training_.parameters) fix(parameter.gradient);
    for (const RunningStatistic& statistic : training_.statistics) {
      fix(statistic.batch_mean);
      fix(statistic.batch_variance);
    }
  }

  /// Whether a value can be stored narrow at all.
  bool may_be_narrow(ValueId id) const {
    const Value& value = graph_[root(id)];
    return value.type.dtype == DType::kFloat32 && value.producer && !fixed_[at(root(id))] &&
           (value.role == Role::kActivation || value.role == Role::kGradient) &&
           in_pass(graph_[value.producer]);
  }

  /// Finds the values that only matmul/conv read, also through data movement.
  void find_demand() {
    std::vector<bool> otherwise(graph_.values.size(), false), wanted(graph_.values.size(), false);
    demanded_.assign(graph_.values.size(), false);
    const auto demanded = [&](ValueId id) {
      const std::size_t r = at(root(id));
      return wanted[r] && !otherwise[r] && may_be_narrow(id);
    };
    for (std::size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      if (node.op->flags & kView) continue;
      const Rule& rule = rule_of(node);
      const bool passes =
          rule.moves() && std::all_of(node.outputs.begin(), node.outputs.end(), demanded);
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        if (!node.inputs[i]) continue;
        const bool narrow = rule.kind == Rule::kProduct ? rule.operands.contains(i) : passes;
        (narrow ? wanted : otherwise)[at(root(node.inputs[i]))] = true;
      }
    }
    for (std::size_t v = 0; v < graph_.values.size(); ++v)
      demanded_[v] = demanded({static_cast<int>(v)});
  }

  /// Whether the operators' rule stores result `index` narrow.
  bool by_rule(const Node& node, std::size_t index) const {
    const Rule& rule = rule_of(node);
    switch (rule.kind) {
      case Rule::kUnstated:
      case Rule::kFloat:
        return false;
      case Rule::kProduct:
        return rule.results.contains(index) && node.part != Part::kWeightGradient;
      case Rule::kAllFirst:
        return is_narrow(node.inputs[0]);
      case Rule::kFirst:
        return index == 0 && is_narrow(node.inputs[0]);
      case Rule::kJoined:
      case Rule::kAsLarge:
        return index == 0 && operands_are_narrow(node);
    }
    return false;
  }

  /// Whether all float operands are narrow that result 0 depends on by its rule. The constants that
  /// a gradient is joined from are zeros, for what nobody read.
  bool operands_are_narrow(const Node& node) const {
    const std::int64_t count = graph_[node.outputs[0]].type.count();
    bool any = false;
    for (const ValueId id : node.inputs) {
      if (!id || !is_float(graph_[id].type.dtype)) continue;
      const bool is_zeros = rule_of(node).kind == Rule::kJoined &&
                            node.part == Part::kInputGradient && graph_[id].role == Role::kConstant;
      if (is_zeros) continue;
      // Per-channel parameters are widened by the kernel.
      if (rule_of(node).kind == Rule::kAsLarge && graph_[id].type.count() != count) continue;
      if (!is_narrow(id)) return false;
      any = true;
    }
    return any;
  }

  void store(const Node& node) {
    if (!in_pass(node)) return;
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId id = node.outputs[i];
      if (node.op->flags & kView) {
        graph_[id].type.dtype = graph_[root(id)].type.dtype;
      } else if (may_be_narrow(id) && (demanded_[at(id)] || by_rule(node, i))) {
        graph_[id].type.dtype = narrow_;
      }
    }
  }

  void insert_casts() {
    std::vector<Node> old = std::move(graph_.nodes);
    graph_.nodes.clear();
    std::vector<int> new_index(old.size(), -1);
    for (std::size_t n = 0; n < old.size(); ++n) {
      Node node = std::move(old[n]);
      if (node.gradient_of)
        node.gradient_of = {new_index[static_cast<std::size_t>(node.gradient_of.index)]};
      if (in_pass(node) && rule_of(node).kind == Rule::kProduct) {
        for (std::size_t i = 0; i < node.inputs.size(); ++i) {
          if (node.inputs[i] && rule_of(node).operands.contains(i))
            node.inputs[i] = cast(node.inputs[i], node);
        }
      }
      new_index[n] = static_cast<int>(graph_.nodes.size());
      for (const ValueId id : node.outputs) graph_[id].producer = {new_index[n]};
      graph_.nodes.push_back(std::move(node));
    }
    for (Accumulation& use : training_.accumulations)
      use.consumer = {new_index[static_cast<std::size_t>(use.consumer.index)]};
  }

  bool is_weight(ValueId id) const {
    const Value& value = graph_[root(id)];
    return value.role == Role::kParameter || value.role == Role::kConstant ||
           (value.producer && graph_[value.producer].part == Part::kPrepare);
  }

  using Copies = std::map<std::tuple<ValueId, Part, NodeId>, ValueId>;

  /// `id` as matmul/conv reads it: itself or its narrow copy. What has a copy under another shape
  /// is a view of that copy.
  ValueId cast(ValueId id, const Node& reader) {
    if (graph_[id].type.dtype != DType::kFloat32) return id;
    if (const ValueId copy = find_copy(copies_, id, reader)) return copy;
    const Part part = is_weight(id) ? Part::kPrepare : reader.part;
    const NodeId place = in_backward(part) ? reader.gradient_of : NodeId{};
    const ValueId first = find_copy(first_copies_, root(id), reader);
    const ValueId added = first ? add_node("Reshape", {{"shape", graph_[id].type.shape.dims()}},
                                           first, id, part, reader)
                                : add_node("Cast", {{"to", static_cast<std::int64_t>(narrow_)}}, id,
                                           id, part, reader);
    copies_[{id, part, place}] = added;
    if (!first) first_copies_[{root(id), part, place}] = added;
    return added;
  }

  static bool in_backward(Part part) {
    return part == Part::kInputGradient || part == Part::kWeightGradient;
  }

  /// A forward copy serves later forward nodes and the gradients of those, a backward copy only
  /// readers of the same forward node; that of a weight gradient, which may be delayed, only others
  /// in it.
  ValueId find_copy(const Copies& copies, ValueId id, const Node& reader) const {
    for (const auto& [made, place] :
         {std::pair(Part::kPrepare, NodeId{}), std::pair(Part::kForward, NodeId{}),
          std::pair(Part::kInputGradient, reader.gradient_of),
          std::pair(Part::kWeightGradient, reader.gradient_of)}) {
      if (made == Part::kWeightGradient && reader.part != made) continue;
      const auto found = copies.find({id, made, place});
      if (found == copies.end()) continue;
      if (made == Part::kForward && !may_read(reader, found->second)) continue;
      return found->second;
    }
    return {};
  }

  /// Whether a forward copy lies before `reader` wherever the chain is cut. A gradient runs with
  /// its forward node, and only what that reads, under whatever shape, is sure to come first.
  bool may_read(const Node& reader, ValueId copy) const {
    if (!reader.gradient_of) return true;
    return std::ranges::any_of(graph_[reader.gradient_of].inputs,
                               [&](ValueId id) { return id && root(id) == root(copy); });
  }

  /// Adds a node that makes the narrow copy of `id`.
  ValueId add_node(const char* op, Attributes attributes, ValueId input, ValueId id, Part part,
                   const Node& reader) {
    Value copy;
    copy.name = fmt::format("{} rounded", graph_[id].name);
    copy.type = graph_[id].type;
    copy.type.dtype = narrow_;
    copy.role = in_backward(part) ? Role::kGradient : Role::kActivation;
    const ValueId out{static_cast<int>(graph_.values.size())};
    Node node;
    node.op = find_op(op);
    node.attributes = std::move(attributes);
    node.inputs = {input};
    node.outputs = {out};
    node.name = copy.name;
    node.part = part;
    if (in_backward(part)) node.gradient_of = reader.gradient_of;
    copy.producer = {static_cast<int>(graph_.nodes.size())};
    root_.push_back(node.op->flags & kView ? root(input) : out);
    graph_.values.push_back(std::move(copy));
    graph_.nodes.push_back(std::move(node));
    return out;
  }

  TrainingGraph& training_;
  Graph& graph_;
  DType narrow_;
  std::vector<ValueId> root_;
  std::vector<bool> fixed_, demanded_;
  Copies copies_;        // by what is copied
  Copies first_copies_;  // by what that is a view of
};

}  // namespace

void choose_precision(TrainingGraph& training, DType narrow) {
  for (const Node& node : training.graph.nodes) {
    PT_CHECK(node.op->name != "Fused", kInternal,
             "element-wise nodes are fused before their precision is chosen: {}",
             printable(node.name));
  }
  if (narrow == DType::kFloat32) return;
  PrecisionPass(training, narrow).run();
  training.graph.verify();
}

}  // namespace pipetrain
