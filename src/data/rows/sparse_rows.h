// Rows of which only some values are kept, the others being zero.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/rows/row_source.h"

namespace pipetrain {

struct SparseRows {
  std::string file;
  std::vector<std::size_t> ends;         // values of this row and those before it
  std::vector<std::uint32_t> positions;  // of each value in its row
  std::vector<float> values;
  std::vector<std::uint32_t> lines;  // of each row in the file
  std::uint32_t width = 0;           // one more than the largest position
};

/// Rows of at least `width` values.
std::shared_ptr<const RowSource> make_sparse_rows(SparseRows rows);

}  // namespace pipetrain
