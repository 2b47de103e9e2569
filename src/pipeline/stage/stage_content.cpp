#include "pipeline/stage/stage_content.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "pipeline/stage/stage.h"
#include "pipeline/stage/stage_state.h"

namespace pipetrain {
namespace {

/// The tensor of a name as memory of `type` is to get it; null when there is none.
const void* content_for(const TensorType& type, const std::map<std::string, HostTensor>& from,
                        const std::string& name) {
  const auto found = from.find(name);
  if (found == from.end()) return nullptr;
  PT_CHECK(found->second.type() == type, kUsage,
           "\"{}\" is {} in the checkpoint, but {} in the model", printable(name),
           found->second.type().text(), type.text());
  return found->second.view().data;
}

}  // namespace

HostTensor Stage::download(const TensorType& type, const void* data) const {
  HostTensor out(type);
  move(out.view().data, data, type.bytes());
  return out;
}

std::map<std::string, HostTensor> Stage::parameters(int version_copy) const {
  std::map<std::string, HostTensor> out;
  const std::byte* block =
      parameter_block_ + static_cast<std::size_t>(version_copy) * parameter_block_bytes_;
  for (const ParameterState& parameter : parameters_)
    out[parameter.name] = download(parameter.type, block + parameter.offset);
  return out;
}

void Stage::set_parameters(int version_copy, const std::map<std::string, HostTensor>& values) {
  std::byte* block =
      parameter_block_ + static_cast<std::size_t>(version_copy) * parameter_block_bytes_;
  for (const ParameterState& parameter : parameters_) {
    const void* content = content_for(parameter.type, values, parameter.name);
    PT_CHECK(content != nullptr, kUsage, "the checkpoint has no \"{}\"", printable(parameter.name));
    move(block + parameter.offset, content, parameter.type.bytes());
  }
  copy_generation_[static_cast<std::size_t>(version_copy)] = ++weight_generation_;
}

StageContent Stage::content(int version_copy) const {
  StageContent out;
  out.weights = parameters(version_copy);
  for (const auto& [name, value] : running_) {
    HostTensor& copy = out.weights[name] = HostTensor(value.type());
    std::memcpy(copy.view().data, value.view().data, value.type().bytes());
  }
  for (const ParameterState& parameter : parameters_) {
    const float* states[] = {parameter.state0, parameter.state1};
    for (int slot = 0; slot < 2; ++slot) {
      if (states[slot]) out.states[slot][parameter.name] = download(parameter.type, states[slot]);
    }
    if (parameter.average)
      out.averages[parameter.name] = download(parameter.type, parameter.average);
  }
  return out;
}

void Stage::set_content(const StageContent& content) {
  for (int copy = 0; copy < capacity_.versions; ++copy) set_parameters(copy, content.weights);
  for (auto& [name, value] : running_) {
    const void* found = content_for(value.type(), content.weights, name);
    PT_CHECK(found != nullptr, kUsage, "the checkpoint has no \"{}\"", printable(name));
    std::memcpy(value.view().data, found, value.type().bytes());
  }
  running_changed_ = true;
  for (const ParameterState& parameter : parameters_) {
    float* states[] = {parameter.state0, parameter.state1};
    for (int slot = 0; slot < 2; ++slot) {
      if (!states[slot]) continue;
      if (const void* found = content_for(parameter.type, content.states[slot], parameter.name))
        move(states[slot], found, parameter.type.bytes());
    }
    // Without an average to go on with it begins at the weights.
    if (!parameter.average) continue;
    const void* found = content_for(parameter.type, content.averages, parameter.name);
    if (!found) found = content_for(parameter.type, content.weights, parameter.name);
    if (found) move(parameter.average, found, parameter.type.bytes());
  }
}

void Stage::exchange_averages(int version_copy) {
  std::byte* block =
      parameter_block_ + static_cast<std::size_t>(version_copy) * parameter_block_bytes_;
  for (const ParameterState& parameter : parameters_) {
    if (!parameter.average) continue;
    std::byte* weights = block + parameter.offset;
    const HostTensor before = download(parameter.type, weights);
    const HostTensor average = download(parameter.type, parameter.average);
    move(weights, average.view().data, parameter.type.bytes());
    move(parameter.average, before.view().data, parameter.type.bytes());
  }
  copy_generation_[static_cast<std::size_t>(version_copy)] = ++weight_generation_;
}

}  // namespace pipetrain
