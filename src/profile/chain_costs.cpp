// Attributes the costs of nodes to chain elements.
#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/index.h"
#include "graph/op.h"
#include "ops/conv/conv.h"
#include "ops/gather/gather.h"
#include "ops/matmul/matmul.h"
#include "passes/batch_weight_gradients.h"
#include "profile/profile.h"
#include "tensor/distinct_constants.h"

namespace pipetrain {
namespace {

class Attribution {
 public:
  Attribution(const TrainingGraph& training, const Chain& chain, const Profile& profile)
      : training_(training), graph_(training.graph), profile_(profile) {
    out_.elements.resize(chain.order.size());
    written_.assign(chain.order.size(), 0);
    out_.forward_bytes = chain.forward_bytes;
    out_.backward_bytes = chain.backward_bytes;
    place(chain);
    find_roots();
    find_readers();
  }

  ChainCosts run() {
    add_times();
    add_batched();
    add_preparation();
    add_parameters();
    add_uses();
    if (!profile_.in_host_memory()) add_constants();
    add_finish();
    add_saved();
    add_transient();
    // What comes first in a step is written, not added.
    for (std::size_t i = 0; i < out_.elements.size(); ++i) {
      double& seconds = out_.elements[i].step_seconds;
      seconds = std::max(0.0, seconds - written_[i]);
    }
    return std::move(out_);
  }

 private:
  // A gradient node has the position of its forward node; prepare and finish nodes have none.
  void place(const Chain& chain) {
    position_.assign(graph_.nodes.size(), -1);
    for (std::size_t i = 0; i < chain.order.size(); ++i) {
      position_[at(chain.order[i].index)] = static_cast<int>(i);
      out_.elements[i].name = graph_[chain.order[i]].name;
    }
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if ((is_gradient(node) || node.part == Part::kBatchGradient) && node.gradient_of)
        position_[n] = position_[at(node.gradient_of.index)];
    }
  }

  static bool is_gradient(const Node& node) {
    return node.part == Part::kInputGradient || node.part == Part::kWeightGradient;
  }

  // A view shows the memory of its root.
  void find_roots() {
    for (std::size_t v = 0; v < graph_.values.size(); ++v) root_.push_back({static_cast<int>(v)});
    for (const Node& node : graph_.nodes) {
      if (node.op->flags & kView) root_[at(node.outputs[0].index)] = root(node.inputs[0]);
    }
  }

  ValueId root(ValueId id) const { return root_[at(id.index)]; }

  // Positions that need each value, through views and preparation.
  void find_readers() {
    readers_.resize(graph_.values.size());
    gradient_readers_.resize(graph_.values.size());
    for (std::size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      std::set<int> here;
      if (position_[n] >= 0) here.insert(position_[n]);
      if (node.part == Part::kPrepare) {
        for (const ValueId id : node.outputs) {
          here.insert(readers_[at(id.index)].begin(), readers_[at(id.index)].end());
        }
      }
      for (const ValueId id : node.inputs) {
        if (!id) continue;
        readers_[at(id.index)].insert(here.begin(), here.end());
        if (is_gradient(node) && position_[n] >= 0 && !(node.op->flags & kView)) {
          gradient_readers_[at(root(id).index)].insert(position_[n]);
        }
      }
    }
    for (const BatchedValue& batched : training_.batched_values) {
      const int here = position_[at(batched.consumer.index)];
      if (here < 0) continue;
      readers_[at(batched.value.index)].insert(here);
      gradient_readers_[at(root(batched.value).index)].insert(here);
    }
  }

  void add_times() {
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (position_[n] < 0) continue;
      ChainCost& element = out_.elements[at(position_[n])];
      const double seconds = profile_.node_seconds[n];
      switch (graph_.nodes[n].part) {
        case Part::kForward:
          element.forward_seconds += seconds;
          break;
        case Part::kInputGradient:
          element.input_gradient_seconds += seconds;
          break;
        case Part::kWeightGradient:
          element.weight_gradient_seconds += seconds;
          break;
        case Part::kBatchGradient:
          element.weight_gradient_seconds +=
              seconds * runs_per_micro_batch(training_, graph_.nodes[n]);
          break;
        case Part::kPrepare:
        case Part::kFinish:
          break;
      }
    }
    for (const Accumulation& accumulation : training_.accumulations) {
      const int here = accumulation.consumer ? position_[at(accumulation.consumer.index)] : -1;
      if (here < 0 || adds_itself(root(accumulation.contribution))) continue;
      const double seconds = profile_.accumulate_seconds_per_byte *
                             static_cast<double>(graph_[accumulation.contribution].type.bytes());
      out_.elements[at(here)].weight_gradient_seconds +=
          additions_per_micro_batch(accumulation) * seconds;
      written_[at(here)] += seconds;
    }
  }

