// The lengths of rows of whole numbers, such as tokens, that are shorter in some samples.
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace pipetrain {

/// What such rows are padded to, unless one is longer.
struct RowLengths {
  RowLengths(std::size_t of_tokens = 0) : tokens(of_tokens) {}  // NOLINT: a length alone is one
  std::size_t tokens;                                           // 0: the longest row's
  std::map<std::string, std::size_t> others = {};  // of a decoder and the like, by name
};

}  // namespace pipetrain
