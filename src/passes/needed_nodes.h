// Which nodes of a model its outputs depend on, and whether all of them are supported.
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "onnx_io/model.h"

namespace pipetrain {

/// What the targets depend on: names of values, and which of the model's nodes.
struct Needed {
  std::unordered_set<std::string> values;
  std::vector<bool> nodes;
};
Needed find_needed(const OnnxModel& model, const std::vector<std::string>& targets);

/// Error (kModel) that lists the needed nodes whose operators are not supported.
void refuse_unsupported(const OnnxModel& model, const Needed& needed);

/// Error (kModel) for an attribute that a standard operator does not have.
void check_attributes(const OnnxNode& node);

}  // namespace pipetrain
