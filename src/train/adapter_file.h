// Low-rank adapters as a file of their own: safetensors with the names of Hugging Face's PEFT,
// "base_model.model.MODULE.lora_A.weight" (rank, inputs) and "….lora_B.weight" (outputs, rank).
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "train/loaded_model.h"

namespace pipetrain {

/// Writes the adapters of a model, whose values `read` gives by name. Those that it does not have,
/// since the loss does not use them, are left out; Error (kUsage) if that is all of them.
void write_adapters(const std::filesystem::path& path, const LoadedModel& model,
                    const std::function<HostTensor(const std::string&)>& read);

}  // namespace pipetrain
