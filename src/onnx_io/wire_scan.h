// The first look at an ONNX file: its wire format is walked once, without recursion and without
// decoding, before anything is allocated for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace pipetrain {

/// Limits on what a file may allocate.
struct ScanLimits {
  std::size_t nodes = 1'000'000;
  std::size_t initializers = 1'000'000;
  std::size_t nested_messages = 100;
  std::size_t nested_graphs = 16;
  std::size_t name_bytes = 4096;
  /// Memory that decoding may take, beyond `decoded_per_byte` times the file.
  std::size_t decoded_bytes = std::size_t{256} << 20;
  std::size_t decoded_per_byte = 8;
};

/// Checks that `file` is one well-formed ModelProto: tags, lengths, wire types of known fields, no
/// single field twice, names in UTF-8, and the limits. Error (kModel) naming `name`, the byte
/// offset and the path of the field ("graph.node[3].attribute[0].t").
void scan_wire(std::span<const std::byte> file, const std::string& name,
               const ScanLimits& limits = {});

}  // namespace pipetrain
