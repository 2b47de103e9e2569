// Which nodes of a model its outputs depend on, and whether all of them are supported.
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "onnx_io/model.h"

namespace pipetrain {

/// Names of the values that the targets depend on.
std::unordered_set<std::string> needed_values(const OnnxModel& model,
                                              const std::vector<std::string>& targets);

/// Whether one of the node's results is among them.
bool is_needed(const OnnxNode& node, const std::unordered_set<std::string>& needed);

/// Error (kModel) that lists the needed nodes whose operators are not supported.
void refuse_unsupported(const OnnxModel& model, const std::unordered_set<std::string>& needed);

/// Error (kModel) for an attribute that a standard operator does not have.
void check_attributes(const OnnxNode& node);

}  // namespace pipetrain
