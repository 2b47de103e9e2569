#include "pipeline/stage/stage_parameters.h"

#include <cstring>
#include <iterator>

#include "base/error.h"
#include "optim/update.h"

namespace pipetrain {

const void* content_for(const TensorType& type, const std::map<std::string, HostTensor>& from,
                        const std::string& name) {
  const auto found = from.find(name);
  if (found == from.end()) return nullptr;
  PT_CHECK(found->second.type() == type, kUsage,
           "\"{}\" is {} in the checkpoint, but {} in the model", printable(name),
           found->second.type().text(), type.text());
  return found->second.view().data;
}

StageParameters::StageParameters(const CompiledStage& compiled, const StageMemory& memory,
                                 const StageExecutor& executor, const OptimizerSettings& optimizer,
                                 int copies)
    : memory_(memory),
      executor_(executor),
      generation_(at(copies), 0),
      // Frozen weights are prepared, too, also where no parameter is written before.
      prepared_(compiled.variants.size(), std::vector<std::uint64_t>(at(copies), kNoGeneration)) {
  std::map<std::string, std::size_t> index;
  for (const ParameterPlace& place : compiled.arena.parameters) {
    index[place.name] = parameters_.size();
    parameters_.push_back({place.name, place.type, place.offset, memory.floats_at(place.state0),
                           memory.floats_at(place.state1), memory.floats_at(place.average),
                           settings_of(optimizer, place.name)});
  }
  for (const CompiledVariant& variant : compiled.variants) {
    std::vector<const ParameterState*>& states = of_.emplace_back();
    for (std::size_t k = 0; k < variant.slice->parameters.size(); ++k) {
      const auto parameter = at(variant.slice->parameters[k]);
      ParameterState& state = parameters_[index.at(variant.training->parameters[parameter].name)];
      states.push_back(&state);
      const Location& gradient = variant.gradient_at[k];
      const TouchedRows* touched = gradient.space == Space::kAccumulator
                                       ? compiled.touched_rows[gradient.offset].get()
                                       : nullptr;
      if (touched && state.state0 && !state.rows)
        state.rows = std::make_unique<TouchedRows>(touched->rows());
    }
  }
}

const std::vector<std::int64_t>* StageParameters::rows_to_update(const ParameterState& parameter,
                                                                 const TouchedRows* touched,
                                                                 double learning_rate,
                                                                 double gradient_scale) {
  TouchedRows* const rows = parameter.rows.get();
  const bool keeps =
      keeps_without_gradient(parameter.optimizer.settings, learning_rate, gradient_scale);
  if (!touched || !keeps) {
    if (rows) rows->set_all();
    return nullptr;
  }
  if (!parameter.state0) return &touched->list();
  if (!rows || rows->all()) return nullptr;
  for (const std::int64_t row : touched->list()) rows->add(row);
  // From then on, a single pass through memory is faster.
  if (std::ssize(rows->list()) > rows->rows() / 2) rows->set_all();
  return rows->all() ? nullptr : &rows->list();
}

HostTensor StageParameters::download(const TensorType& type, const void* data) const {
  HostTensor out(type);
  executor_.move(out.view().data, data, type.bytes());
  return out;
}

bool StageParameters::read(const std::string& name, int copy, HostTensor& out) const {
  for (const ParameterState& parameter : parameters_) {
    if (parameter.name != name) continue;
    out = download(parameter.type, address(parameter, copy));
    return true;
  }
  return false;
}

bool StageParameters::write(const std::string& name, const HostTensor& value) {
  for (const ParameterState& parameter : parameters_) {
    if (parameter.name != name) continue;
    PT_CHECK(value.type() == parameter.type, kInternal, "{} is {}, not {}", printable(name),
             parameter.type.text(), value.type().text());
    for (int copy = 0; copy < static_cast<int>(generation_.size()); ++copy) {
      executor_.move(address(parameter, copy), value.view().data, parameter.type.bytes());
      note_change(copy);
    }
    if (parameter.average)
      executor_.move(parameter.average, value.view().data, parameter.type.bytes());
    return true;
  }
  return false;
}

std::map<std::string, HostTensor> StageParameters::all(int copy) const {
  std::map<std::string, HostTensor> out;
  for (const ParameterState& parameter : parameters_)
    out[parameter.name] = download(parameter.type, address(parameter, copy));
  return out;
}

void StageParameters::set_all(int copy, const std::map<std::string, HostTensor>& values) {
  for (const ParameterState& parameter : parameters_) {
    const void* content = content_for(parameter.type, values, parameter.name);
    PT_CHECK(content != nullptr, kUsage, "the checkpoint has no \"{}\"", printable(parameter.name));
    executor_.move(address(parameter, copy), content, parameter.type.bytes());
  }
  note_change(copy);
}

void StageParameters::add_to(StageContent& content, int copy) const {
  content.weights.merge(all(copy));
  for (const ParameterState& parameter : parameters_) {
    const float* states[] = {parameter.state0, parameter.state1};
    for (int slot = 0; slot < 2; ++slot) {
      if (states[slot])
        content.states[slot][parameter.name] = download(parameter.type, states[slot]);
    }
    if (parameter.average)
      content.averages[parameter.name] = download(parameter.type, parameter.average);
  }
}

/// Reads and writes only rows with a state other than zero, here or in the content.
void StageParameters::take_states_of_rows(const ParameterState& parameter,
                                          const StageContent& content) const {
  TouchedRows& rows = *parameter.rows;
  const std::size_t bytes = parameter.type.bytes() / at(rows.rows());
  const std::vector<std::byte> zeros(bytes);
  float* const states[] = {parameter.state0, parameter.state1};
  const std::byte* found[] = {nullptr, nullptr};
  for (std::size_t slot = 0; slot < 2; ++slot) {
    if (!states[slot]) continue;
    found[slot] = static_cast<const std::byte*>(
        content_for(parameter.type, content.states[slot], parameter.name));
    for (std::int64_t row = 0; found[slot] && row < rows.rows(); ++row) {
      if (std::memcmp(found[slot] + at(row) * bytes, zeros.data(), bytes) != 0) rows.add(row);
    }
  }
  for (std::size_t slot = 0; slot < 2; ++slot) {
    auto* const to = reinterpret_cast<std::byte*>(states[slot]);
    for (const std::int64_t row : rows.list()) {
      if (found[slot]) std::memcpy(to + at(row) * bytes, found[slot] + at(row) * bytes, bytes);
    }
  }
}

void StageParameters::take_states(const StageContent& content) {
  for (const ParameterState& parameter : parameters_) {
    const bool by_rows = parameter.rows && !parameter.rows->all();
    if (by_rows) take_states_of_rows(parameter, content);
    float* states[] = {parameter.state0, parameter.state1};
    for (int slot = 0; slot < 2; ++slot) {
      if (!states[slot] || by_rows) continue;
      if (const void* found = content_for(parameter.type, content.states[slot], parameter.name))
        executor_.move(states[slot], found, parameter.type.bytes());
    }
    // Without a saved average it starts at the weights.
    if (!parameter.average) continue;
    const void* found = content_for(parameter.type, content.averages, parameter.name);
    if (!found) found = content_for(parameter.type, content.weights, parameter.name);
    if (found) executor_.move(parameter.average, found, parameter.type.bytes());
  }
}

void StageParameters::exchange_averages(int copy) {
  for (const ParameterState& parameter : parameters_) {
    if (!parameter.average) continue;
    std::byte* weights = address(parameter, copy);
    const HostTensor before = download(parameter.type, weights);
    const HostTensor average = download(parameter.type, parameter.average);
    executor_.move(weights, average.view().data, parameter.type.bytes());
    executor_.move(parameter.average, before.view().data, parameter.type.bytes());
  }
  note_change(copy);
}

std::string StageParameters::first_nonfinite(int copy) const {
  for (const ParameterState& parameter : parameters_) {
    if (!executor_.is_finite(floats(address(parameter, copy), parameter.type)))
      return fmt::format("weight \"{}\"", printable(parameter.name));
  }
  return {};
}

}  // namespace pipetrain
