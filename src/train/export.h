// Trained weights into a copy of the user's file: from a run that has them in memory, or from a
// checkpoint.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tensor/tensor.h"
#include "train/session.h"

namespace pipetrain {

/// Writes the weights and running statistics that `read` gives by name (an empty tensor:
/// unchanged). A file trained on synthetic data is marked. Returns what was changed besides bytes.
std::vector<std::string> export_weights(const LoadedModel& model,
                                        const std::function<HostTensor(const std::string&)>& read,
                                        bool synthetic, const std::string& path,
                                        bool overwrite_input);

}  // namespace pipetrain
