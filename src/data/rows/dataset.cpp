#include "data/rows/dataset.h"

#include <algorithm>

#include "base/error.h"
#include "base/random.h"

namespace pipetrain {

namespace {

// The shuffle's "epoch" that chooses the validation samples: no real epoch reaches it.
constexpr std::uint64_t kHoldOutEpoch = ~std::uint64_t{0};

}  // namespace

TensorType Column::batch_type(std::size_t samples) const {
  std::vector<std::int64_t> dims = sample_shape.dims();
  dims.insert(dims.begin(), static_cast<std::int64_t>(samples));
  return {dtype, Shape(std::move(dims)), Layout::kRowMajor};
}

std::string Column::text() const {
  return fmt::format("\"{}\" {} {}", printable(name), name_of(dtype), sample_shape.text());
}

namespace {

// gather(column, tensor) for every column.
template <class Gather>
void gather_columns(const Dataset& dataset, std::size_t samples, std::span<const Tensor> out,
                    Gather&& gather) {
  PT_CHECK(out.size() == dataset.columns().size(), kInternal, "{} tensors for {} data columns",
           out.size(), dataset.columns().size());
  for (std::size_t column = 0; column < out.size(); ++column) {
    const TensorType want = dataset.columns()[column].batch_type(samples);
    PT_CHECK(out[column].type == want, kInternal, "data column \"{}\" is {}, its tensor is {}",
             dataset.columns()[column].name, want.text(), out[column].type.text());
    gather(column, out[column]);
  }
}

}  // namespace

void gather_batch(const Dataset& dataset, std::span<const std::size_t> indices,
                  std::span<const Tensor> out) {
  gather_columns(dataset, indices.size(), out, [&](std::size_t column, Tensor tensor) {
    dataset.gather(indices, column, tensor);
  });
}

void gather_batch(const Dataset& dataset, std::uint64_t step, std::span<const std::size_t> indices,
                  std::span<const Tensor> out) {
  gather_columns(dataset, indices.size(), out, [&](std::size_t column, Tensor tensor) {
    dataset.gather_augmented(step, indices, column, tensor);
  });
}

SubsetDataset::SubsetDataset(std::shared_ptr<const Dataset> whole, std::vector<std::size_t> indices)
    : whole_(std::move(whole)), indices_(std::move(indices)) {
  for (const std::size_t index : indices_) {
    PT_CHECK(index < whole_->size(), kInternal, "sample {} of {}", index, whole_->size());
  }
}

std::vector<std::size_t> SubsetDataset::of_whole(std::span<const std::size_t> indices) const {
  std::vector<std::size_t> out(indices.size());
  std::ranges::transform(indices, out.begin(), [&](std::size_t index) { return indices_[index]; });
  return out;
}

void SubsetDataset::gather(std::span<const std::size_t> indices, std::size_t column,
                           Tensor out) const {
  whole_->gather(of_whole(indices), column, out);
}

void SubsetDataset::gather_augmented(std::uint64_t step, std::span<const std::size_t> indices,
                                     std::size_t column, Tensor out) const {
  whole_->gather_augmented(step, of_whole(indices), column, out);
}

std::vector<std::uint8_t> held_out_rows(std::size_t count, std::size_t validation_rows,
                                        std::uint64_t seed) {
  PT_CHECK(
      validation_rows > 0 && validation_rows < count, kData,
      "cannot use {} of {} samples for validation: training and validation need at least one each",
      validation_rows, count);
  std::vector<std::uint8_t> held_out(count);
  for (std::size_t i = 0; i < validation_rows; ++i) {
    held_out[shuffled_index(seed, kHoldOutEpoch, count, i)] = 1;
  }
  return held_out;
}

DatasetSplit split_dataset(std::shared_ptr<const Dataset> whole, std::size_t validation_samples,
                           std::uint64_t seed, std::optional<std::size_t> rows) {
  const std::size_t count = rows.value_or(whole->size());
  const std::vector<std::uint8_t> held_out = held_out_rows(count, validation_samples, seed);
  std::vector<std::size_t> train, validation;
  for (std::size_t i = 0; i < whole->size(); ++i) {
    const std::size_t place = rows ? whole->place_of(i) : i;
    if (place < count) (held_out[place] ? validation : train).push_back(i);
  }
  PT_CHECK(!train.empty() && !validation.empty(), kData,
           "of {} rows, all good samples are used for {}, none for {}", count,
           train.empty() ? "validation" : "training", train.empty() ? "training" : "validation");
  return {std::make_shared<SubsetDataset>(whole, std::move(train)),
          std::make_shared<SubsetDataset>(whole, std::move(validation))};
}

std::shared_ptr<const Dataset> first_samples(std::shared_ptr<const Dataset> whole,
                                             std::size_t samples) {
  if (samples >= whole->size()) return whole;
  std::vector<std::size_t> indices(samples);
  for (std::size_t i = 0; i < samples; ++i) indices[i] = i;
  return std::make_shared<SubsetDataset>(std::move(whole), std::move(indices));
}

}  // namespace pipetrain
