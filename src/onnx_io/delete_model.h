// Deletes a model with its external data.
#pragma once

#include <filesystem>

namespace pipetrain {

/// Deletes a model, if it is there, and the data file of its name, "MODEL.data", unless another
/// model in the folder uses that.
void delete_model(const std::filesystem::path& model);

}  // namespace pipetrain
