#include "pipeline/stage_layout.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "graph/op.h"

namespace pipetrain {
namespace {

class Planner {
 public:
  Planner(const TrainingGraph& training, const Slices& slices, int stage, bool split)
      : training_(training),
        graph_(training.graph),
        slices_(slices),
        slice_(slices.stages[static_cast<std::size_t>(stage)]),
        stage_(stage),
        split_(split) {}

  StageLayout run() {
    place_outside_values();
    find_uses();
    place_parameters();
    place_handed_on();
    place_saved();
    place_direct();
    place_temporaries();
    return std::move(layout_);
  }

 private:
  ValueId root(ValueId id) const { return slices_.root[static_cast<std::size_t>(id.index)]; }

  void place_outside_values() {
    std::size_t next = 0;
    for (const GraphInput& input : training_.inputs) layout_.table[input.value] = next++;
    if (training_.loss.label) layout_.table[training_.loss.label] = next;
    ++next;
    for (const ValueEdge& edge : slices_.edges) {
      if (edge.to != stage_) continue;
      for (const ValueId id : edge.values) layout_.table[id] = next++;
    }
    for (const auto& [id, index] : layout_.table) layout_.location[id] = {Space::kTable, index};
  }

  /// Phases: 0 F, 1 B (or I), 2 W. Records who makes and who reads every root.
  void find_uses() {
    const auto visit = [&](const std::vector<NodeId>& nodes, int phase) {
      for (const NodeId id : nodes) {
        for (const ValueId input : graph_[id].inputs) {
          if (input) read_in_[root(input)].insert(phase);
        }
        for (const ValueId output : graph_[id].outputs) made_in_[output] = phase;
      }
    };
    visit(slice_.forward, 0);
    if (split_) {
      visit(slice_.input_gradient, 1);
      visit(slice_.weight_gradient, 2);
    } else {
      visit(slice_.backward, 1);
    }
    const int weight_phase = split_ ? 2 : 1;
    for (const int i : slice_.accumulations) {
      read_in_[root(training_.accumulations[static_cast<std::size_t>(i)].contribution)].insert(
          weight_phase);
    }
  }

  void place_parameters() {
    std::size_t offset = 0;
    for (const int i : slice_.parameters) {
      const ValueId id = training_.parameters[static_cast<std::size_t>(i)].value;
      layout_.location[id] = {Space::kParameter, offset};
      offset += aligned(graph_[id].type.bytes());
    }
    for (const NodeId id : slice_.prepare) {
      for (const ValueId output : graph_[id].outputs) {
        layout_.location[output] = {Space::kPrepared, layout_.prepared_bytes};
        layout_.prepared_bytes += aligned(graph_[output].type.bytes());
      }
    }
    for (const int i : slice_.accumulations) place_accumulator(i);
    for (const int i : slice_.remote_accumulations) place_accumulator(i);
  }

  void place_accumulator(int i) {
    layout_.location[training_.accumulations[static_cast<std::size_t>(i)].accumulator] = {
        Space::kAccumulator, static_cast<std::size_t>(i)};
  }

  void place_handed_on() {
    for (const ValueEdge& edge : slices_.edges) {
      if (edge.from != stage_) continue;
      std::size_t& bytes = edge.gradient ? layout_.gradient_out_bytes : layout_.forward_out_bytes;
      for (const ValueId id : edge.values) {
        if (layout_.location.contains(id)) continue;
        layout_.location[id] = {edge.gradient ? Space::kGradientOut : Space::kForwardOut, bytes};
        bytes += aligned(graph_[id].type.bytes());
      }
    }
  }

  /// What a phase makes and a later one reads is kept in the slot.
  void place_saved() {
    for (const auto& [id, phase] : made_in_) {
      const auto readers = read_in_.find(id);
      if (layout_.location.contains(id) || readers == read_in_.end()) continue;
      if (*readers->second.rbegin() > phase) {
        layout_.location[id] = {Space::kSlot, layout_.slot_bytes};
        layout_.slot_bytes += aligned(graph_[id].type.bytes());
      }
    }
  }

