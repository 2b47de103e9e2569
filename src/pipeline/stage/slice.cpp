#include "pipeline/stage/slice.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/setting.h"
#include "graph/op.h"

namespace pipetrain {
namespace {

std::vector<ValueId> roots_of(const Graph& graph) {
  std::vector<ValueId> root(graph.values.size());
  for (std::size_t v = 0; v < root.size(); ++v) root[v] = {static_cast<int>(v)};
  for (const Node& node : graph.nodes) {
    if (node.op->flags & kView) {
      root[static_cast<std::size_t>(node.outputs[0].index)] =
          root[static_cast<std::size_t>(node.inputs[0].index)];
    }
  }
  return root;
}

class Slicer {
 public:
  Slicer(const TrainingGraph& training, const std::vector<int>& stage_of_forward, int stage_count)
      : training_(training), graph_(training.graph) {
    out_.stages.resize(static_cast<std::size_t>(stage_count));
    out_.root = roots_of(graph_);
    out_.stage_of_node = stage_of_forward;
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (node.part == Part::kInputGradient || node.part == Part::kWeightGradient ||
          node.part == Part::kBatchGradient) {
        out_.stage_of_node[n] = stage_of_forward[static_cast<std::size_t>(node.gradient_of.index)];
      }
    }
  }

  Slices run() {
    place_nodes();
    find_readers();
    place_preparation();
    place_parameters();
    place_statistics();
    find_edges();
    return std::move(out_);
  }

 private:
  static std::size_t at(ValueId id) { return static_cast<std::size_t>(id.index); }
  ValueId root(ValueId id) const { return out_.root[at(id)]; }
  int stage_of(const BatchedValue& batched) const {
    return out_.stage_of_node[static_cast<std::size_t>(batched.consumer.index)];
  }
  StageSlice& stage(int s) { return out_.stages[static_cast<std::size_t>(s)]; }

  void place_nodes() {
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      const int s = out_.stage_of_node[n];
      if (s < 0 || node.op->flags & kView) continue;
      const NodeId id{static_cast<int>(n)};
      if (node.part == Part::kForward) {
        stage(s).forward.push_back(id);
        continue;
      }
      if (node.part == Part::kBatchGradient) {
        stage(s).batch_gradient.push_back(id);
        continue;
      }
      stage(s).backward.push_back(id);
      (node.part == Part::kInputGradient ? stage(s).input_gradient : stage(s).weight_gradient)
          .push_back(id);
    }
    for (std::size_t i = 0; i < training_.accumulations.size(); ++i) {
      const NodeId consumer = training_.accumulations[i].consumer;
      stage(out_.stage_of_node[static_cast<std::size_t>(consumer.index)])
          .accumulations.push_back(static_cast<int>(i));
    }
    for (std::size_t i = 0; i < training_.batched_values.size(); ++i) {
      stage(stage_of(training_.batched_values[i])).batched_values.push_back(static_cast<int>(i));
    }
  }

  /// Adds stages to the readers of a value; returns whether there were new ones.
  bool add_readers(ValueId id, const std::set<int>& stages) {
    if (!id) return false;
    std::set<int>& readers = readers_[at(id)];
    const std::size_t before = readers.size();
    readers.insert(stages.begin(), stages.end());
    return readers.size() > before;
  }

  /// Which stages prepare a node's results: those that read any of them.
  std::set<int> preparing_stages(const Node& node) const {
    std::set<int> stages;
    for (const ValueId id : node.outputs)
      stages.insert(readers_[at(id)].begin(), readers_[at(id)].end());
    return stages;
  }