  // Gradients of several micro-batches at once are added once.
  double additions_per_micro_batch(const Accumulation& accumulation) const {
    const NodeId producer = graph_[root(accumulation.contribution)].producer;
    const bool batched = producer && graph_[producer].part == Part::kBatchGradient;
    return batched ? runs_per_micro_batch(training_, graph_[producer]) : 1;
  }

  // Batched values are copied for every micro-batch.
  void add_batched() {
    for (const BatchedValue& batched : training_.batched_values) {
      const int here = position_[at(batched.consumer.index)];
      if (here < 0) continue;
      ChainCost& element = out_.elements[at(here)];
      element.weight_gradient_seconds += profile_.accumulate_seconds_per_byte *
                                         static_cast<double>(graph_[batched.value].type.bytes());
      element.fixed_bytes += graph_[batched.batched].type.bytes();
    }
  }

  // A kernel that adds to the accumulator takes as long as one that writes.
  bool adds_itself(ValueId contribution) const {
    const NodeId producer = graph_[contribution].producer;
    if (profile_.backend != "cpu" || !producer) return false;
    const Node& node = graph_[producer];
    const KernelRequest request{node, graph_.input_types(node), graph_.output_types(node)};
    if (node.op->name == "MatMul") return matmul_adds(request);
    if (node.op->name == "GatherGrad") return gather_gradient_adds(request);
    return node.op->name == "ConvWeightGrad" && conv_weight_gradient_adds(request);
  }

  // Charges the first position that needs it, and each further one with a Reuse.
  void charge(const std::set<int>& positions, std::size_t bytes, std::size_t ChainCost::*member,
              std::size_t Reuse::*reuse_member) {
    int previous = -1;
    for (const int here : positions) {
      ChainCost& element = out_.elements[at(here)];
      if (previous < 0) {
        element.*member += bytes;
      } else {
        const auto same = [&](const Reuse& reuse) { return reuse.previous == previous; };
        auto found = std::find_if(element.reuses.begin(), element.reuses.end(), same);
        if (found == element.reuses.end()) {
          Reuse reuse;
          reuse.previous = previous;
          found = element.reuses.insert(found, reuse);
        }
        (*found).*reuse_member += bytes;
      }
      previous = here;
    }
  }

