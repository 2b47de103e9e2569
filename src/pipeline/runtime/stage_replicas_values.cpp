// Access to weights and gradients by name, and to the state of whole stages.
#include <algorithm>

#include "pipeline/runtime/stage_replicas.h"

namespace pipetrain {

HostTensor StageReplicas::read(const std::string& name) const {
  HostTensor out;
  for (const auto& replicas : replicas_) {
    const StageReplica& first = replicas.front();
    if (first.stage && first.stage->read(name, first.base_version, out)) break;
  }
  return out;
}

bool StageReplicas::write(const std::string& name, const HostTensor& value) {
  bool found = false;
  for (const auto& replicas : replicas_) {
    for (const StageReplica& replica : replicas) {
      if (replica.stage && replica.stage->write(name, value)) found = true;
    }
  }
  return found;
}

HostTensor StageReplicas::read_gradient(const std::string& name) const {
  HostTensor out;
  for (const auto& replicas : replicas_) {
    const StageReplica& first = replicas.front();
    if (first.stage && first.stage->read_gradient(name, out)) break;
  }
  return out;
}

void StageReplicas::exchange_averages() {
  for (auto& replicas : replicas_) {
    for (StageReplica& replica : replicas) {
      if (replica.stage) replica.stage->exchange_averages(replica.base_version);
    }
  }
}

void StageReplicas::release_activations() {
  for (auto& replicas : replicas_) {
    for (StageReplica& replica : replicas) {
      if (replica.stage) replica.stage->release_activations();
    }
  }
}

StageContent StageReplicas::content(int stage, int version) const {
  const StageReplica& first = of(stage).front();
  StageContent out = first.stage->content(block_of(first, stage, version));
  out.updates = first.updates;
  for (int older = std::max(0, version - setup_.capacity[at(stage)].versions + 1); older < version;
       ++older)
    out.stashed[older] = first.stage->parameters(block_of(first, stage, older));
  if (setup_.update_shares(stage) > 1) merge(states(stage), out);
  return out;
}

std::map<std::string, HostTensor> StageReplicas::weights(int stage) const {
  const StageReplica& first = of(stage).front();
  return first.stage->weights(block_of(first, stage, 0));
}

StageContent StageReplicas::states(int stage) const {
  StageContent out;
  for (const StageReplica& replica : of(stage)) {
    if (!replica.stage) continue;
    StageContent one = replica.stage->content(replica.base_version);
    for (int slot = 0; slot < 2; ++slot) out.states[slot].merge(one.states[slot]);
  }
  return out;
}

void StageReplicas::restore(int stage, const StageContent& content) {
  for (StageReplica& replica : of(stage)) {
    replica.base_version = 0;
    if (!replica.stage) continue;
    replica.stage->set_content(content);
    replica.updates = content.updates;
    for (const auto& [version, parameters] : content.stashed)
      replica.stage->set_parameters(version % setup_.capacity[at(stage)].versions, parameters);
  }
}

std::vector<KernelTimes> StageReplicas::take_kernel_times() {
  std::vector<KernelTimes> times(setup_.variants.size());
  for (auto& replicas : replicas_) {
    for (StageReplica& replica : replicas) {
      for (std::size_t v = 0; replica.stage && v < times.size(); ++v)
        replica.stage->take_kernel_times(static_cast<int>(v), times[v]);
    }
  }
  return times;
}

std::optional<NonfiniteValue> StageReplicas::first_nonfinite() const {
  for (int s = 0; s < stages(); ++s) {
    const StageReplica& first = of(s).front();
    if (!first.stage) continue;
    const std::string name = first.stage->first_nonfinite(first.base_version);
    if (name.empty()) continue;
    NonfiniteValue value;
    value.what = name + " is not finite";
    value.stage = s;
    return value;
  }
  return {};
}

}  // namespace pipetrain