  /// The stages that read each value, through preparation and views. A stage that holds a parameter
  /// finishes its whole gradient, so it also prepares what that reads, which may depend on further
  /// parameters.
  void find_readers() {
    readers_.resize(graph_.values.size());
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      const int s = out_.stage_of_node[n];
      if (s < 0) continue;
      for (const ValueId id : graph_.nodes[n].inputs) add_readers(id, {s});
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (const Parameter& parameter : training_.parameters) {
        if (parameter.gradient) add_readers(parameter.gradient, readers_[at(parameter.value)]);
      }
      for (std::size_t n = graph_.nodes.size(); n-- > 0;) {
        const Node& node = graph_.nodes[n];
        if (node.part != Part::kPrepare && node.part != Part::kFinish) continue;
        const std::set<int> stages = preparing_stages(node);
        for (const ValueId id : node.inputs) changed = add_readers(id, stages) || changed;
      }
    }
  }

  /// Preparation nodes go where they are read.
  void place_preparation() {
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (node.part != Part::kPrepare || node.op->flags & kView) continue;
      for (const int s : preparing_stages(node)) stage(s).prepare.push_back({static_cast<int>(n)});
    }
  }

  /// Running statistics go where their batch statistics are computed: every stage that prepares
  /// them has a copy, of the same bits.
  void place_statistics() {
    std::map<ValueId, NodeId> updating;  // the first node of each statistic
    for (std::size_t i = 0; i < training_.statistics.size(); ++i) {
      const NodeId producer = graph_[training_.statistics[i].batch_mean].producer;
      const std::set<int> stages = stages_of_statistics(producer);
      for (const int s : stages) stage(s).statistics.push_back(static_cast<int>(i));
      const auto [first, added] =
          updating.try_emplace(training_.statistics[i].state_mean, producer);
      PT_CHECK(added || stages_of_statistics(first->second) == stages, kUsage,
               "\"{}\" and \"{}\" update the same running statistics, so they have to lie in one "
               "stage; use {} 1, or {} with cuts that are not between them",
               printable(graph_[first->second].name), printable(graph_[producer].name),
               setting("gpus"), setting("split"));
      for (const ValueId state :
           {training_.statistics[i].state_mean, training_.statistics[i].state_variance}) {
        PT_CHECK(std::ranges::includes(stages, readers_[at(state)]), kUsage,
                 "\"{}\" updates running statistics that a node of another stage reads; use {} 1, "
                 "or {} with cuts that are not between them",
                 printable(graph_[producer].name), setting("gpus"), setting("split"));
      }
    }
  }

  std::set<int> stages_of_statistics(NodeId producer) const {
    return graph_[producer].part == Part::kPrepare
               ? preparing_stages(graph_[producer])
               : std::set<int>{out_.stage_of_node[static_cast<std::size_t>(producer.index)]};
  }

  void place_parameters() {
    for (std::size_t i = 0; i < training_.parameters.size(); ++i) {
      const Parameter& parameter = training_.parameters[i];
      const std::set<int>& stages = readers_[at(parameter.value)];
      for (const int s : stages) {
        stage(s).parameters.push_back(static_cast<int>(i));
        if (stages.size() > 1) stage(s).shared_parameters.push_back(static_cast<int>(i));
      }
      out_.owner.push_back(stages.empty() ? -1 : *stages.begin());
      out_.has_tied_stages = out_.has_tied_stages || (stages.size() > 1 && parameter.gradient);
    }
    std::map<ValueId, int> accumulation_of;
    for (std::size_t i = 0; i < training_.accumulations.size(); ++i) {
      accumulation_of[training_.accumulations[i].accumulator] = static_cast<int>(i);
    }
    for (StageSlice& slice : out_.stages) {
      std::set<ValueId> needed;
      for (const int i : slice.parameters) {
        if (const ValueId gradient = training_.parameters[static_cast<std::size_t>(i)].gradient)
          needed.insert(gradient);
      }
      std::vector<NodeId> finish;
      for (std::size_t n = graph_.nodes.size(); n-- > 0;) {
        const Node& node = graph_.nodes[n];
        if (node.part != Part::kFinish) continue;
        if (std::none_of(node.outputs.begin(), node.outputs.end(),
                         [&](ValueId id) { return needed.contains(id); }))
          continue;
        for (const ValueId id : node.inputs) {
          if (id) needed.insert(id);
        }
        if (!(node.op->flags & kView)) finish.push_back({static_cast<int>(n)});
      }
      slice.finish.assign(finish.rbegin(), finish.rend());
      const std::set<int> local(slice.accumulations.begin(), slice.accumulations.end());
      for (const ValueId id : needed) {
        const auto found = accumulation_of.find(id);
        if (found != accumulation_of.end() && !local.contains(found->second)) {
          slice.remote_accumulations.push_back(found->second);
        }
      }
    }
  }

  void find_edges() {
    std::map<std::tuple<bool, int, int>, std::set<ValueId>> crossing;
    const auto read = [&](ValueId id, int s) {
      const ValueId source = root(id);
      const NodeId producer = graph_[source].producer;
      if (!producer) return;
      const int from = out_.stage_of_node[static_cast<std::size_t>(producer.index)];
      if (from < 0 || from == s) return;
      crossing[{graph_[source].role == Role::kGradient, from, s}].insert(source);
    };
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      const int s = out_.stage_of_node[n];
      if (s < 0 || graph_.nodes[n].op->flags & kView) continue;
      for (const ValueId id : graph_.nodes[n].inputs) {
        if (id) read(id, s);
      }
    }
    for (const Accumulation& accumulation : training_.accumulations) {
      read(accumulation.contribution,
           out_.stage_of_node[static_cast<std::size_t>(accumulation.consumer.index)]);
    }
    for (const BatchedValue& batched : training_.batched_values)
      read(batched.value, stage_of(batched));
    for (const auto& [key, values] : crossing) {
      const auto [gradient, from, to] = key;
      PT_CHECK(gradient == (from > to), kInternal,
               "a value crosses from stage {} to stage {} against the flow", from, to);
      ValueEdge edge{from, to, gradient, {values.begin(), values.end()}, 0};
      for (const ValueId id : edge.values) edge.bytes += graph_[id].type.bytes();
      out_.edges.push_back(std::move(edge));
    }
  }

  const TrainingGraph& training_;
  const Graph& graph_;
  Slices out_;
  std::vector<std::set<int>> readers_;
};

}  // namespace

Slices slice_stages(const TrainingGraph& training, const std::vector<int>& stage_of_forward,
                    int stage_count) {
  return Slicer(training, stage_of_forward, stage_count).run();
}

std::vector<CompletedGradient> completion_order(const TrainingGraph& training, const Slices& slices,
                                                int stage) {
  const StageSlice& slice = slices.stages[static_cast<std::size_t>(stage)];
  std::vector<CompletedGradient> out;
  std::vector<bool> placed(slice.accumulations.size(), false);
  const auto place = [&](const std::vector<NodeId>& nodes) {
    for (const NodeId node : nodes) {
      for (const ValueId output : training.graph[node].outputs) {
        for (std::size_t k = 0; k < placed.size(); ++k) {
          const int i = slice.accumulations[k];
          const ValueId value = training.accumulations[static_cast<std::size_t>(i)].contribution;
          if (placed[k] || slices.root[static_cast<std::size_t>(value.index)] != output) continue;
          out.push_back({i, node});
          placed[k] = true;
        }
      }
    }
  };
  place(slice.backward);
  std::vector<CompletedGradient> backward = std::move(out);
  out.clear();
  place(slice.batch_gradient);
  for (std::size_t k = 0; k < placed.size(); ++k) {
    if (!placed[k]) backward.push_back({slice.accumulations[k], {}});
  }
  backward.insert(backward.end(), out.begin(), out.end());
  return backward;
}

}  // namespace pipetrain
