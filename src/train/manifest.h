// The manifest of a checkpoint: a JSON document whose last line is the SHA-256 of all before it,
// and the line before that, where the user has a key (base/user_key.h), its HMAC.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "train/checkpoint.h"

namespace pipetrain {

/// The manifest's text: everything of a checkpoint but its tensors, and the records of its files.
std::string manifest_text(const Checkpoint& checkpoint, const std::vector<FileRecord>& files);

/// Reads it back into a checkpoint without tensors. Error (kData) when a bit has changed.
Checkpoint parse_manifest(const std::string& text, const std::filesystem::path& path,
                          std::vector<FileRecord>& files);

}  // namespace pipetrain
