#include "pipeline/stage/stage_layout.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>

#include "base/error.h"
#include "graph/op.h"

namespace pipetrain {
namespace {

class Planner {
 public:
  Planner(const TrainingGraph& training, const Slices& slices, int stage, bool split,
          bool one_micro_batch)
      : training_(training),
        graph_(training.graph),
        slices_(slices),
        slice_(slices.stages[static_cast<std::size_t>(stage)]),
        stage_(stage),
        split_(split),
        one_micro_batch_(one_micro_batch && !split) {}

  StageLayout run() {
    place_outside_values();
    find_uses();
    if (one_micro_batch_) find_prepared();
    place_parameters();
    place_handed_on();
    place_moments();
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

  /// Phases: 0 F, 1 B (or I), 2 W. Records the producer and the readers of every root.
  void find_uses() {
    const auto visit = [&](const std::vector<NodeId>& nodes, int phase) {
      for (const NodeId id : nodes) {
        for (const ValueId input : graph_[id].inputs) {
          if (input) read_in_[root(input)].insert(phase);
        }
        for (const ValueId output : graph_[id].outputs) made_in_[output] = phase;
      }
    };
    visit(slice_.forward, kForward);
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
    for (const int i : slice_.batched_values)
      read_in_[root(training_.batched_values[static_cast<std::size_t>(i)].value)].insert(
          weight_phase);
    // Running statistics read moments after the forward pass, whether or not the backward does.
    for_moments([&](ValueId id) {
      if (made_in_.contains(id)) read_in_[id].insert(1);
    });
  }

  /// Prepared weights that only the passes read are values of a phase of its own, before F.
  void find_prepared() {
    std::set<ValueId> read_later;
    for_moments([&](ValueId id) { read_later.insert(id); });
    for (const auto* nodes : {&slice_.batch_gradient, &slice_.finish}) {
      for (const NodeId id : *nodes) {
        for (const ValueId input : graph_[id].inputs) {
          if (input) read_later.insert(root(input));
        }
      }
    }
    for (const NodeId id : slice_.prepare) {
      for (const ValueId input : graph_[id].inputs) {
        if (input) read_in_[root(input)].insert(kPreparation);
      }
      for (const ValueId output : graph_[id].outputs) {
        if (read_later.contains(output)) continue;
        made_in_[output] = kPreparation;
        layout_.prepared_in_slot = true;
      }
    }
  }

  /// Calls visit(value) for the mean and variance of each of the slice's statistics.
  template <class Visit>
  void for_moments(const Visit& visit) const {
    for (const int i : slice_.statistics) {
      visit(training_.statistics[static_cast<std::size_t>(i)].batch_mean);
      visit(training_.statistics[static_cast<std::size_t>(i)].batch_variance);
    }
  }

  void place_parameters() {
    std::size_t offset = 0;
    for (const int i : slice_.parameters) {
      const ValueId id = training_.parameters[static_cast<std::size_t>(i)].value;
      layout_.location[id] = {Space::kParameter, offset};
      offset += aligned(graph_[id].type.bytes());
    }
    const auto prepare = [&](ValueId id) {
      if (layout_.location.try_emplace(id, Location{Space::kPrepared, layout_.prepared_bytes})
              .second)
        layout_.prepared_bytes += aligned(graph_[id].type.bytes());
    };
    for_moments([&](ValueId id) {
      if (!made_in_.contains(id)) prepare(id);
    });
    for (const NodeId id : slice_.prepare) {
      for (const ValueId output : graph_[id].outputs) {
        if (!made_in_.contains(output)) prepare(output);
      }
    }
    for (const int i : slice_.accumulations) place_accumulator(i);
    for (const int i : slice_.remote_accumulations) place_accumulator(i);
    for (const int i : slice_.batched_values) {
      const ValueId id = training_.batched_values[static_cast<std::size_t>(i)].batched;
      layout_.location[id] = {Space::kBatched, layout_.batched_bytes};
      layout_.batched_bytes += aligned(graph_[id].type.bytes());
    }
  }

  void place_accumulator(int i) {
    layout_.location[training_.accumulations[static_cast<std::size_t>(i)].accumulator] = {
        Space::kAccumulator, static_cast<std::size_t>(i)};
  }

  /// Moments of the slice's statistics lie side by side, so that one copy takes all of them.
  void place_moments() {
    for_moments([&](ValueId id) {
      if (!made_in_.contains(id) || layout_.location.contains(id)) return;
      layout_.location[id] = {Space::kSlot, layout_.slot_bytes};
      layout_.slot_bytes += aligned(graph_[id].type.bytes());
    });
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

  /// Values that a later phase reads are kept in the slot.
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
    for (const NodeId id : slice_.batch_gradient) {
      for (const ValueId output : graph_[id].outputs) made_in_[output] = kNoMicroBatch;
    }
    const std::set<ValueId> read = read_in_backward();
    for (const int i : slice_.accumulations) {
      const ValueId id = root(training_.accumulations[static_cast<std::size_t>(i)].contribution);
      const auto made = made_in_.find(id);
      if (uses[id] == 1 && !layout_.location.contains(id) && made != made_in_.end() &&
          made->second != 0 && (one_micro_batch_ || !read.contains(id)))
        layout_.direct[id] = i;
    }
    for (const auto& [id, i] : layout_.direct) {
      if (is_kept_by_rows(id, i)) layout_.by_rows.insert(i);
    }
    if (!one_micro_batch_) return;
    for (const auto& [id, i] : layout_.direct) {
      if (made_in_.at(id) == kNoMicroBatch || layout_.by_rows.contains(i))
        layout_.location[id] = {Space::kAccumulator, static_cast<std::size_t>(i)};
    }
  }

  /// What nodes of the backward pass or batches of values read, such as the gradient of an
  /// activation that is that of a weight, too. Accumulators may change before: replicas round and
  /// add up complete ones during the backward pass. With one micro-batch there are no replicas.
  std::set<ValueId> read_in_backward() const {
    std::set<ValueId> read;
    for (const NodeId id : slice_.backward) {
      for (const ValueId input : graph_[id].inputs) {
        if (input) read.insert(root(input));
      }
    }
    for (const int i : slice_.batched_values)
      read.insert(root(training_.batched_values[static_cast<std::size_t>(i)].value));
    return read;
  }

  /// Whether a contribution is the whole gradient of an embedding.
  bool is_kept_by_rows(ValueId contribution, int accumulation) const {
    const std::string_view op = graph_[graph_[contribution].producer].op->name;
    if (op != "GatherGrad" && op != "GatherNDGrad") return false;
    const ValueId sum = training_.accumulations[static_cast<std::size_t>(accumulation)].accumulator;
    return std::any_of(slice_.parameters.begin(), slice_.parameters.end(), [&](int i) {
      return training_.parameters[static_cast<std::size_t>(i)].gradient == sum;
    });
  }

  void place_temporaries() {
    if (layout_.prepared_in_slot) place_phase(slice_.prepare, kPreparation);
    if (split_) {
      place_phase(slice_.forward, kForward);
      place_phase(slice_.input_gradient, 1);
      place_phase(slice_.weight_gradient, 2);
    } else {
      place_phase(slice_.forward, kForward);
      place_phase(slice_.backward, 1);
    }
    place_phase(slice_.batch_gradient, kNoMicroBatch);
    place_phase(slice_.finish, kNoMicroBatch);
  }

  /// Values of this phase alone: in the micro-batch's slot where saved values are not yet written
  /// or no longer read, else in the temporaries.
  void place_phase(const std::vector<NodeId>& nodes, int phase) {
    std::map<ValueId, Lifetime> lifetimes;
    std::map<ValueId, Lifetime> saved =
        phase == kNoMicroBatch ? gradients_during(nodes) : saved_during(nodes, phase);
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
    if (phase == (split_ ? 2 : 1)) {
      for (const int i : slice_.batched_values)
        keep(training_.batched_values[static_cast<std::size_t>(i)].value);
    }
    for (const int i : slice_.parameters)
      keep(training_.parameters[static_cast<std::size_t>(i)].gradient);
    for (const auto& [id, i] : layout_.direct) {
      if (one_micro_batch_) keep(id);
    }

    const std::map<ValueId, ValueId> place_of = take_over_places(nodes, lifetimes, saved);
    std::vector<ValueId> ids;
    std::vector<Lifetime> buffers;
    for (const auto& [id, lifetime] : lifetimes) {
      if (place_of.contains(id)) continue;
      ids.push_back(id);
      buffers.push_back(lifetime);
    }
    if (phase == kNoMicroBatch) {
      place_beside_gradients(ids, buffers, end);
    } else {
      std::vector<PlacedLifetime> taken;
      for (const auto& [id, lifetime] : saved)
        taken.push_back({lifetime, layout_.location.at(id).offset});
      std::size_t total = 0;
      const std::vector<PackedPlace> places = pack_into(buffers, taken, layout_.slot_bytes, &total);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        layout_.location[ids[i]] = {places[i].inside ? Space::kSlot : Space::kTemporary,
                                    places[i].offset};
      }
      layout_.temporary_bytes = std::max(layout_.temporary_bytes, total);
    }
    for (const auto& [id, host] : place_of) layout_.location[id] = layout_.location.at(host);
    for (const auto& [id, i] : layout_.direct) {
      if (one_micro_batch_ && lifetimes.contains(id))
        layout_.accumulators[i] = layout_.location.at(id);
    }
  }

