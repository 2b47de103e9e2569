#include "data/rows/raw_data.h"

#include "base/error.h"
#include "data/rows/row_source.h"

namespace pipetrain {

std::size_t RawColumn::rows() const {
  if (source) return source->rows();
  return values.shape().rank() == 0 ? 0 : static_cast<std::size_t>(values.shape()[0]);
}

DType RawColumn::dtype() const { return source ? source->dtype() : values.dtype(); }

Shape RawColumn::sample_shape() const {
  if (source) return source->sample_shape();
  const auto& dims = values.shape().dims();
  if (dims.empty()) return {};
  return Shape(std::vector<std::int64_t>(dims.begin() + 1, dims.end()));
}

std::string RawColumn::locate(std::size_t row) const {
  if (source) return source->locate(row);
  if (row < lines.size()) return fmt::format("{} line {}", printable(file), lines[row]);
  return fmt::format("{} item {}", printable(file), row);
}

std::size_t TokenShard::tokens() const { return (content.size() - header_bytes) / size_of(dtype); }

std::uint64_t TokenShard::token(std::size_t position) const {
  const std::size_t size = size_of(dtype);
  return little_endian(content.bytes().subspan(header_bytes + position * size, size));
}

}  // namespace pipetrain
