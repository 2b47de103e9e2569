#include "passes/restored_biases.h"

#include <string>
#include <unordered_map>

#include "passes/exporter_traces.h"

namespace pipetrain {
namespace {

constexpr std::size_t kWeight = 1, kBias = 2;  // inputs of Conv, ConvTranspose and Gemm

/// How many elements the bias of a layer has; 0: unknown.
std::int64_t bias_size(const OnnxNode& node, const Shape& weight) {
  if (weight.rank() < 2) return 0;
  if (node.op_type == "Conv") return weight[0];
  if (node.op_type == "ConvTranspose") return weight[1] * node.int_attribute("group", 1);
  if (node.op_type == "Gemm") return weight[node.int_attribute("transB", 0) != 0 ? 0 : 1];
  return 0;
}

}  // namespace

std::vector<RestoredBias> restore_biases(OnnxModel& model) {
  std::vector<RestoredBias> restored;
  std::unordered_map<std::string, std::size_t> initializers, places;  // index by name
  for (const OnnxInitializer& initializer : model.initializers)
    initializers.emplace(initializer.name, initializers.size());
  for (std::size_t n = 0; n < model.nodes.size(); ++n) {
    const OnnxNode& node = model.nodes[n];
    if (node.inputs.size() != kBias || !node.function.empty()) continue;
    const auto found = initializers.find(node.inputs[kWeight]);
    if (found == initializers.end()) continue;
    const OnnxInitializer& weight = model.initializers[found->second];
    if (!is_float(weight.file_dtype) || !weight.value) continue;
    const std::int64_t size = bias_size(node, weight.shape);
    const std::string name = removed_bias_of(model, node);
    if (size <= 0 || name.empty()) continue;
    const auto known = places.find(name);
    if (known != places.end() && restored[known->second].weight == weight.name) {  // called again
      restored[known->second].nodes.push_back(n);
      model.nodes.edit()[n].inputs.push_back(name);
      continue;
    }
    if (!initializers.emplace(name, model.initializers.size()).second) continue;
    OnnxInitializer bias;
    bias.name = name;
    bias.file_dtype = weight.file_dtype;
    bias.shape = Shape{size};
    bias.value = HostTensor(TensorType{bias.file_dtype, bias.shape});
    places[name] = restored.size();
    restored.push_back({name, weight.name, {n}});
    model.nodes.edit()[n].inputs.push_back(name);
    model.initializers.push_back(std::move(bias));
  }
  return restored;
}

}  // namespace pipetrain