  /// Places values in the temporaries, around the gradients that lie there.
  void place_beside_gradients(const std::vector<ValueId>& ids, const std::vector<Lifetime>& buffers,
                              int end) {
    std::vector<PlacedLifetime> taken;
    for (const auto& [i, place] : layout_.accumulators) {
      const Accumulation& accumulation = training_.accumulations[static_cast<std::size_t>(i)];
      if (place.space == Space::kTemporary)
        taken.push_back({{graph_[accumulation.accumulator].type.bytes(), 0, end}, place.offset});
    }
    std::size_t outside = 0;
    const std::vector<PackedPlace> places =
        pack_into(buffers, taken, std::numeric_limits<std::size_t>::max(), &outside);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      layout_.location[ids[i]] = {Space::kTemporary, places[i].offset};
      layout_.temporary_bytes =
          std::max(layout_.temporary_bytes, places[i].offset + aligned(buffers[i].bytes));
    }
  }

  /// When the accumulators in the slot or the temporaries are in use during finish. A sum of
  /// several may be written over the first.
  std::map<ValueId, Lifetime> gradients_during(const std::vector<NodeId>& nodes) const {
    std::map<ValueId, Lifetime> out;
    const int end = static_cast<int>(nodes.size());
    for (const auto& [i, place] : layout_.accumulators) {
      const ValueId id = training_.accumulations[static_cast<std::size_t>(i)].accumulator;
      out[id] = {graph_[id].type.bytes(), 0, end};
    }
    for (int n = 0; n < end; ++n) {
      for (const ValueId id : graph_[nodes[static_cast<std::size_t>(n)]].inputs) {
        const auto found = id ? out.find(root(id)) : out.end();
        if (found != out.end()) found->second.last = n;
      }
    }
    for (const int i : slice_.parameters) {
      const ValueId id = training_.parameters[static_cast<std::size_t>(i)].gradient;
      const auto found = id ? out.find(root(id)) : out.end();
      if (found != out.end()) found->second.last = end;
    }
    return out;
  }

