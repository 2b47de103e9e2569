// Weights and gradients of a runtime by name, whichever stage holds them, and what whole stages
// remember.
#include <algorithm>

#include "base/error.h"
#include "base/index.h"
#include "pipeline/runtime/runtime.h"
#include "processes/process_group.h"

namespace pipetrain {

HostTensor Runtime::read(const std::string& name) const {
  HostTensor out;
  for (const auto& replicas : stages_) {
    if (!replicas.front().stage) continue;
    if (replicas.front().stage->read(name, replicas.front().base_version, out)) break;
  }
  return out;
}

std::vector<KernelTimes> Runtime::take_kernel_times() {
  std::vector<KernelTimes> times(variants_.size());
  for (auto& replicas : stages_) {
    for (Copy& copy : replicas) {
      if (!copy.stage) continue;
      for (std::size_t v = 0; v < times.size(); ++v)
        copy.stage->take_kernel_times(static_cast<int>(v), times[v]);
    }
  }
  return times;
}

HostTensor Runtime::read_gradient(const std::string& name) const {
  HostTensor out;
  for (const auto& replicas : stages_) {
    if (!replicas.front().stage) continue;
    if (replicas.front().stage->read_gradient(name, out)) break;
  }
  return out;
}

void Runtime::write(const std::string& name, const HostTensor& value) {
  for (const auto& replicas : stages_) {
    for (const Copy& copy : replicas) {
      if (copy.stage) copy.stage->write(name, value);
    }
  }
}

void Runtime::exchange_averages() {
  for (auto& replicas : stages_) {
    for (Copy& copy : replicas) {
      if (copy.stage) copy.stage->exchange_averages(copy.base_version);
    }
  }
}

StageContent Runtime::content(int stage, int version) const {
  const Copy& copy = this->copy(stage, 0);
  StageContent out = copy.stage->content(block_of(copy, stage, version));
  out.updates = copy.updates;
  for (int older = std::max(0, version - capacity_[at(stage)].versions + 1); older < version;
       ++older)
    out.stashed[older] = copy.stage->parameters(block_of(copy, stage, older));
  return out;
}

void Runtime::restore(int stage, const StageContent& content) {
  for (Copy& copy : stages_[at(stage)]) {
    copy.base_version = 0;
    if (!copy.stage) continue;
    copy.stage->set_content(content);
    copy.updates = content.updates;
    for (const auto& [version, parameters] : content.stashed)
      copy.stage->set_parameters(version % capacity_[at(stage)].versions, parameters);
  }
}

std::string Runtime::first_nonfinite() const {
  ByteWriter here;
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const Copy& copy = stages_[s].front();
    if (!copy.stage) continue;
    const std::string name = copy.stage->first_nonfinite(copy.base_version);
    if (name.empty()) continue;
    if (!options_.processes) return fmt::format("stage {}, {}", s, name);
    here.put(static_cast<std::int32_t>(s));
    here.put_text(name);
    break;
  }
  if (!options_.processes) return {};
  std::map<int, std::string> found;
  for (const std::string& bytes : options_.processes->all_gather(here.take())) {
    ByteReader reader(bytes);
    if (reader.at_end()) continue;
    const auto stage = reader.get<std::int32_t>();
    found.emplace(stage, reader.get_text());
  }
  return found.empty() ? std::string()
                       : fmt::format("stage {}, {}", found.begin()->first, found.begin()->second);
}

}  // namespace pipetrain
