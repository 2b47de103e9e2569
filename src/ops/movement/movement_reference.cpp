// Data movement one element at a time, for every element type.
#include <algorithm>

#include "ops/kernel/type_switch.h"
#include "ops/movement/movement.h"

namespace pipetrain::movement {
namespace {

using Made = std::unique_ptr<Kernel>;

template <class T>
void copy(const CopyPlan& plan, const T* from, T* to) {
  PlanCursor at(plan.walk, plan.walk.dims.size());
  const std::int64_t count = plan.walk.count();
  for (std::int64_t i = 0; i < count; ++i, at.next()) {
    to[plan.target_offset + at.offset(0)] = from[plan.source_offset + at.offset(1)];
  }
}

void fill(const Tensor& out, double value) {
  const bool number = visit_number(out.type.dtype, [&]<class T>(T) {
    std::fill_n(out.as<T>(), out.count(), static_cast<T>(value));
  });
  if (!number) std::fill_n(out.as<std::byte>(), out.bytes(), std::byte(value != 0 ? 1 : 0));
}

Made make_movement(const KernelRequest& request) {
  const Movement movement = movement_of(request);
  Made made;
  visit_size(request.outputs[0].dtype, [&]<class T>(T) {
    made = make_kernel(
        [movement](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
          if (movement.fills) fill(out[0], movement.fill);
          for (const Copy& item : movement.copies) {
            if (out[item.output]) copy(item.plan, in[item.input].as<T>(), out[item.output].as<T>());
          }
        });
  });
  return made;
}

/// Keeps the diagonals up to k (lower) or from k on (upper) of the last two axes.
Made make_trilu(const KernelRequest& request) {
  const Shape& shape = request.inputs[0].shape;
  const std::int64_t rows = shape[shape.rank() - 2];
  const std::int64_t columns = shape[shape.rank() - 1];
  const std::int64_t matrices = shape.count(0, shape.rank() - 2);
  const bool upper = request.node.attributes.integer("upper", 1) != 0;
  const std::int64_t k = request.node.attributes.integer("k", 0);
  Made made;
  visit_size(request.inputs[0].dtype, [&]<class T>(T) {
    made = make_kernel(
        [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
          const T* x = in[0].as<T>();
          T* y = out[0].as<T>();
          for (std::int64_t row = 0; row < matrices * rows; ++row) {
            for (std::int64_t column = 0; column < columns; ++column, ++x, ++y) {
              const std::int64_t diagonal = column - row % rows;
              *y = (upper ? diagonal >= k : diagonal <= k) ? *x : T(0);
            }
          }
        });
  });
  return made;
}

constexpr KernelEntry kMovementReferenceKernels[] = {
    {"Concat", make_movement},    {"Expand", make_movement},    {"Pad", make_movement},
    {"Slice", make_movement},     {"SliceGrad", make_movement}, {"Split", make_movement},
    {"Transpose", make_movement}, {"Trilu", make_trilu},
};

}  // namespace

std::span<const KernelEntry> reference_kernels() { return kMovementReferenceKernels; }

}  // namespace pipetrain::movement
