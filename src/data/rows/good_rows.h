// A data set without its bad samples.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
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

/// How many samples are skipped, and what the first of them have.
std::string text_of_skipped(const std::map<std::size_t, std::string>& bad_rows);

}  // namespace pipetrain
