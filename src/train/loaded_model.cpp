#include "train/loaded_model.h"

#include <algorithm>

#include "onnx_io/reader.h"
#include "onnx_io/writer.h"

namespace pipetrain {

bool LoadedModel::has_fixed_batch() const {
  return std::any_of(model.inputs.begin(), model.inputs.end(), [](const OnnxValue& input) {
    return !input.dims.empty() && input.dims[0].value > 0;
  });
}

LoadedModel load_model(const ModelConfig& config) {
  LoadedModel loaded;
  loaded.file = read_onnx(config.path);
  loaded.rules = classify_tensors(loaded.file, config.parameters);
  for (auto& [name, rule] : loaded.rules) {
    if (rule.use != TensorUse::kTrained) continue;
    const std::string reason = why_not_writable(loaded.file, name);
    if (!reason.empty()) rule = {TensorUse::kFrozen, reason};
  }
  loaded.model = loaded.file;
  if (config.parameters.untie) loaded.copies = untie_copies(loaded.model, loaded.rules);
  return loaded;
}

}  // namespace pipetrain
