// Which nodes of a model its outputs depend on, and whether all of them are supported.
#pragma once

#include <deque>
#include <set>
#include <string>
#include <vector>

#include "base/name_table.h"
#include "onnx_io/model.h"

namespace pipetrain {

/// What the targets depend on: names of values, and which of the model's nodes. Valid as long as
/// the model and the targets.
struct Needed {
  NameSet values;
  std::vector<bool> nodes;
  std::deque<std::set<std::string>> captured;  // names within sub-graphs
};
Needed find_needed(const OnnxModel& model, const std::vector<std::string>& targets);

/// The values that are computed: the model's outputs, or the one that `output_node` names, or whose
/// node it names. Error (kUsage) if there is none of that name.
std::vector<std::string> targets_of(const OnnxModel& model, const std::string& output_node);

/// The inputs that these values depend on, in the model's order; a single one in any case. Error as
/// of targets_of().
std::vector<OnnxValue> needed_inputs(const OnnxModel& model, const std::string& output_node);

/// Error (kModel) that lists the needed nodes whose operators are not supported, or names a needed
/// tensor of a type that is not. It also names an output that needs nothing of that, if one does.
void refuse_unsupported(const OnnxModel& model, const Needed& needed);

/// Error (kModel) for an attribute that a standard operator does not have.
void check_attributes(const OnnxNode& node);

}  // namespace pipetrain
