// A data set as the trainer sees it: a number of samples with the model's inputs and labels as
// columns, in the model's types and shapes, read by index in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace pipetrain {

struct Column {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape sample_shape;  // without the batch axis

  TensorType batch_type(std::size_t samples) const;
  /// "image" float32 (1, 28, 28)
  std::string text() const;
};

/// Constant after construction; `gather` may be called from several threads.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::size_t size() const = 0;
  /// The model's inputs in its order, then the labels if there are any.
  virtual std::span<const Column> columns() const = 0;
  /// Where a sample stands in the data that it was taken from.
  virtual std::size_t place_of(std::size_t sample) const { return sample; }
  /// Writes samples `indices` of a column one after the other. out: (indices, sample shape…)
  virtual void gather(std::span<const std::size_t> indices, std::size_t column,
                      Tensor out) const = 0;
  /// As samples of a training step, augmented depending on the step if requested.
  virtual void gather_augmented(std::uint64_t step, std::span<const std::size_t> indices,
                                std::size_t column, Tensor out) const {
    static_cast<void>(step);
    gather(indices, column, out);
  }
};

/// Fills one tensor per column, each (indices, sample shape…).
void gather_batch(const Dataset& dataset, std::span<const std::size_t> indices,
                  std::span<const Tensor> out);
/// As samples of a training step.
void gather_batch(const Dataset& dataset, std::uint64_t step, std::span<const std::size_t> indices,
                  std::span<const Tensor> out);

/// Samples `indices` of another data set, in that order.
class SubsetDataset : public Dataset {
 public:
  SubsetDataset(std::shared_ptr<const Dataset> whole, std::vector<std::size_t> indices);
  std::size_t size() const override { return indices_.size(); }
  std::span<const Column> columns() const override { return whole_->columns(); }
  std::size_t place_of(std::size_t sample) const override {
    return whole_->place_of(indices_[sample]);
  }
  void gather(std::span<const std::size_t> indices, std::size_t column, Tensor out) const override;
  void gather_augmented(std::uint64_t step, std::span<const std::size_t> indices,
                        std::size_t column, Tensor out) const override;

 private:
  std::vector<std::size_t> of_whole(std::span<const std::size_t> indices) const;

  std::shared_ptr<const Dataset> whole_;
  std::vector<std::size_t> indices_;
};

struct DatasetSplit {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> validation;
};

/// Which of `count` samples a split takes for validation. Error (kData) unless both parts have one.
std::vector<std::uint8_t> held_out_rows(std::size_t count, std::size_t validation_rows,
                                        std::uint64_t seed);

/// Splits off so many samples, chosen by the seed alone; both parts keep the file's order. With
/// `rows`, those that come from so many of the first `rows` places of the data
/// (Dataset::place_of); samples of later places are in neither part. Error kData unless both parts
/// have a sample.
DatasetSplit split_dataset(std::shared_ptr<const Dataset> whole, std::size_t validation_samples,
                           std::uint64_t seed, std::optional<std::size_t> rows = {});

/// The first `samples` samples, or all if there are fewer.
std::shared_ptr<const Dataset> first_samples(std::shared_ptr<const Dataset> whole,
                                             std::size_t samples);

}  // namespace pipetrain
