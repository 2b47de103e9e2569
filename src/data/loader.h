// Reads the next mini-batch while the current one is used.
//
//   thread   fill B0 | fill B1 | wait | fill B0 | …      two buffers
//   next()           | B0 used        | B1 used | …
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "data/dataset.h"
#include "data/sampler.h"
#include "tensor/tensor.h"

namespace pipetrain {

/// One mini-batch: a tensor per column, (samples, sample shape…); micro-batches are slices of it.
struct Batch {
  std::uint64_t step = 0;
  std::uint64_t epoch = 0;
  std::size_t samples = 0;
  std::vector<Tensor> columns;
  std::vector<std::size_t> indices;
};

class Loader {
 public:
  /// Batches of steps [first_step, end_step), in order.
  Loader(std::shared_ptr<const Dataset> dataset, Sampler sampler, std::uint64_t first_step,
         std::uint64_t end_step);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next batch, valid until the following call; nullptr after the last one. Rethrows what
  /// went wrong in the reading thread, with the step's number.
  const Batch* next();
  /// Time that next() has waited for data, in all.
  double waited_seconds() const { return waited_seconds_; }

 private:
  struct Slot {
    Batch batch;
    std::vector<HostTensor> memory;
    bool full = false;
  };
  void read_ahead(std::stop_token stop);
  void fill(Slot& slot, std::uint64_t step);

  std::shared_ptr<const Dataset> dataset_;
  Sampler sampler_;
  std::uint64_t next_step_;
  std::uint64_t first_step_;
  std::uint64_t end_step_;
  double waited_seconds_ = 0;
  Slot slots_[2];
  Slot* in_use_ = nullptr;
  std::exception_ptr failure_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::jthread thread_;  // last: it must end before what it uses
};

}  // namespace pipetrain
