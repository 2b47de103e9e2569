// Reads batches one by one, in a thread of its own: nobody waits without end for samples that never
// come. Loader does the same for batches in the order of their steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "data/rows/dataset.h"
#include "tensor/tensor.h"

namespace pipetrain {

class BatchReader {
 public:
  /// `timeout_seconds`: how long a batch may be waited for; 0: without end.
  BatchReader(std::shared_ptr<const Dataset> dataset, double timeout_seconds);
  ~BatchReader();
  BatchReader(const BatchReader&) = delete;
  BatchReader& operator=(const BatchReader&) = delete;

  /// The columns of these samples, valid until the following call, as gather_batch() gives them.
  /// Rethrows what went wrong; Error (kDevice) when they do not come in time.
  const std::vector<Tensor>& read(std::uint64_t step, std::vector<std::size_t> indices);

 private:
  struct Work;
  std::shared_ptr<Work> work_;  // also of a thread that is left behind
  double timeout_seconds_;
  std::jthread thread_;  // last: it must end before what it uses
};

}  // namespace pipetrain
