#include "data/rows/column_source.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "data/rows/element.h"

namespace pipetrain {

namespace {

std::size_t sample_elements(const Tensor& out, std::size_t samples) {
  return samples ? static_cast<std::size_t>(out.count()) / samples : 0;
}

}  // namespace

void ArraySource::gather(std::span<const std::size_t> indices, Tensor out) const {
  const std::size_t rows = static_cast<std::size_t>(values.shape()[0]);
  const std::size_t row_bytes = values.type().bytes() / rows;
  const std::size_t from_size = size_of(values.dtype()), to_size = size_of(out.type.dtype);
  const auto* in = values.view().as<std::byte>();
  auto* to = out.as<std::byte>();
  std::vector<std::byte> row(transposed_columns > 1 ? count * to_size : 0);
  for (const std::size_t index : indices) {
    const std::byte* from = in + index * row_bytes + first * from_size;
    if (transposed_columns == 1) {
      convert_elements(from, values.dtype(), to, out.type.dtype, count, divisor);
    } else {
      convert_elements(from, values.dtype(), row.data(), out.type.dtype, count, divisor);
      const std::size_t height = count / transposed_columns;
      for (std::size_t i = 0; i < height; ++i) {
        for (std::size_t j = 0; j < transposed_columns; ++j) {
          std::memcpy(to + (j * height + i) * to_size,
                      row.data() + (i * transposed_columns + j) * to_size, to_size);
        }
      }
    }
    to += count * to_size;
  }
}

void ShiftedSource::gather(std::span<const std::size_t> indices, Tensor out) const {
  const std::size_t length = tokens.count;
  const auto with_type = [&](DType dtype) {
    return HostTensor(TensorType{
        dtype, Shape{static_cast<std::int64_t>(indices.size()), static_cast<std::int64_t>(length)},
        Layout::kRowMajor});
  };
  const HostTensor ids = with_type(DType::kInt64), shown = with_type(DType::kInt64);
  tokens.gather(indices, ids.view());
  if (mask) mask->gather(indices, shown.view());
  const std::span<std::int64_t> id = ids.span<std::int64_t>();
  const std::span<const std::int64_t> seen = shown.span<std::int64_t>();
  for (std::size_t row = 0; row < id.size(); row += length) {
    for (std::size_t t = 0; t < length; ++t) {
      const std::size_t next = row + t + shift;
      const bool ignored = t + shift == length || (mask && seen[next] == 0);
      id[row + t] = ignored ? ignore_index : id[next];
    }
  }
  convert_elements(id.data(), DType::kInt64, out.data, out.type.dtype, id.size(), 1);
}

TokenSource::TokenSource(std::shared_ptr<const std::vector<TokenShard>> shards, std::size_t length,
                         std::size_t extra, std::size_t shift)
    : shards_(std::move(shards)), length_(length), shift_(shift) {
  std::size_t end = 0;
  for (const TokenShard& shard : *shards_) {
    const std::size_t tokens = shard.tokens();
    end += tokens < extra ? 0 : (tokens - extra) / length_;
    ends_.push_back(end);
  }
}

void TokenSource::gather(std::span<const std::size_t> indices, Tensor out) const {
  auto* to = out.as<std::byte>();
  const std::size_t to_bytes = length_ * size_of(out.type.dtype);
  std::set<const TokenShard*> read;
  for (const std::size_t index : indices) {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), index);
    const auto number = static_cast<std::size_t>(end - ends_.begin());
    const TokenShard& shard = (*shards_)[number];
    const std::size_t window = index - (number ? ends_[number - 1] : 0);
    const std::size_t size = size_of(shard.dtype);
    const auto from = shard.content.bytes().subspan(
        shard.header_bytes + (window * length_ + shift_) * size, length_ * size);
    convert_elements(from.data(), shard.dtype, to, out.type.dtype, length_, 1);
    to += to_bytes;
    read.insert(&shard);
  }
  for (const TokenShard* shard : read) shard->content.check();
}

void FillingSource::gather(std::span<const std::size_t> indices, Tensor out) const {
  const std::size_t length = sample_elements(out, indices.size());
  // Positions count along the last axis.
  const auto& dims = out.type.shape.dims();
  const std::size_t last = dims.size() > 1 ? static_cast<std::size_t>(dims.back()) : 1;
  std::vector<std::int64_t> sample(length, filling == Filling::kOnes ? 1 : 0);
  if (filling == Filling::kPositions) {
    for (std::size_t i = 0; i < length; ++i) sample[i] = static_cast<std::int64_t>(i % last);
  }
  auto* to = out.as<std::byte>();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    convert_elements(sample.data(), DType::kInt64, to, out.type.dtype, length, 1);
    to += length * size_of(out.type.dtype);
  }
}

ColumnsDataset::ColumnsDataset(std::size_t samples, std::vector<Column> columns,
                               std::vector<std::unique_ptr<ColumnSource>> sources)
    : samples_(samples), columns_(std::move(columns)), sources_(std::move(sources)) {}

void ColumnsDataset::gather(std::span<const std::size_t> indices, std::size_t column,
                            Tensor out) const {
  check(indices);
  sources_[column]->gather(indices, out);
}

void ColumnsDataset::gather_augmented(std::uint64_t step, std::span<const std::size_t> indices,
                                      std::size_t column, Tensor out) const {
  check(indices);
  sources_[column]->gather_augmented(step, indices, out);
}

void ColumnsDataset::check(std::span<const std::size_t> indices) const {
  for (const std::size_t index : indices) {
    PT_CHECK(index < samples_, kInternal, "sample {} of {}", index, samples_);
  }
}

}  // namespace pipetrain