  /// When the slot's values are in use during a phase, in indices of its nodes.
  std::map<ValueId, Lifetime> saved_during(const std::vector<NodeId>& nodes, int phase) const {
    const int end = static_cast<int>(nodes.size());
    std::map<ValueId, Lifetime> out;
    for (const auto& [id, location] : layout_.location) {
      if (location.space != Space::kSlot) continue;
      const auto made = made_in_.find(id);
      const auto read = read_in_.find(id);
      // Values that an earlier phase used alone are dead.
      if (made == made_in_.end() || read == read_in_.end()) continue;
      const int last = *read->second.rbegin();
      if (last <= made->second || made->second > phase || last < phase) continue;
      out[id] = {graph_[id].type.bytes(), made->second == phase ? end : 0, last > phase ? end : 0};
    }
    for (int n = 0; n < end; ++n) {
      const Node& node = graph_[nodes[static_cast<std::size_t>(n)]];
      for (const ValueId id : node.outputs) {
        const auto found = out.find(id);
        if (found != out.end()) found->second.first = n;
      }
      for (const ValueId id : node.inputs) {
        const auto found = id ? out.find(root(id)) : out.end();
        if (found != out.end()) found->second.last = std::max(found->second.last, n);
      }
    }
    // A recompute runs F again.
    if (phase == kForward) {
      for (auto& [id, lifetime] : out) {
        if (made_in_.at(id) == kPreparation) lifetime.last = end;
      }
    }
    // Accumulated or batched after the last node at the latest.
    const auto keep = [&](ValueId id) {
      const auto found = out.find(root(id));
      if (found != out.end()) found->second.last = end;
    };
    for (const int i : slice_.accumulations)
      keep(training_.accumulations[static_cast<std::size_t>(i)].contribution);
    for (const int i : slice_.batched_values)
      keep(training_.batched_values[static_cast<std::size_t>(i)].value);
    return out;
  }

