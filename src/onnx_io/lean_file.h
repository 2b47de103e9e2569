// Separates the weights from a model file, so that they are not copied through protobuf's memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace pipetrain {

struct LeanFile {
  std::string bytes;  // the ModelProto, with smaller tensors
  /// By initializer of the graph, in its order: the field raw_data, in the memory of the file.
  /// Empty where it is left in `bytes`.
  std::vector<std::span<const std::byte>> raw_data;
};

/// Takes the raw_data of at least `least_bytes` out of the graph's initializers. The file has
/// passed scan_wire().
LeanFile without_weights(std::span<const std::byte> file, std::size_t least_bytes = 4096);

}  // namespace pipetrain
