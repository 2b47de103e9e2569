#include "pipeline/stage/update_owners.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/index.h"

namespace pipetrain {
namespace {

/// Parameters whose gradients are computed from common accumulators.
struct OwnedTogether {
  std::vector<std::size_t> parameters;  // places in StageSlice::parameters
  std::set<int> accumulations;
  std::int64_t elements = 0;
  bool is_tied = false;  // other stages hold one of them too, and need the sums
};

/// The accumulators that a gradient is computed from; `accumulation_of`: by accumulator.
std::set<int> accumulators_of(const TrainingGraph& training,
                              const std::map<ValueId, int>& accumulation_of, ValueId gradient) {
  std::set<int> found;
  std::vector<ValueId> open = {gradient};
  while (!open.empty()) {
    const ValueId id = open.back();
    open.pop_back();
    if (const auto place = accumulation_of.find(id); place != accumulation_of.end()) {
      found.insert(place->second);
      continue;
    }
    const NodeId producer = training.graph[id].producer;
    if (!producer || training.graph[producer].part != Part::kFinish) continue;
    for (const ValueId input : training.graph[producer].inputs) {
      if (input) open.push_back(input);
    }
  }
  return found;
}

std::vector<OwnedTogether> group_parameters(const TrainingGraph& training,
                                            const StageSlice& slice) {
  const std::set<int> shared(slice.shared_parameters.begin(), slice.shared_parameters.end());
  std::map<ValueId, int> accumulation_of;
  for (std::size_t i = 0; i < training.accumulations.size(); ++i)
    accumulation_of[training.accumulations[i].accumulator] = static_cast<int>(i);
  std::vector<OwnedTogether> groups;
  for (std::size_t k = 0; k < slice.parameters.size(); ++k) {
    const Parameter& parameter = training.parameters[at(slice.parameters[k])];
    if (!parameter.gradient) continue;
    OwnedTogether one;
    one.parameters = {k};
    one.accumulations = accumulators_of(training, accumulation_of, parameter.gradient);
    one.elements = training.graph[parameter.value].type.count();
    one.is_tied = shared.contains(slice.parameters[k]);
    std::erase_if(groups, [&](OwnedTogether& other) {
      const bool shares = std::any_of(other.accumulations.begin(), other.accumulations.end(),
                                      [&](int i) { return one.accumulations.contains(i); });
      if (!shares) return false;
      one.parameters.insert(one.parameters.end(), other.parameters.begin(), other.parameters.end());
      one.accumulations.merge(other.accumulations);
      one.elements += other.elements;
      one.is_tied = one.is_tied || other.is_tied;
      return true;
    });
    groups.push_back(std::move(one));
  }
  std::stable_sort(
      groups.begin(), groups.end(),
      [](const OwnedTogether& a, const OwnedTogether& b) { return a.elements > b.elements; });
  return groups;
}

/// The owner of each group, and what each replica then owns.
std::vector<int> spread(const std::vector<OwnedTogether>& groups,
                        std::vector<std::int64_t>& elements) {
  std::vector<int> owners;
  for (const OwnedTogether& group : groups) {
    const auto least = std::min_element(elements.begin(), elements.end());
    owners.push_back(group.is_tied ? kEveryReplica : static_cast<int>(least - elements.begin()));
    if (!group.is_tied) *least += group.elements;
  }
  return owners;
}

}  // namespace

UpdateOwners update_owners(const TrainingGraph& training, const StageSlice& slice, int replicas) {
  UpdateOwners out;
  out.of_parameter.assign(slice.parameters.size(), kEveryReplica);
  out.of_accumulation.assign(training.accumulations.size(), kEveryReplica);
  if (replicas == 1) return out;
  const std::vector<OwnedTogether> groups = group_parameters(training, slice);
  std::vector<std::int64_t> elements(at(replicas), 0);
  const std::vector<int> owners = spread(groups, elements);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const std::size_t k : groups[g].parameters) out.of_parameter[k] = owners[g];
    for (const int i : groups[g].accumulations) out.of_accumulation[at(i)] = owners[g];
  }
  return out;
}

int largest_share(const TrainingGraph& training, const StageSlice& slice, int replicas) {
  std::vector<std::int64_t> elements(at(replicas), 0);
  spread(group_parameters(training, slice), elements);
  return static_cast<int>(std::max_element(elements.begin(), elements.end()) - elements.begin());
}

}  // namespace pipetrain
