// A data set without its bad samples.
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
  /// The source row of each sample.
  const std::vector<std::size_t>& rows() const { return rows_; }

 private:
  std::vector<std::size_t> rows_;
};

}  // namespace pipetrain
