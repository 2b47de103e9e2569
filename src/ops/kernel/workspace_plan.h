// The layout of a kernel's workspace: the size that it asks for and the addresses that it uses come
// from the same reservations.
//
//   WorkspacePlan plan;
//   const auto sums = plan.reserve<float>(count);
//   return make_kernel([=](…, const RunContext& context) { float* s = sums.in(context); … },
//                      plan.bytes());
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/kernel/kernel.h"

namespace pipetrain {

/// Elements that a WorkspacePlan has reserved.
template <class Element>
class WorkspacePart {
 public:
  explicit WorkspacePart(std::size_t offset) : offset_(offset) {}
  /// Where they lie in the workspace of a run.
  Element* in(const RunContext& context) const {
    return reinterpret_cast<Element*>(context.workspace + offset_);
  }

 private:
  std::size_t offset_;
};

/// Parts follow each other in the order in which they are reserved, each at a multiple of four
/// bytes.
class WorkspacePlan {
 public:
  template <class Element>
  WorkspacePart<Element> reserve(std::int64_t count) {
    static_assert(kAlignment % alignof(Element) == 0);
    const WorkspacePart<Element> part(bytes_);
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(Element);
    bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return part;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kAlignment = 4;
  std::size_t bytes_ = 0;
};

}  // namespace pipetrain
