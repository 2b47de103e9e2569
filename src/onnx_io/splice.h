// A file with some of its bytes exchanged: ranges are replaced, the length prefixes of the messages
// around them follow, everything else is copied.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "onnx_io/file_map.h"
#include "onnx_io/tensor_maker.h"

namespace pipetrain {

class Splice {
 public:
  explicit Splice(std::span<const std::byte> file) : file_(file) {}

  /// Replaces `range`, which lies in the innermost message of `chain`, by `bytes`. An empty range
  /// is an insertion. Ranges must not overlap.
  void replace(onnx_wire::Range range, std::string bytes, const EnclosingChain& chain);
  /// The same with `count` bytes from `offset` of a tensor that `make` returns when it is written.
  /// For several ranges of one tensor in a row it is called once.
  void replace(onnx_wire::Range range, std::shared_ptr<const TensorMaker> make, std::size_t offset,
               std::size_t count, const EnclosingChain& chain);

  /// Bytes of the result.
  std::uint64_t size();
  /// Hands the result, piece by piece, to `write`.
  void write(const std::function<void(std::span<const std::byte>)>& write);

 private:
  struct Edit {
    onnx_wire::Range range;
    std::string text;
    // If set, the bytes are [offset, offset + count) of what it makes.
    std::shared_ptr<const TensorMaker> make;
    std::size_t offset = 0;
    std::size_t count = 0;
    std::size_t depth = 0;  // of the message it stands in

    std::size_t size() const { return make ? count : text.size(); }
  };
  struct Grown {
    Enclosing message;
    std::size_t depth = 0;
    std::size_t parent = 0;  // length_at of the enclosing message
    std::int64_t delta = 0;
  };

  void add(Edit edit, const EnclosingChain& chain);
  void settle();

  std::span<const std::byte> file_;
  std::vector<Edit> edits_;
  std::map<std::size_t, Grown> grown_;  // by length_at
  bool settled_ = false;
};

}  // namespace pipetrain
