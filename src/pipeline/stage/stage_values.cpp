// Stage: what it holds, by the names of the model.
#include "pipeline/stage/stage.h"

namespace pipetrain {

bool Stage::read(const std::string& name, int version_copy, HostTensor& out) const {
  return parameters_.read(name, version_copy, out) || statistics_.read(name, out);
}

bool Stage::write(const std::string& name, const HostTensor& value) {
  return parameters_.write(name, value) || statistics_.write(name, value);
}

std::map<std::string, HostTensor> Stage::parameters(int version_copy) const {
  return parameters_.all(version_copy);
}

void Stage::set_parameters(int version_copy, const std::map<std::string, HostTensor>& values) {
  parameters_.set_all(version_copy, values);
}

StageContent Stage::content(int version_copy) const {
  StageContent out;
  parameters_.add_to(out, version_copy);
  statistics_.add_to(out);
  return out;
}

std::map<std::string, HostTensor> Stage::weights(int version_copy) const {
  StageContent out;
  out.weights = parameters(version_copy);
  statistics_.add_to(out);
  return out.weights;
}

void Stage::set_content(const StageContent& content) {
  for (int copy = 0; copy < capacity_.versions; ++copy) parameters_.set_all(copy, content.weights);
  statistics_.take_from(content);
  parameters_.take_states(content);
}

void Stage::exchange_averages(int version_copy) { parameters_.exchange_averages(version_copy); }

bool Stage::read_gradient(const std::string& name, HostTensor& out) const {
  const CompiledVariant& compiled = compiled_.variants.front();
  for (std::size_t k = 0; k < compiled.slice->parameters.size(); ++k) {
    const ParameterState& parameter = *parameters_.of(0)[k];
    const std::byte* gradient = gradients_.of_parameter(compiled, k);
    if (parameter.name != name || !gradient) continue;
    out = HostTensor(parameter.type);
    executor_->move(out.view().data, gradient, parameter.type.bytes());
    return true;
  }
  return false;
}

std::string Stage::first_nonfinite(int version_copy) const {
  std::string name = parameters_.first_nonfinite(version_copy);
  return name.empty() ? gradients_.first_nonfinite() : name;
}

}  // namespace pipetrain
