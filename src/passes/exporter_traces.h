// What a file still tells of the modules that it was exported from: the names of modules and
// classes that PyTorch writes beside every node.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "onnx_io/model.h"

namespace pipetrain {

/// The strings of a list as Python writes it: "['', 'fc1', 'linear']".
std::vector<std::string> strings_in(std::string_view list);

/// The module that a node belongs to ("blocks.0.norm1"); empty if the file does not say.
std::string module_of(const OnnxModel& model, const OnnxNode& node);

/// The call of PyTorch that a node is a part of, which is one line for all of its nodes:
/// "%norm : … = call_function[…](args = (%x, %p_fc_weight), …)"; empty if the file does not say.
std::string_view call_of(const OnnxModel& model, const OnnxNode& node);

/// The parameters that a call takes: the names after "%p_", with underscores for dots.
std::vector<std::string_view> parameters_of_call(std::string_view call);

/// PyTorch's name of the bias that the exporter removed from a node because it was all zeros; empty
/// if it removed none.
std::string removed_bias_of(const OnnxModel& model, const OnnxNode& node);

/// The values that the exporter folded into a tensor with this metadata, as a list
/// "['g.weight', 'val_1']"; empty if it was not folded.
std::string folded_from(const OnnxMetadata& tensor);

/// One sentence on layers that the exporter has folded into others, and the option that keeps them;
/// empty if there are none.
std::string note_on_folded_layers(const OnnxModel& model);

/// One sentence on layers that the file has in training mode, in which ONNX Runtime runs them;
/// empty if there are none.
std::string note_on_training_mode(const OnnxModel& model);

}  // namespace pipetrain
