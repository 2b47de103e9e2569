// A model as read: the file, the rules for its tensors, and which of them are trained separately.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx_io/model.h"
#include "passes/parameters.h"
#include "train/config.h"

namespace pipetrain {

struct LoadedModel {
  OnnxModel file;   // as in the file: what export writes back
  OnnxModel model;  // with separate copies of merged tensors: what is trained
  std::map<std::string, TensorRule> rules;
  std::vector<UntiedCopy> copies;

  /// Whether the file says how many samples the model takes at a time.
  bool has_fixed_batch() const;
};

/// Reads the file. A tensor that could not be written back is not trained. Error (kModel, kUsage)
/// for an invalid model.
LoadedModel load_model(const ModelConfig& config);

}  // namespace pipetrain
