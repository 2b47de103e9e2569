#include "passes/expanded_parameters.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "passes/exporter_traces.h"
#include "passes/parameter_names.h"

namespace pipetrain {
namespace {

/// The batch size that the model's inputs have; 0: any, or none.
std::int64_t fixed_batch(const OnnxModel& model) {
  if (model.inputs.empty() || model.inputs[0].dims.empty()) return 0;
  return std::max<std::int64_t>(0, model.inputs[0].dims[0].value);
}

bool are_samples_equal(const HostTensor& value) {
  const std::byte* bytes = static_cast<const std::byte*>(value.view().data);
  const std::size_t sample = value.type().bytes() / static_cast<std::size_t>(value.shape()[0]);
  // The tensor equals itself moved by one sample.
  return std::memcmp(bytes, bytes + sample, value.type().bytes() - sample) == 0;
}

Shape with_extent(const Shape& shape, std::int64_t extent) {
  std::vector<std::int64_t> dims(shape.begin(), shape.end());
  dims[0] = extent;
  return Shape(dims);
}

/// The parameter that a tensor is the expansion of; empty if it is none.
std::string parameter_of(const OnnxInitializer& tensor, std::int64_t batch) {
  if (!is_float(tensor.file_dtype) || !tensor.value || tensor.shape.rank() < 2 ||
      tensor.shape[0] != batch || tensor.shape.count() == 0)
    return {};
  const FoldedSources sources = folded_sources(folded_from(tensor.metadata));
  if (sources.parameters.size() != 1 || !are_samples_equal(tensor.value)) return {};
  // A matrix of fresh weights may be of zeros or ones: then its own name has to tell.
  const bool is_named = tensor.name.starts_with("expand") || tensor.name.starts_with("repeat");
  return is_named || !is_uniform(tensor.value) ? sources.parameters[0] : std::string();
}

OnnxNode expand_node(const OnnxModel& model, const std::string& parameter, const std::string& shape,
                     const std::string& tensor) {
  OnnxNode node;
  node.name = parameter + ".expand";
  node.op_type = "Expand";
  node.inputs = {parameter, shape};
  node.outputs = {tensor};
  node.opset = model.opset;
  node.is_added = true;
  return node;
}

}  // namespace

std::vector<ExpandedParameter> restore_expanded_parameters(OnnxModel& model) {
  std::vector<ExpandedParameter> restored;
  const std::int64_t batch = fixed_batch(model);
  if (batch < 2) return restored;
  std::set<std::string> names;
  for (const OnnxInitializer& initializer : model.initializers) names.insert(initializer.name);
  std::vector<OnnxInitializer> shapes;
  for (OnnxInitializer& tensor : model.initializers) {
    const std::string name = parameter_of(tensor, batch);
    const std::string shape_name = name + ".shape";
    if (name.empty() || names.contains(shape_name) || !names.insert(name).second) continue;
    restored.push_back({name, tensor.name});
    OnnxInitializer shape;
    shape.name = shape_name;
    shape.file_dtype = DType::kInt64;
    shape.value = HostTensor::of<std::int64_t>(
        Shape{static_cast<std::int64_t>(tensor.shape.rank())},
        std::vector<std::int64_t>(tensor.shape.begin(), tensor.shape.end()));
    shape.shape = shape.value.shape();
    shapes.push_back(std::move(shape));
    OnnxInitializer parameter;
    parameter.name = name;
    parameter.file_dtype = tensor.file_dtype;
    parameter.shape = with_extent(tensor.shape, 1);
    parameter.value = HostTensor(TensorType{tensor.value.dtype(), parameter.shape});
    std::memcpy(parameter.value.view().data, tensor.value.view().data,
                parameter.value.type().bytes());
    tensor = std::move(parameter);
  }
  std::vector<OnnxNode> nodes;
  for (std::size_t i = 0; i < restored.size(); ++i)
    nodes.push_back(expand_node(model, restored[i].name, shapes[i].name, restored[i].tensor));
  if (!nodes.empty()) {
    std::vector<OnnxNode>& all = model.nodes.edit();
    all.insert(all.begin(), nodes.begin(), nodes.end());
  }
  std::ranges::move(shapes, std::back_inserter(model.initializers));
  return restored;
}

HostTensor expanded(const HostTensor& parameter, std::int64_t batch) {
  HostTensor out(TensorType{parameter.dtype(), with_extent(parameter.shape(), batch)});
  const std::size_t sample = parameter.type().bytes();
  std::byte* to = static_cast<std::byte*>(out.view().data);
  for (std::int64_t i = 0; i < batch; ++i, to += sample)
    std::memcpy(to, parameter.view().data, sample);
  return out;
}

}  // namespace pipetrain
