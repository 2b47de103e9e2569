// Trained weights into a copy of the user's file: from a run that has them in memory, or from a
// checkpoint.
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

/// What a trained file says about its data: that they were synthetic, and the names of its classes
/// in the order of their numbers. Nothing for an untrained one, which stays as it was.
OnnxMetadata describe_training(bool trained, bool synthetic,
                               const std::vector<std::string>& class_names);
/// Error (kUsage) where `output` is "-" and the model keeps weights in other files: standard output
/// takes one.
void check_one_file(const OnnxModel& model, const std::string& output);
/// The names of the classes that a model was trained with; empty where it does not say.
std::vector<std::string> trained_classes(const OnnxModel& model);

}  // namespace pipetrain
