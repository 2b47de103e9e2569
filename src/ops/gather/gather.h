// Gather and scatter: shared by the definitions and the kernels.
//
//   Gather{axis}(data, indices) -> data[…, indices, …]       GatherGrad{axis, shape}(dy, indices)
//   GatherND{batch_dims}(data, indices) -> slices at index tuples
//   GatherElements{axis}(data, indices) -> one element of the line along the axis for each index
//   ScatterElements{axis, reduction}, ScatterND{reduction}(data, indices, updates) -> data with the
//   updates at the elements that GatherElements, GatherND would read; reduction none (the last one
//   stays), add, mul, max, min
// Indices are int32 or int64; negative ones count from the end. The gradients add in index order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/kernel/kernel.h"

namespace pipetrain {

/// Gather and GatherND copy slices: result slice (o, i) is data slice (o, row), where index tuple i
/// names the row.
struct SliceGather {
  std::int64_t outer = 1;             // batch repetitions
  std::int64_t count = 1;             // index tuples per repetition
  bool shared = false;                // all repetitions read the same tuples
  std::vector<std::int64_t> extents;  // of the indexed axes, one for each index of a tuple
  std::int64_t slice = 1;             // elements copied for one tuple
  Shape result;

  /// Slices of the data per repetition.
  std::int64_t rows() const;
  std::int64_t tuples() const { return shared ? count : outer * count; }
};

/// `op` is Gather or GatherND; Error (kModel) when attribute and shapes are incompatible.
SliceGather slice_gather(std::string_view op, const Attributes& attributes, const Shape& data,
                         const Shape& indices);
/// The row that each tuple names; Error (kData) naming the first index that is out of range.
void resolve_rows(const SliceGather& gather, const Tensor& indices, std::int64_t* rows);

/// GatherElements and ScatterElements: the offset in the data that each index selects, in elements.
struct ElementGather {
  std::int64_t axis = 0;
  Shape data;
  Shape indices;
  std::vector<std::int64_t> strides;  // of the data
};

ElementGather element_gather(const Attributes& attributes, const Shape& data, const Shape& indices);
/// Error (kData) naming the first index that is out of range.
void resolve_elements(const ElementGather& gather, const Tensor& indices, std::int64_t* offsets);
/// Of the positions [first, last). Returns the first whose index is out of range; `last` if none
/// is.
std::int64_t resolve_elements(const ElementGather& gather, const Tensor& indices,
                              std::int64_t first, std::int64_t last, std::int64_t* offsets);
/// Error (kData) naming the index at this position, if it is one, which is out of range.
void check_elements(const ElementGather& gather, const Tensor& indices, std::int64_t position);

/// Whether the CPU's kernel for a GatherGrad or GatherNDGrad is an AddingKernel.
bool gather_gradient_adds(const KernelRequest& request);

std::span<const KernelEntry> gather_reference_kernels();
std::span<const KernelEntry> gather_cpu_kernels();

}  // namespace pipetrain
