// Where a data set's column comes from: an array, a window of a token stream, a known filling.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/rows/dataset.h"
#include "data/rows/raw_data.h"
#include "data/rows/synthetic.h"

namespace pipetrain {

class ColumnSource {
 public:
  virtual ~ColumnSource() = default;
  /// out: (indices, sample shape…)
  virtual void gather(std::span<const std::size_t> indices, Tensor out) const = 0;
  /// As samples of a training step, with augmentation if requested.
  virtual void gather_augmented(std::uint64_t step, std::span<const std::size_t> indices,
                                Tensor out) const {
    static_cast<void>(step);
    gather(indices, out);
  }
};

/// Part of each row of an array, converted.
struct ArraySource : ColumnSource {
  HostTensor values;      // (rows, row elements…)
  std::size_t first = 0;  // the part: elements [first, first + count) of a row
  std::size_t count = 0;
  double divisor = 1;
  /// If not 1: the part is a matrix (count / columns, columns) and is wanted transposed: images
  /// that have their channels last where the model has them first, or the other way round.
  std::size_t transposed_columns = 1;

  void gather(std::span<const std::size_t> indices, Tensor out) const override;
};

/// Causal language model's labels: the tokens moved to the left by `shift`, then ignore_index.
/// A label is also ignored where the token it asks for is masked (mask 0).
struct ShiftedSource : ColumnSource {
  ArraySource tokens;
  std::optional<ArraySource> mask;
  std::size_t shift = 1;
  std::int64_t ignore_index = -100;

  void gather(std::span<const std::size_t> indices, Tensor out) const override;
};

/// Windows of `length` tokens; window i of a shard begins at token i · length + shift.
class TokenSource : public ColumnSource {
 public:
  /// `extra` tokens must follow the last window: 1 when labels are the next tokens.
  TokenSource(std::shared_ptr<const std::vector<TokenShard>> shards, std::size_t length,
              std::size_t extra, std::size_t shift);
  std::size_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  void gather(std::span<const std::size_t> indices, Tensor out) const override;

 private:
  std::shared_ptr<const std::vector<TokenShard>> shards_;
  std::size_t length_;
  std::size_t shift_;
  std::vector<std::size_t> ends_;  // windows in this shard and those before it
};

struct FillingSource : ColumnSource {
  explicit FillingSource(Filling what) : filling(what) {}
  Filling filling;
  void gather(std::span<const std::size_t> indices, Tensor out) const override;
};

/// A data set made of such columns.
class ColumnsDataset : public Dataset {
 public:
  ColumnsDataset(std::size_t samples, std::vector<Column> columns,
                 std::vector<std::unique_ptr<ColumnSource>> sources);
  std::size_t size() const override { return samples_; }
  std::span<const Column> columns() const override { return columns_; }
  void gather(std::span<const std::size_t> indices, std::size_t column, Tensor out) const override;
  void gather_augmented(std::uint64_t step, std::span<const std::size_t> indices,
                        std::size_t column, Tensor out) const override;

 private:
  void check(std::span<const std::size_t> indices) const;

  std::size_t samples_;
  std::vector<Column> columns_;
  std::vector<std::unique_ptr<ColumnSource>> sources_;
};

}  // namespace pipetrain
