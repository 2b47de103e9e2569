// The data movement family, by file.
#pragma once

#include <functional>
#include <span>

#include "ops/movement/copy_plan.h"
#include "ops/registry/registry.h"

namespace pipetrain::movement {

std::span<const ImportRule> imports();
std::span<const KernelEntry> reference_kernels();
std::span<const KernelEntry> cpu_kernels();

/// One copy of a node: from which input to which output.
struct Copy {
  std::size_t input;
  std::size_t output;
  CopyPlan plan;
};
/// What a node of Transpose, Expand, Concat, Split, Slice, SliceGrad or Pad copies.
struct Movement {
  std::vector<Copy> copies;
  bool fills = false;  // the output is first filled with `fill`
  double fill = 0;
};
Movement movement_of(const KernelRequest& request);

}  // namespace pipetrain::movement
