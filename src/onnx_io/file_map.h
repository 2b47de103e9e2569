// Where things lie in an ONNX file, byte by byte, so that they can be exchanged and all else stays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "onnx_io/wire.h"

namespace pipetrain {

/// A message (or string) in a file: if its content changes length, its prefix must follow.
struct Enclosing {
  std::size_t length_at = 0;  // the length prefix: [length_at, content.begin)
  onnx_wire::Range content;
};

/// From the outermost inwards; the model itself, which has no prefix, is left out.
using EnclosingChain = std::vector<Enclosing>;

/// One key or value of an external_data entry.
struct LocatedEntry {
  std::string key;
  std::string value;
  onnx_wire::Range record;     // the whole entry, with its tag
  EnclosingChain value_chain;  // of the value: graph, …, tensor, entry, value
};

struct LocatedTensor {
  std::int32_t data_type = 0;
  std::vector<std::int64_t> dims;
  EnclosingChain chain;                        // down to the tensor itself
  std::vector<onnx_wire::Range> payload;       // little-endian bytes, in order
  std::vector<onnx_wire::Range> other_fields;  // int32_data and the like: whole fields
  bool external = false;
  std::vector<LocatedEntry> entries;  // external_data

  const LocatedEntry* find_entry(const std::string& key) const;
};

struct LocatedNode {
  EnclosingChain chain;                // down to the node
  std::vector<Enclosing> inputs;       // the strings
  std::vector<LocatedTensor> tensors;  // of its attributes: tensors, floats and lists of floats
};

/// The map of a file that has been read already, so that it is known to be well-formed.
struct FileMap {
  explicit FileMap(std::span<const std::byte> file);

  Enclosing graph;
  std::map<std::string, LocatedTensor, std::less<>> initializers;
  std::vector<LocatedNode> nodes;
  std::map<std::string, std::vector<LocatedNode>, std::less<>> functions;  // by label
  std::map<std::string, EnclosingChain, std::less<>> metadata;  // key → pair and its value
};

}  // namespace pipetrain
