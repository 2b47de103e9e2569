// Reads the next mini-batches while the current one is used: workers fill a ring of batches, whose
// memory is allocated once.
//
//   worker 0  fill B0 (step 0) | fill B2 (step 2) | wait | fill B1 (step 4) | …     2 workers,
//   worker 1  fill B1 (step 1) | wait             | fill B0 (step 3)        | …     3 batches
//   next()            | B0 used         | B1 used | B2 used | …
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "data/loading/batch_memory.h"
#include "data/loading/sampler.h"
#include "data/rows/dataset.h"
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
  /// Batches of steps [first_step, end_step), in order. No bit depends on the number of workers.
  /// They lie in memory that `memory` gives. `timeout_seconds`: how long a batch may be waited for;
  /// 0: without end.
  Loader(std::shared_ptr<const Dataset> dataset, Sampler sampler, std::uint64_t first_step,
         std::uint64_t end_step, int workers = 1, const TakeMemory& memory = {},
         double timeout_seconds = 0);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next batch, valid until the following call; nullptr after the last one, and where abort()
  /// ends the wait for it. Rethrows what went wrong in a worker, with the step's number; Error
  /// (kDevice) when none comes in time.
  const Batch* next();
  /// next() no longer waits, and the destructor only for a moment. From any thread.
  void abort();
  /// Time that next() has waited for data, in all.
  double waited_seconds() const;

 private:
  class Ring;
  std::unique_ptr<Ring> ring_;
  std::vector<std::jthread> threads_;  // last: they must end before what they use
};

}  // namespace pipetrain
