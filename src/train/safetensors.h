// Files of named tensors in Hugging Face's safetensors format, which any tool can read:
//
//   8 bytes   length of the header, little-endian
//   header    {"NAME": {"dtype": "F32", "shape": [8, 6], "data_offsets": [0, 192]}, …} and blanks
//   data      the tensors one after the other, row-major, little-endian, without gaps
//
// Equal tensors give equal bytes: they are sorted by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace pipetrain {

using NamedTensors = std::map<std::string, HostTensor>;

/// A tensor in a file.
struct TensorPlace {
  std::string name;
  std::uint64_t offset = 0;  // of its first byte in the file
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
};

/// A file with what it takes to see that it is still the same.
struct FileRecord {
  std::string name;
  std::uint64_t bytes = 0;
  std::string sha256;
  std::vector<TensorPlace> tensors;  // in the order of the file
};

/// Writes a file, which appears whole or not at all. Error (kResource) for the disk.
FileRecord write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors);

/// The same of tensors that need not be in memory: their types, and in the order of their names the
/// bytes of each, which are valid until the next call.
using TensorTypes = std::map<std::string, TensorType>;
FileRecord write_safetensors(
    const std::filesystem::path& path, const TensorTypes& types,
    const std::function<std::span<const std::byte>(const std::string&)>& bytes_of);

/// Reads a file and compares it with its record. Error (kData) that names the file and, if the
/// header is intact, the tensor that has changed.
NamedTensors read_safetensors(const std::filesystem::path& path, const FileRecord& record);

}  // namespace pipetrain