  /// Inputs whose elements a node reads before it writes those of its output.
  static std::size_t inputs_to_write_over(const Node& node) {
    // The gradient of a loss is written over its logits; a Sum reads its second and later operands
    // after it has begun to write.
    if (node.op->name == "SoftmaxCrossEntropyGrad" || node.op->name == "Sum") return 1;
    return node.op->flags & kElementwise ? node.inputs.size() : 0;
  }

  /// In-place results: the output of an element-wise node reuses the memory of an input that is
  /// dead afterwards. Returns output → reused value, whose lifetime grows.
  std::map<ValueId, ValueId> take_over_places(const std::vector<NodeId>& nodes,
                                              std::map<ValueId, Lifetime>& lifetimes,
                                              std::map<ValueId, Lifetime>& saved) const {
    std::map<ValueId, ValueId> place_of;
    for (int n = 0; n < static_cast<int>(nodes.size()); ++n) {
      const Node& node = graph_[nodes[static_cast<std::size_t>(n)]];
      if (node.outputs.size() != 1) continue;
      const ValueId out = node.outputs[0];
      const auto own = lifetimes.find(out);
      if (own == lifetimes.end() || layout_.direct.contains(out)) continue;
      for (std::size_t i = 0; i < std::min(inputs_to_write_over(node), node.inputs.size()); ++i) {
        if (!fits_over(node, i)) continue;
        const ValueId source = root(node.inputs[i]);
        const auto known = place_of.find(source);
        const ValueId host = known == place_of.end() ? source : known->second;
        const auto temporary = lifetimes.find(host);
        const auto slot = saved.find(host);
        Lifetime* lifetime = temporary != lifetimes.end() ? &temporary->second
                             : slot != saved.end()        ? &slot->second
                                                          : nullptr;
        if (!lifetime || lifetime->last != n || lifetime->first > n ||
            lifetime->bytes != own->second.bytes || layout_.direct.contains(source))
          continue;
        lifetime->last = own->second.last;
        place_of[out] = host;
        break;
      }
    }
    return place_of;
  }

  /// Whether the node reads input `i` in the same element order as it writes the output.
  bool fits_over(const Node& node, std::size_t i) const {
    const TensorType& out = graph_[node.outputs[0]].type;
    if (!node.inputs[i]) return false;
    for (std::size_t k = 0; k < node.inputs.size(); ++k) {
      const ValueId id = node.inputs[k];
      if (!id || root(id) != root(node.inputs[i])) continue;
      const TensorType& type = graph_[id].type;
      if (type != out) return false;
      if (node.op->name == "Sum" && k > 0) return false;
    }
    return true;
  }

  static constexpr int kForward = 0;
  static constexpr int kNoMicroBatch = -1;  // batched work has no slot
  static constexpr int kPreparation = -2;
  const TrainingGraph& training_;
  const Graph& graph_;
  const Slices& slices_;
  const StageSlice& slice_;
  int stage_;
  bool split_;
  bool one_micro_batch_;
  StageLayout layout_;
  std::map<ValueId, int> made_in_;
  std::map<ValueId, std::set<int>> read_in_;
};

}  // namespace

StageLayout lay_out_stage(const TrainingGraph& training, const Slices& slices, int stage,
                          bool split_backward, bool one_micro_batch) {
  return Planner(training, slices, stage, split_backward, one_micro_batch).run();
}

}  // namespace pipetrain
