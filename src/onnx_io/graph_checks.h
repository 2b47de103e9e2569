// The rules of every ONNX graph, independent of its operators: each value is produced exactly once,
// there are no cycles, and every output exists.
#pragma once

#include "onnx_io/model.h"

namespace pipetrain {

/// Checks names and producers and brings the nodes into topological order, with a warning if they
/// were not. Error (kModel) naming the node or value.
void check_and_sort(OnnxModel& model);

}  // namespace pipetrain
