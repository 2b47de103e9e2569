// Memory of mini-batches: ordinary, or page-locked for asynchronous copies to GPUs. Allocated once
// and reused.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "data/rows/dataset.h"
#include "tensor/tensor.h"

namespace pipetrain {

/// Allocates memory, aligned to 64 bytes. Called from several threads.
using TakeMemory = std::function<std::shared_ptr<std::byte>(std::size_t bytes)>;

/// The columns of one mini-batch.
class BatchMemory {
 public:
  /// `take` empty: ordinary memory.
  explicit BatchMemory(TakeMemory take = {}) : take_(std::move(take)) {}

  /// Memory of a column. Overwrites the previous content, which must no longer be in use.
  Tensor column(std::size_t index, const TensorType& type) {
    if (blocks_.size() <= index) blocks_.resize(index + 1);
    Block& block = blocks_[index];
    if (block.bytes < type.bytes()) {
      block = {};
      block = {take_ ? take_(type.bytes()) : ordinary(type.bytes()), type.bytes()};
    }
    return {type, block.data.get()};
  }
  /// All columns of a batch.
  std::vector<Tensor> columns(const Dataset& dataset, std::size_t samples) {
    std::vector<Tensor> out;
    for (const Column& each : dataset.columns())
      out.push_back(column(out.size(), each.batch_type(samples)));
    return out;
  }

 private:
  struct Block {
    std::shared_ptr<std::byte> data;
    std::size_t bytes = 0;
  };
  static std::shared_ptr<std::byte> ordinary(std::size_t bytes) {
    auto buffer = std::make_shared<Buffer>(bytes);
    return {buffer, buffer->data()};
  }

  TakeMemory take_;
  std::vector<Block> blocks_;
};

}  // namespace pipetrain
