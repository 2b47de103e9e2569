#include "train/loaded_model.h"

#include <algorithm>
#include <utility>

#include "onnx_io/reader.h"
#include "onnx_io/writer.h"

namespace pipetrain {

bool LoadedModel::has_fixed_batch() const {
  return std::any_of(model.inputs.begin(), model.inputs.end(), [](const OnnxValue& input) {
    return !input.dims.empty() && input.dims[0].value > 0;
  });
}

LoadedModel load_model(const ModelConfig& config, std::uint64_t seed) {
  LoadedModel loaded;
  loaded.file = read_onnx(config.path);
  const bool adapts = config.adapters.rank > 0;
  ParameterOptions parameters = config.parameters;
  AdapterOptions adapters = config.adapters;
  // Beside adapters, --train-only names what is trained as well.
  if (adapts) std::swap(adapters.trained_whole, parameters.train_only);
  loaded.rules = classify_tensors(loaded.file, parameters);
  for (auto& [name, rule] : loaded.rules) {
    if (rule.use != TensorUse::kTrained) continue;
    const std::string reason = why_not_writable(loaded.file, name);
    if (!reason.empty()) rule = {TensorUse::kFrozen, reason};
  }
  loaded.model = loaded.file;
  if (parameters.untie) loaded.copies = untie_copies(loaded.model, loaded.rules);
  if (adapts) loaded.adapters = add_adapters(loaded.model, loaded.rules, adapters, seed);
  return loaded;
}

}  // namespace pipetrain
