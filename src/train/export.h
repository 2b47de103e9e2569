// Writes trained weights into a copy of the user's file, from a run in memory or from a checkpoint.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tensor/tensor.h"
#include "train/loaded_model.h"

namespace pipetrain {

/// Writes the weights and running statistics that `read` gives by name (an empty tensor:
/// unchanged). `metadata`: entries that are added. Returns what was changed besides bytes.
std::vector<std::string> export_weights(const LoadedModel& model,
                                        const std::function<HostTensor(const std::string&)>& read,
                                        const OnnxMetadata& metadata, const std::string& path,
                                        bool overwrite_input);

/// The metadata of a trained file: whether its data were synthetic, and the class names in order.
/// Empty for an untrained model.
OnnxMetadata describe_training(bool trained, bool synthetic,
                               const std::vector<std::string>& class_names);
/// Error (kUsage) where `output` is "-" and the model keeps weights in other files: standard output
/// takes one.
void check_one_file(const OnnxModel& model, const std::string& output);
/// The names of the classes that a model was trained with; empty where it does not say.
std::vector<std::string> trained_classes(const OnnxModel& model);

}  // namespace pipetrain
