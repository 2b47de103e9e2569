// Rows that are not stored as an array but decoded on the fly: images, and sparse rows.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/images/image_options.h"
#include "data/rows/column_source.h"
#include "data/rows/element.h"
#include "tensor/tensor.h"

namespace pipetrain {

class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual std::size_t rows() const = 0;
  virtual DType dtype() const = 0;
  /// What a model with free dimensions gets: that of the first image that can be read, or the
  /// widest row's.
  virtual Shape sample_shape() const = 0;
  /// "cats/12.png", "shard-0.tar member 12.png"
  virtual std::string locate(std::size_t row) const = 0;
  /// The same for programs: a file's name as it is. Empty where rows have no names of their own.
  virtual std::string name(std::size_t row) const {
    static_cast<void>(row);
    return "";
  }
  /// A column of rows of this shape; `how` gets what was done, for the note. Null if the rows
  /// cannot have it.
  virtual std::unique_ptr<ColumnSource> bind(const Shape& want, const ImageOptions& options,
                                             const PixelScale& scale, std::string& how) const = 0;
  /// Error kData if the row cannot be read.
  virtual void check(std::size_t row) const = 0;
  /// Rows with values that are not allowed, one value of each and at most `maximum`; none of rows
  /// whose values are known only once they are decoded.
  virtual std::vector<BadElement> find_bad_elements(const Allowed& allowed,
                                                    std::size_t maximum) const {
    static_cast<void>(allowed);
    static_cast<void>(maximum);
    return {};
  }
};

}  // namespace pipetrain