  void add_preparation() {
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (node.part != Part::kPrepare || (node.op->flags & kView)) continue;
      std::set<int> positions;
      for (const ValueId id : node.outputs) {
        const std::set<int>& readers = readers_[at(id.index)];
        positions.insert(readers.begin(), readers.end());
        charge(readers, graph_[id].type.bytes(), &ChainCost::fixed_bytes, &Reuse::fixed_bytes);
      }
      if (!positions.empty()) {
        out_.elements[at(*positions.begin())].step_seconds += profile_.node_seconds[n];
      }
    }
  }

  void add_parameters() {
    for (const Parameter& parameter : training_.parameters) {
      const std::set<int>& positions = readers_[at(parameter.value.index)];
      const std::size_t bytes = graph_[parameter.value].type.bytes();
      if (parameter.gradient) {
        if (!positions.empty()) {
          out_.elements[at(*positions.begin())].step_seconds +=
              profile_.update_seconds_per_byte * static_cast<double>(bytes);
        }
        charge(positions, bytes, &ChainCost::parameter_bytes, &Reuse::parameter_bytes);
      } else {
        charge(positions, bytes, &ChainCost::fixed_bytes, &Reuse::fixed_bytes);
      }
    }
  }

  /// The accumulations that a gradient is finished from.
  std::set<int> uses_of(ValueId gradient, const std::vector<int>& accumulation_of) const {
    std::set<int> uses;
    std::set<ValueId> known = {gradient};
    std::vector<ValueId> open = {gradient};
    while (!open.empty()) {
      const ValueId id = open.back();
      open.pop_back();
      if (const int i = accumulation_of[at(id.index)]; i >= 0) uses.insert(i);
      const NodeId producer = graph_[id].producer;
      if (!producer || graph_[producer].part != Part::kFinish) continue;
      for (const ValueId input : graph_[producer].inputs) {
        if (input && known.insert(input).second) open.push_back(input);
      }
    }
    return uses;
  }

  // Stages that hold a parameter have the accumulators of all its uses. That of the first is
  // counted as the parameter's gradient.
  void add_uses() {
    std::vector<int> accumulation_of(graph_.values.size(), -1);
    for (std::size_t i = 0; i < training_.accumulations.size(); ++i)
      accumulation_of[at(training_.accumulations[i].accumulator.index)] = static_cast<int>(i);
    std::map<int, std::set<int>> needed_by;  // by accumulation
    std::map<int, std::size_t> counted;
    for (const Parameter& parameter : training_.parameters) {
      if (!parameter.gradient) continue;
      const std::set<int>& positions = readers_[at(parameter.value.index)];
      const std::set<int> uses = uses_of(parameter.gradient, accumulation_of);
      for (const int i : uses) needed_by[i].insert(positions.begin(), positions.end());
      if (!uses.empty()) counted[*uses.begin()] += graph_[parameter.value].type.bytes();
    }
    for (const auto& [i, positions] : needed_by) {
      const Accumulation& use = training_.accumulations[at(i)];
      const std::size_t bytes = graph_[use.accumulator].type.bytes();
      if (bytes > counted[i])
        charge(positions, bytes - counted[i], &ChainCost::more_gradient_bytes,
               &Reuse::more_gradient_bytes);
      const int element = use.consumer ? position_[at(use.consumer.index)] : -1;
      if (element >= 0 && positions.size() > 1)
        out_.tied.push_back({element, bytes, {positions.begin(), positions.end()}});
    }
  }

  // Devices have copies of frozen weights and all other constants that their kernels read: one of
  // equal ones.
  void add_constants() {
    std::map<ValueId, std::set<int>> positions;
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (node.op->flags & kView) continue;
      std::set<int> here;
      if (position_[n] >= 0) here.insert(position_[n]);
      if (node.part == Part::kPrepare) {
        for (const ValueId id : node.outputs)
          here.insert(readers_[at(id.index)].begin(), readers_[at(id.index)].end());
      }
      for (const ValueId id : node.inputs) {
        if (!id || graph_[root(id)].role != Role::kConstant || graph_[root(id)].producer) continue;
        positions[root(id)].insert(here.begin(), here.end());
      }
    }
    DistinctConstants distinct;
    std::vector<ValueId> first;                      // by number of distinct constants
    std::map<ValueId, std::set<int>> of_all_equals;  // by the first of them
    for (const auto& [id, here] : positions) {
      ValueId place = id;
      if (const HostTensor& data = graph_[id].data) {
        const DistinctConstants::Found found = distinct.add(data);
        if (found.added) first.push_back(id);
        place = first[found.index];
      }
      of_all_equals[place].insert(here.begin(), here.end());
    }
    for (const auto& [id, here] : of_all_equals)
      charge(here, graph_[id].type.bytes(), &ChainCost::constant_bytes, &Reuse::constant_bytes);
  }

  // Work per step is attributed to the first element that needs the parameter.
  void add_finish() {
    std::vector<int> owner(graph_.values.size(), -1);
    for (const Parameter& parameter : training_.parameters) {
      const std::set<int>& positions = readers_[at(parameter.value.index)];
      if (parameter.gradient && !positions.empty()) {
        owner[at(parameter.gradient.index)] = *positions.begin();
      }
    }
    for (std::size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      if (node.part != Part::kFinish) continue;
      int here = -1;
      for (const ValueId id : node.outputs) here = std::max(here, owner[at(id.index)]);
      if (here < 0) continue;
      out_.elements[at(here)].step_seconds += profile_.node_seconds[n];
      for (const ValueId id : node.inputs) {
        if (id) owner[at(id.index)] = here;
      }
    }
  }

  bool is_saved(ValueId id) const {
    const NodeId producer = graph_[id].producer;
    return producer && graph_[producer].part == Part::kForward &&
           !gradient_readers_[at(id.index)].empty();
  }

  void add_saved() {
    for (std::size_t v = 0; v < graph_.values.size(); ++v) {
      const ValueId id{static_cast<int>(v)};
      if (root(id) != id || !is_saved(id)) continue;
      charge(gradient_readers_[v], graph_[id].type.bytes(), &ChainCost::saved_bytes,
             &Reuse::saved_bytes);
    }
  }

  void add_transient() {
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (position_[n] < 0 || (node.op->flags & kView)) continue;
      std::size_t bytes = profile_.workspace_bytes[n];
      for (const ValueId id : node.outputs) {
        if (!is_saved(id)) bytes += graph_[id].type.bytes();
      }
      for (const ValueId id : node.inputs) {
        if (id && graph_[id].role == Role::kGradient) bytes += graph_[id].type.bytes();
      }
      std::size_t& most = out_.elements[at(position_[n])].transient_bytes;
      most = std::max(most, bytes);
    }
  }

  const TrainingGraph& training_;
  const Graph& graph_;
  const Profile& profile_;
  ChainCosts out_;
  std::vector<double> written_;  // by element: seconds of one addition to each accumulator
  std::vector<int> position_;    // of each node in the chain
  std::vector<ValueId> root_;
  std::vector<std::set<int>> readers_;           // by value
  std::vector<std::set<int>> gradient_readers_;  // by root: gradient nodes only
};

}  // namespace

ChainCosts chain_costs(const TrainingGraph& training, const Chain& chain, const Profile& profile) {
  PT_CHECK(profile.node_seconds.size() == training.graph.nodes.size() &&
               profile.workspace_bytes.size() == training.graph.nodes.size(),
           kInternal, "a profile of {} nodes does not fit a graph of {}",
           profile.node_seconds.size(), training.graph.nodes.size());
  return Attribution(training, chain, profile).run();
}

}  // namespace pipetrain
