// What is left of a data set when bad samples are left out, and which of its rows that are.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "data/rows/dataset.h"

namespace pipetrain {

class GoodRows final : public SubsetDataset {
 public:
  GoodRows(std::shared_ptr<const Dataset> whole, std::vector<std::size_t> rows)
      : SubsetDataset(std::move(whole), rows), rows_(std::move(rows)) {}
  /// The row of the source behind each sample.
  const std::vector<std::size_t>& rows() const { return rows_; }

 private:
  std::vector<std::size_t> rows_;
};

}  // namespace pipetrain
