// Weights and gradients of a runtime by name, whichever stage holds them.
#include "base/error.h"
#include "pipeline/runtime.h"

namespace pipetrain {

HostTensor Runtime::read(const std::string& name) const {
  HostTensor out;
  for (const auto& replicas : stages_) {
    if (replicas.front().stage->read(name, replicas.front().base_version, out)) break;
  }
  return out;
}

HostTensor Runtime::read_gradient(const std::string& name) const {
  HostTensor out;
  for (const auto& replicas : stages_) {
    if (replicas.front().stage->read_gradient(name, out)) break;
  }
  return out;
}

void Runtime::write(const std::string& name, const HostTensor& value) {
  for (const auto& replicas : stages_) {
    for (const Copy& copy : replicas) copy.stage->write(name, value);
  }
}

std::string Runtime::first_nonfinite() const {
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const Copy& copy = stages_[s].front();
    const std::string name = copy.stage->first_nonfinite(copy.base_version);
    if (!name.empty()) return fmt::format("stage {}, {}", s, name);
  }
  return {};
}

}  // namespace pipetrain
