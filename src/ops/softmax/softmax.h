// Softmax and LogSoftmax over one axis: shared by the definition and the kernels.
#pragma once

#include <span>

#include "ops/kernel/kernel.h"

namespace pipetrain {

/// A tensor viewed as (outer, extent, inner) around the axis. Element (o, e, i) is at (o * extent +
/// e) * inner + i.
struct AxisView {
  std::int64_t outer = 1;
  std::int64_t extent = 1;
  std::int64_t inner = 1;
};

/// The view of `shape` from attribute `axis`, negative from the end; Error (kModel) when there is
/// no such axis.
AxisView view_axis(const Attributes& attributes, const Shape& shape);

std::span<const KernelEntry> softmax_reference_kernels();
std::span<const KernelEntry> softmax_cpu_kernels();

}  // namespace pipetrain
