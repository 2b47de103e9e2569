#include "pipeline/stage/stage_arena.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "tensor/distinct_constants.h"

namespace pipetrain {
namespace {

/// Hands out slices of the workspace.
class Bump {
 public:
  std::size_t take(std::size_t bytes) {
    const std::size_t offset = used_;
    used_ += aligned(bytes);
    return offset;
  }
  std::size_t used() const { return used_; }

 private:
  std::size_t used_ = 0;
};

/// Parameters of all variants by name, in one block per version, placed by the first variant that
/// holds them.
void place_parameters(const std::vector<ArenaVariant>& variants, StageArena& arena) {
  std::map<std::string, std::size_t> known;
  Bump block;
  for (const ArenaVariant& variant : variants) {
    for (const int i : variant.slice->parameters) {
      const Parameter& parameter = variant.training->parameters[static_cast<std::size_t>(i)];
      const auto [found, added] = known.emplace(parameter.name, arena.parameters.size());
      if (added) {
        const TensorType& type = variant.training->graph[parameter.value].type;
        arena.parameters.push_back({parameter.name, type, block.take(type.bytes())});
      }
      ParameterPlace& place = arena.parameters[found->second];
      place.trained = place.trained || parameter.gradient;
    }
  }
  arena.parameter_block_bytes = block.used();
}

/// Notes which parameters this replica updates; all variants that train have the same.
void mark_updated(const std::vector<ArenaVariant>& variants, const UpdateShare& share,
                  StageArena& arena) {
  const ArenaVariant& variant = variants.front();
  const UpdateOwners owners = update_owners(*variant.training, *variant.slice, share.replicas);
  std::map<std::string, int> owner_of;
  for (std::size_t k = 0; k < owners.of_parameter.size(); ++k) {
    const auto parameter = static_cast<std::size_t>(variant.slice->parameters[k]);
    owner_of[variant.training->parameters[parameter].name] = owners.of_parameter[k];
  }
  for (ParameterPlace& place : arena.parameters) {
    const int owner = owner_of[place.name];
    place.updated_here = owner == kEveryReplica || owner == share.replica;
  }
}

void place_accumulators(const std::vector<ArenaVariant>& variants, Bump& bump, StageArena& arena) {
  for (const ArenaVariant& variant : variants) {
    const auto& all = variant.training->accumulations;
    arena.accumulators.resize(std::max(arena.accumulators.size(), all.size()), kNoPlace);
    for (const auto* list : {&variant.slice->accumulations, &variant.slice->remote_accumulations}) {
      for (const int i : *list) {
        std::size_t& offset = arena.accumulators[static_cast<std::size_t>(i)];
        if (offset != kNoPlace || variant.layout->accumulators.contains(i)) continue;
        const ValueId id = all[static_cast<std::size_t>(i)].accumulator;
        const std::size_t bytes = variant.training->graph[id].type.bytes();
        offset = bump.take(bytes);
        arena.memory.gradients += aligned(bytes);
        if (variant.layout->by_rows.contains(i)) arena.sparse.push_back({offset, bytes});
      }
    }
  }
}

/// The parameters whose gradients are written by rows.
std::set<std::string> embeddings_of(const std::vector<ArenaVariant>& variants) {
  std::set<std::string> names;
  for (const ArenaVariant& variant : variants) {
    std::set<ValueId> sums;
    for (const int i : variant.layout->by_rows)
      sums.insert(variant.training->accumulations[static_cast<std::size_t>(i)].accumulator);
    for (const int i : variant.slice->parameters) {
      const Parameter& parameter = variant.training->parameters[static_cast<std::size_t>(i)];
      if (sums.contains(parameter.gradient)) names.insert(parameter.name);
    }
  }
  return names;
}

/// Optimizer states, and the averages of weights.
void place_states(const std::set<std::string>& embeddings, const OptimizerSettings& optimizer,
                  Bump& bump, StageArena& arena) {
  const int states = state_slots(optimizer);
  for (ParameterPlace& parameter : arena.parameters) {
    if (!parameter.trained) continue;
    const std::size_t bytes = parameter.type.bytes();
    const auto keep = [&](std::size_t& place) {
      place = bump.take(bytes);
      arena.memory.optimizer += aligned(bytes);
    };
    const auto keep_state = [&](std::size_t& place) {
      keep(place);
      if (embeddings.contains(parameter.name)) arena.sparse.push_back({place, bytes});
    };
    if (states > 0 && parameter.updated_here) keep_state(parameter.state0);
    if (states > 1 && parameter.updated_here) keep_state(parameter.state1);
    if (optimizer.average_decay > 0) keep(parameter.average);
  }
}

/// Of all leaves but the first.
void place_more_accumulators(const std::vector<ArenaVariant>& variants, int sets, Bump& bump,
                             StageArena& arena) {
  for (int set = 1; set < sets; ++set) {
    std::vector<std::size_t>& places =
        arena.more_accumulators.emplace_back(arena.accumulators.size(), kNoPlace);
    for (const ArenaVariant& variant : variants) {
      for (const int i : variant.slice->accumulations) {
        std::size_t& offset = places[static_cast<std::size_t>(i)];
        if (offset != kNoPlace) continue;
        const ValueId id = variant.training->accumulations[static_cast<std::size_t>(i)].accumulator;
        const std::size_t bytes = variant.training->graph[id].type.bytes();
        offset = bump.take(bytes);
        arena.memory.gradients += aligned(bytes);
      }
    }
  }
}

}  // namespace

StageArena plan_arena(const std::vector<ArenaVariant>& variants, const StageCapacity& capacity,
                      const OptimizerSettings& optimizer, const UpdateShare& share) {
  StageArena arena;
  ArenaBytes& memory = arena.memory;
  place_parameters(variants, arena);
  if (share.replicas > 1) mark_updated(variants, share, arena);
  const auto versions = static_cast<std::size_t>(capacity.versions);
  Bump bump;
  arena.parameter_block = bump.take(arena.parameter_block_bytes * versions);
  memory.parameters = arena.parameter_block_bytes * versions;
  place_accumulators(variants, bump, arena);
  place_more_accumulators(variants, capacity.accumulator_sets, bump, arena);
  place_states(embeddings_of(variants), optimizer, bump, arena);
  std::size_t batched = 0;
  for (const ArenaVariant& variant : variants)
    batched = std::max(batched, variant.layout->batched_bytes);
  arena.batched_bytes = aligned(batched);
  batched = arena.batched_bytes * static_cast<std::size_t>(capacity.batched_sets);
  arena.batched = bump.take(batched);
  memory.gradients += batched;
  std::size_t temporary = 0;
  for (const ArenaVariant& variant : variants) {
    const StageLayout& layout = *variant.layout;
    // A recompute writes the outputs into the slot, since receivers may still read the output
    // buffer.
    const std::size_t slot =
        layout.slot_bytes + (capacity.recompute ? layout.forward_out_bytes : 0);
    arena.slot_bytes = std::max(arena.slot_bytes, slot);
    arena.forward_out_bytes = std::max(arena.forward_out_bytes, layout.forward_out_bytes);
    arena.gradient_out_bytes = std::max(arena.gradient_out_bytes, layout.gradient_out_bytes);
    temporary = std::max(temporary, layout.temporary_bytes);
    arena.prepared.emplace_back();
    for (std::size_t v = 0; v < versions; ++v)
      arena.prepared.back().push_back(bump.take(layout.prepared_bytes));
    memory.parameters += versions * aligned(layout.prepared_bytes);
  }
  memory.activations = arena.slot_bytes * static_cast<std::size_t>(capacity.slots);
  arena.slots = bump.take(memory.activations);
  const std::size_t forward =
      arena.forward_out_bytes * static_cast<std::size_t>(capacity.forward_entries);
  const std::size_t gradient =
      arena.gradient_out_bytes * static_cast<std::size_t>(capacity.gradient_entries);
  arena.forward_out = bump.take(forward);
  arena.gradient_out = bump.take(gradient);
  memory.transfers = forward + gradient;
  arena.temporary = bump.take(temporary);
  for (const ArenaVariant& variant : variants) {
    for (const auto& [i, place] : variant.layout->accumulators) {
      arena.accumulators[static_cast<std::size_t>(i)] =
          (place.space == Space::kSlot ? arena.slots : arena.temporary) + place.offset;
    }
  }
  memory.temporaries = temporary;
  arena.bytes = bump.used();
  return arena;
}

std::vector<std::size_t> shared_workspaces(std::vector<std::size_t> wanted,
                                           const std::vector<std::vector<int>>& placement) {
  std::size_t most = 0;
  std::map<int, std::size_t> largest;  // stage of each device
  for (std::size_t s = 0; s < wanted.size(); ++s) {
    if (placement[s].size() > 1) continue;  // replicas do not share work
    most = std::max(most, wanted[s]);
    const auto found = largest.try_emplace(placement[s].front(), s).first;
    if (wanted[s] > wanted[found->second]) found->second = s;
  }
  for (const auto& [device, stage] : largest) wanted[stage] = std::max(wanted[stage], most);
  return wanted;
}

std::size_t wanted_workspace(const StageSlice& slice,
                             const std::vector<std::size_t>& workspace_bytes) {
  std::size_t workspace = 0;
  for (const auto* nodes :
       {&slice.prepare, &slice.forward, &slice.backward, &slice.batch_gradient, &slice.finish}) {
    for (const NodeId id : *nodes)
      workspace = std::max(workspace, workspace_bytes[static_cast<std::size_t>(id.index)]);
  }
  return workspace;
}

std::vector<StageLayout> lay_out_variants(const std::vector<StageVariant>& variants, int stage,
                                          const StageCapacity& capacity) {
  const auto evaluates = [](const StageVariant& variant) {
    return variant.training->accumulations.empty();
  };
  // Accumulators have one place for all variants.
  const auto evaluations = std::ranges::count_if(variants, evaluates);
  const bool one_micro_batch = capacity.one_micro_batch && std::ssize(variants) - evaluations == 1;
  // With several slots, each would be as large as what the evaluation has in one.
  const bool one_slot = capacity.evaluates_in_one_slot && capacity.slots == 1;
  std::vector<StageLayout> layouts;
  for (const StageVariant& variant : variants) {
    layouts.push_back(lay_out_stage(*variant.training, *variant.slices, stage,
                                    capacity.split_backward && !evaluates(variant),
                                    evaluates(variant) ? one_slot : one_micro_batch));
  }
  return layouts;
}

ArenaBytes predict_arena(const std::vector<StageVariant>& variants, int stage,
                         const StageCapacity& capacity, const OptimizerSettings& optimizer,
                         const UpdateShare& share) {
  const std::vector<StageLayout> layouts = lay_out_variants(variants, stage, capacity);
  std::vector<ArenaVariant> laid_out;
  for (std::size_t v = 0; v < variants.size(); ++v) {
    const StageSlice& slice = variants[v].slices->stages[static_cast<std::size_t>(stage)];
    laid_out.push_back({variants[v].training, &slice, &layouts[v]});
  }
  return plan_arena(laid_out, capacity, optimizer, share).memory;
}

std::size_t constant_bytes(const std::vector<StageVariant>& variants, int stage) {
  DistinctConstants known;
  std::size_t sum = 0;
  for (const StageVariant& variant : variants) {
    const TrainingGraph& training = *variant.training;
    const StageSlice& slice = variant.slices->stages[static_cast<std::size_t>(stage)];
    const auto read = [&](ValueId id) {
      if (!id) return;
      const Value& value = training.graph[variant.slices->root[static_cast<std::size_t>(id.index)]];
      if (value.role != Role::kConstant || !value.data) return;
      if (known.add(value.data).added) sum += aligned(value.data.type().bytes());
    };
    for (const auto* nodes :
         {&slice.prepare, &slice.forward, &slice.backward, &slice.batch_gradient, &slice.finish}) {
      for (const NodeId id : *nodes) {
        for (const ValueId input : training.graph[id].inputs) read(input);
      }
    }
    for (const int i : slice.accumulations)
      read(training.accumulations[static_cast<std::size_t>(i)].contribution);
    for (const int i : slice.batched_values)
      read(training.batched_values[static_cast<std::size_t>(i)].value);
  }
  return sum;
}

}  // namespace pipetrain
