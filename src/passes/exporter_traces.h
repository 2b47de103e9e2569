// What exporters have left in a file of the modules that they exported: PyTorch's names of modules
// and classes, which it writes beside every node.
#pragma once

#include <string>

#include "onnx_io/model.h"

namespace pipetrain {

/// The module that a node belongs to ("blocks.0.norm1"); empty if the file does not say.
std::string module_of(const OnnxModel& model, const OnnxNode& node);

/// One sentence on layers that the exporter has folded into others, and the option that keeps them;
/// empty if there are none.
std::string note_on_folded_layers(const OnnxModel& model);

}  // namespace pipetrain
