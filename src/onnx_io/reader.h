// Reading ONNX files. Whatever the file holds, the answer is a checked model or one Error (kModel).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "onnx_io/model.h"

namespace pipetrain {

struct ReadOptions {
  /// Bytes that all tensors of the model may take together; 0: 80 % of the machine's memory.
  std::uint64_t max_model_bytes = 0;
  /// Follow symbolic links to external data, and accept data files with several hard links.
  bool allow_symlinked_data = false;
  /// Nodes that the graph may have once its local functions are expanded.
  std::size_t max_expanded_nodes = 1'000'000;
};

/// Reads and checks the model in `path`; external data are read from its directory. What is odd but
/// harmless ends in `warnings`. Error (kModel) naming the file and the node, tensor or byte offset.
OnnxModel read_onnx(const std::filesystem::path& path, const ReadOptions& options = {});

/// The same for a model in memory, with external data in `directory` (empty: none allowed).
OnnxModel read_onnx_bytes(std::span<const std::byte> bytes, const std::filesystem::path& directory,
                          const ReadOptions& options = {});

}  // namespace pipetrain
