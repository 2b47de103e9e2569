#include "passes/fuse_elementwise.h"

#include <algorithm>
#include <map>
#include <set>

#include "graph/op.h"
#include "ops/fused/fused.h"
#include "ops/registry/registry.h"
#include "passes/fuse.h"

namespace pipetrain {
namespace {

constexpr std::size_t kMostMembers = 12;
constexpr std::size_t kMostResults = 4;

using Members = std::vector<int>;  // node indices, ascending

/// Finds and makes the groups of one part.
class PartFuser {
 public:
  PartFuser(TrainingGraph& training, Part part, FusedTypes types)
      : training_(training),
        graph_(training.graph),
        part_(part),
        types_(types),
        readers_(graph_.values.size()),
        outside_(graph_.values.size(), false),
        group_(graph_.nodes.size(), -1) {
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      for (const ValueId id : graph_.nodes[n].inputs) {
        if (id) readers_[at(id)].push_back(static_cast<int>(n));
      }
    }
    const auto mark = [&](ValueId id) {
      if (id) outside_[at(id)] = true;
    };
    for (const ValueId id : training.outputs) mark(id);
    for (const Accumulation& use : training.accumulations) mark(use.contribution);
    for (const Parameter& parameter : training.parameters) mark(parameter.gradient);
    mark(training.loss.loss_sum);
    mark(training.loss.correct);
  }

  int run() {
    for (int n = 0; n < static_cast<int>(graph_.nodes.size()); ++n) {
      if (!takes(n)) continue;
      group_[static_cast<std::size_t>(n)] = static_cast<int>(groups_.size());
      groups_.push_back({n});
      for (const ValueId id : node(n).inputs) {
        if (id && graph_[id].producer) try_merge(graph_[id].producer.index, n);
      }
    }
    return make_nodes();
  }

 private:
  static std::size_t at(ValueId id) { return static_cast<std::size_t>(id.index); }
  const Node& node(int n) const { return graph_.nodes[static_cast<std::size_t>(n)]; }
  bool takes(int n) const { return node(n).part == part_ && is_fusible(graph_, node(n), types_); }
  int group_of(int n) const { return group_[static_cast<std::size_t>(n)]; }
  const TensorType& type_of(int n) const { return graph_[node(n).outputs[0]].type; }

  /// Puts the group of a producer into that of its reader, the last node so far.
  void try_merge(int producer, int reader) {
    const int from = group_of(producer), to = group_of(reader);
    if (from < 0 || from == to) return;
    if (node(producer).gradient_of != node(reader).gradient_of) return;
    if (type_of(producer).shape != type_of(reader).shape ||
        type_of(producer).layout != type_of(reader).layout)
      return;
    const Members& first = groups_[static_cast<std::size_t>(from)];
    Members merged = first;
    for (const int n : groups_[static_cast<std::size_t>(to)]) merged.push_back(n);
    std::sort(merged.begin(), merged.end());
    if (!is_allowed(first, merged, reader)) return;
    for (const int n : first) group_[static_cast<std::size_t>(n)] = to;
    groups_[static_cast<std::size_t>(from)].clear();
    groups_[static_cast<std::size_t>(to)] = std::move(merged);
  }

  bool is_allowed(const Members& moved, const Members& merged, int last) const {
    if (merged.size() > kMostMembers) return false;
    if (inputs_of(merged, kMostFusedOperands).size() + merged.size() > kMostFusedOperands)
      return false;
    std::size_t results = 0;
    for (const int n : merged) results += is_result(merged, n);
    if (results > kMostResults) return false;
    for (const int n : moved) {
      for (const int reader : readers_[at(node(n).outputs[0])]) {
        if (reader < last && !contains(merged, reader)) return false;
      }
    }
    return has_no_gap(moved.back(), merged, last) || saves_memory(moved, merged, last);
  }

  static bool contains(const Members& members, int n) {
    return std::binary_search(members.begin(), members.end(), n);
  }

  /// Read by a node that is no member, or by more than nodes.
  bool is_result(const Members& members, int n) const {
    const ValueId out = node(n).outputs[0];
    const auto& readers = readers_[at(out)];
    return outside_[at(out)] || readers.empty() ||
           std::any_of(readers.begin(), readers.end(),
                       [&](int reader) { return !contains(members, reader); });
  }

