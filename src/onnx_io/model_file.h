// Reads the bytes of a model file, and recognises common files that are not models.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "tensor/tensor.h"

namespace pipetrain {

/// Reads a whole model file. Error (kModel) if it is missing, no regular file, empty, or larger
/// than the 2 GiB - 1 that a protobuf message may have.
Buffer read_model_file(const std::filesystem::path& path);

/// Fails (kModel) if `bytes` are nothing, or plainly text, HTML, a git-LFS pointer, a zip archive
/// and the like.
void refuse_other_formats(std::span<const std::byte> bytes, const std::string& name);

/// A 64-bit hash to detect changes of a file; not secure against forgery.
std::uint64_t hash_bytes(std::span<const std::byte> bytes);

}  // namespace pipetrain
