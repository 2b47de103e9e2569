// A strided copy at memory speed: long runs by memcpy, transposes in blocks that use whole cache
// lines.
#pragma once

#include <memory>

#include "ops/movement/copy_plan.h"

namespace pipetrain {

class StridedCopy {
 public:
  /// For elements of 1, 2, 4 or 8 bytes.
  StridedCopy(const CopyPlan& plan, std::size_t element_bytes);
  void run(const void* source, void* target) const { run_(*this, source, target); }

 private:
  template <class T>
  friend struct StridedCopyLoops;
  using Run = void (*)(const StridedCopy&, const void* source, void* target);

  CopyPlan plan_;
  std::size_t rank_ = 0;
  std::size_t swapped_ = 0;  // transposes only: the dimension along which the source is contiguous
  Run run_ = nullptr;
};

}  // namespace pipetrain
