#include "passes/restored_biases.h"

#include <fmt/format.h>

#include <string>
#include <unordered_map>

#include "base/error.h"
#include "base/setting.h"
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

std::vector<RemovedBias> removed_biases(const OnnxModel& model) {
  std::vector<RemovedBias> removed;
  std::unordered_map<std::string, const OnnxInitializer*> initializers;  // by name
  std::unordered_map<std::string, std::size_t> places;  // index in removed, by name
  for (const OnnxInitializer& initializer : model.initializers)
    initializers.emplace(initializer.name, &initializer);
  for (std::size_t n = 0; n < model.nodes.size(); ++n) {
    const OnnxNode& node = model.nodes[n];
    if (node.inputs.size() != kBias || !node.function.empty()) continue;
    const auto found = initializers.find(node.inputs[kWeight]);
    if (found == initializers.end()) continue;
    const OnnxInitializer& weight = *found->second;
    if (!is_float(weight.file_dtype) || !weight.value) continue;
    const std::int64_t size = bias_size(node, weight.shape);
    const std::string name = removed_bias_of(model, node);
    if (size <= 0 || name.empty() || initializers.contains(name)) continue;
    const auto [place, is_new] = places.emplace(name, removed.size());
    if (is_new) {
      removed.push_back({name, weight.name, weight.file_dtype, size, {n}});
    } else if (removed[place->second].weight == weight.name) {  // the layer is called again
      removed[place->second].nodes.push_back(n);
    }
  }
  return removed;
}

void restore_biases(OnnxModel& model, const std::vector<RemovedBias>& biases) {
  for (const RemovedBias& removed : biases) {
    OnnxInitializer bias;
    bias.name = removed.name;
    bias.file_dtype = removed.dtype;
    bias.shape = Shape{removed.size};
    bias.value = HostTensor(TensorType{bias.file_dtype, bias.shape});
    for (const std::size_t node : removed.nodes)
      model.nodes.edit()[node].inputs.push_back(removed.name);
    model.initializers.push_back(std::move(bias));
  }
}

std::string note_on_missing_biases(const std::vector<RemovedBias>& biases) {
  if (biases.empty()) return {};
  const bool one = biases.size() == 1;
  return fmt::format(
      "{} of zeros that PyTorch's exporter removed {} not trained: {}{}; to train {}, as PyTorch "
      "does, give {} pytorch",
      one ? "a bias" : fmt::format("{} biases", biases.size()), one ? "is" : "are",
      printable(biases[0].name), one ? "" : ", …", one ? "it" : "them", setting("tie"));
}

}  // namespace pipetrain