  /// Stops when there are more than `most`.
  std::vector<ValueId> inputs_of(const Members& members, std::size_t most = SIZE_MAX) const {
    std::set<ValueId> inside;
    std::vector<ValueId> inputs;
    for (const int n : members) {
      for (const ValueId id : node(n).inputs) {
        if (inputs.size() > most) return inputs;
        if (!inside.contains(id) && std::find(inputs.begin(), inputs.end(), id) == inputs.end())
          inputs.push_back(id);
      }
      inside.insert(node(n).outputs[0]);
    }
    return inputs;
  }

  /// Whether only members run between the moved nodes and their new place.
  bool has_no_gap(int first, const Members& merged, int last) const {
    for (int n = first + 1; n < last; ++n) {
      if (!contains(merged, n) && !(node(n).op->flags & kView)) return false;
    }
    return true;
  }

  /// Whether the removed results are at least as large as the inputs that live longer.
  bool saves_memory(const Members& moved, const Members& merged, int last) const {
    std::size_t longer = 0, gone = 0;
    for (const int n : moved) {
      if (!is_result(merged, n)) gone += type_of(n).bytes();
    }
    for (const ValueId id : inputs_of(moved)) {
      if (!graph_[id].producer || graph_[id].type.shape != type_of(last).shape) continue;
      if (readers_[at(id)].back() <= last)  // in graph order
        longer += graph_[id].type.bytes();
    }
    return longer <= gone;
  }

  int make_nodes() {
    int made = 0;
    std::vector<NodeId> heir(graph_.nodes.size());
    for (const Members& members : groups_) {
      if (members.size() < 2) continue;
      ++made;
      Node fused = fuse(members);
      for (const int n : members) {
        if (n != members.back()) heir[static_cast<std::size_t>(n)] = {members.back()};
      }
      graph_.nodes[static_cast<std::size_t>(members.back())] = std::move(fused);
    }
    if (made) remove_nodes(training_, heir);
    return made;
  }

  Node fuse(const Members& members) const {
    Node out;
    out.inputs = inputs_of(members);
    std::map<ValueId, int> operand;
    for (const ValueId id : out.inputs) operand.emplace(id, static_cast<int>(operand.size()));
    const auto is_float32 = [&](ValueId id) { return graph_[id].type.dtype == DType::kFloat32; };
    const bool plain = std::all_of(out.inputs.begin(), out.inputs.end(), is_float32) &&
                       std::all_of(members.begin(), members.end(),
                                   [&](int n) { return is_float32(node(n).outputs[0]); });
    FusedProgram program;
    std::string names;
    for (const int n : members) {
      const Node& member = node(n);
      FusedStep step{std::string(member.op->name), {}, member.attributes};
      if (!plain) step.stored = type_of(n).dtype;
      for (const ValueId id : member.inputs) step.operands.push_back(operand.at(id));
      if (is_result(members, n)) {
        program.results.push_back(static_cast<int>(program.steps.size()));
        out.outputs.push_back(member.outputs[0]);
      }
      operand.emplace(member.outputs[0], static_cast<int>(operand.size()));
      program.steps.push_back(std::move(step));
      names += (names.empty() ? "" : "\n") + member.name;
    }
    static const OpDef* const op = find_op("Fused");
    out.op = op;
    out.attributes = fused_attributes(program);
    out.attributes.set("members", names);
    out.name = node(members.front()).name;
    out.part = part_;
    out.gradient_of = node(members.front()).gradient_of;
    return out;
  }

  TrainingGraph& training_;
  Graph& graph_;
  Part part_;
  FusedTypes types_;
  std::vector<std::vector<int>> readers_;
  std::vector<bool> outside_;  // read by more than nodes
  std::vector<int> group_;     // by node; -1: none
  std::vector<Members> groups_;
};

}  // namespace

int fuse_elementwise(TrainingGraph& training, FusedTypes types) {
  // The forward pass first, since gradients of one fused forward node may be fused too.
  int groups = 0;
  for (const Part part : {Part::kForward, Part::kInputGradient, Part::kWeightGradient})
    groups += PartFuser(training, part, types).run();
  return groups;
}

}  // namespace pipetrain
