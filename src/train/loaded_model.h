// A model as read: the file, the rules for its tensors, and which of them are trained separately.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "onnx_io/model.h"
#include "passes/adapters.h"
#include "passes/expanded_parameters.h"
#include "passes/parameters.h"
#include "passes/restored_biases.h"
#include "train/config.h"

namespace pipetrain {

struct LoadedModel {
  OnnxModel file;   // as in the file: what export writes back
  OnnxModel model;  // with adapters and what the exporter merged or removed: what is trained
  std::map<std::string, TensorRule> rules;
  std::vector<RemovedBias> biases;          // that are restored
  std::vector<RemovedBias> missing_biases;  // that are not
  std::vector<ExpandedParameter> expanded;
  std::vector<UntiedCopy> copies;
  std::vector<Adapter> adapters;
  std::vector<OnnxValue> inputs;  // without those that what is computed does not depend on

  /// How many samples the model takes at a time, if the file says so; else 0.
  std::int64_t fixed_batch() const;
  bool has_fixed_batch() const { return fixed_batch() > 0; }
  /// Sentences on what the exporter changed and what is not trained.
  std::vector<std::string> notes() const;
};

/// Reads the file. A tensor that could not be written back is a constant. `seed`: of new adapters.
/// Error (kModel, kUsage) for an invalid model.
LoadedModel load_model(const ModelConfig& config, std::uint64_t seed = 1);

}  // namespace pipetrain