  void place_direct() {
    std::map<ValueId, int> uses;
    for (const int i : slice_.accumulations)
      ++uses[root(training_.accumulations[static_cast<std::size_t>(i)].contribution)];
    for (const int i : slice_.accumulations) {
      const ValueId id = root(training_.accumulations[static_cast<std::size_t>(i)].contribution);
      const auto made = made_in_.find(id);
      if (uses[id] == 1 && !layout_.location.contains(id) && made != made_in_.end() &&
          made->second > 0)
        layout_.direct[id] = i;
    }
  }

  void place_temporaries() {
    if (split_) {
      place_phase(slice_.forward);
      place_phase(slice_.input_gradient);
      place_phase(slice_.weight_gradient);
    } else {
      place_phase(slice_.forward);
      place_phase(slice_.backward);
    }
    place_phase(slice_.finish);
  }

  void place_phase(const std::vector<NodeId>& nodes) {
    std::map<ValueId, Lifetime> lifetimes;
    const int end = static_cast<int>(nodes.size());
    for (int n = 0; n < end; ++n) {
      const Node& node = graph_[nodes[static_cast<std::size_t>(n)]];
      for (const ValueId id : node.outputs) {
        if (!layout_.location.contains(id)) lifetimes[id] = {graph_[id].type.bytes(), n, n};
      }
      for (const ValueId id : node.inputs) {
        if (!id) continue;
        const auto found = lifetimes.find(root(id));
        if (found != lifetimes.end()) found->second.last = n;
      }
    }
    // Read after the last node of the phase.
    const auto keep = [&](ValueId id) {
      if (!id) return;
      const auto found = lifetimes.find(root(id));
      if (found != lifetimes.end()) found->second.last = end;
    };
    keep(training_.loss.loss_sum);
    keep(training_.loss.correct);
    for (const int i : slice_.statistics) {
      keep(training_.statistics[static_cast<std::size_t>(i)].batch_mean);
      keep(training_.statistics[static_cast<std::size_t>(i)].batch_variance);
    }
    for (const int i : slice_.parameters)
      keep(training_.parameters[static_cast<std::size_t>(i)].gradient);

    std::vector<ValueId> ids;
    std::vector<Lifetime> buffers;
    for (const auto& [id, lifetime] : lifetimes) {
      ids.push_back(id);
      buffers.push_back(lifetime);
    }
    std::size_t total = 0;
    const std::vector<std::size_t> offsets = pack(buffers, &total);
    for (std::size_t i = 0; i < ids.size(); ++i)
      layout_.location[ids[i]] = {Space::kTemporary, offsets[i]};
    layout_.temporary_bytes = std::max(layout_.temporary_bytes, total);
  }

  const TrainingGraph& training_;
  const Graph& graph_;
  const Slices& slices_;
  const StageSlice& slice_;
  int stage_;
  bool split_;
  StageLayout layout_;
  std::map<ValueId, int> made_in_;
  std::map<ValueId, std::set<int>> read_in_;
};

}  // namespace

std::vector<std::size_t> pack(const std::vector<Lifetime>& buffers, std::size_t* total) {
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // Large first: the small ones fit into what is left between them.
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return buffers[a].bytes > buffers[b].bytes;
  });
  std::vector<std::size_t> offsets(buffers.size(), 0);
  std::vector<std::size_t> placed;
  *total = 0;
  for (const std::size_t i : order) {
    std::vector<std::pair<std::size_t, std::size_t>>
        taken;  // [begin, end) of buffers alive at the same time
    for (const std::size_t j : placed) {
      if (buffers[j].first <= buffers[i].last && buffers[i].first <= buffers[j].last) {
        taken.emplace_back(offsets[j], offsets[j] + aligned(buffers[j].bytes));
      }
    }
    std::sort(taken.begin(), taken.end());
    std::size_t offset = 0;
    for (const auto& [begin, end] : taken) {
      if (offset + aligned(buffers[i].bytes) <= begin) break;
      offset = std::max(offset, end);
    }
    offsets[i] = offset;
    *total = std::max(*total, offset + aligned(buffers[i].bytes));
    placed.push_back(i);
  }
  return offsets;
}

StageLayout lay_out_stage(const TrainingGraph& training, const Slices& slices, int stage,
                          bool split_backward) {
  return Planner(training, slices, stage, split_backward).run();
}

}  // namespace pipetrain
