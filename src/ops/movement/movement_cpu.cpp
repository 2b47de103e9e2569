// Data movement as strided copies, for every element type; Trilu row by row.
#include <omp.h>

#include <algorithm>
#include <cstring>

#include "ops/movement/movement.h"
#include "ops/movement/strided_copy_cpu.h"

namespace pipetrain::movement {
namespace {

using Made = std::unique_ptr<Kernel>;

/// With floats, or with zeros of any type.
void fill(const Tensor& to, float value) {
  constexpr std::size_t kChunk = 1 << 16;  // bytes, a multiple of those of any element
  const std::size_t bytes = to.bytes();
#pragma omp parallel for schedule(static) if (bytes > 4 * kChunk)
  for (std::size_t first = 0; first < bytes; first += kChunk) {
    std::byte* chunk = to.as<std::byte>() + first;
    const std::size_t count = std::min(kChunk, bytes - first);
    if (value == 0) {
      std::memset(chunk, 0, count);
    } else {
      std::fill_n(reinterpret_cast<float*>(chunk), count / sizeof(float), value);
    }
  }
}

Made make_movement(const KernelRequest& request) {
  const DType dtype = request.outputs[0].dtype;
  Movement movement = movement_of(request);
  if (movement.fills && movement.fill != 0 && dtype != DType::kFloat32) return nullptr;
  struct Item {
    std::size_t input, output;
    StridedCopy copy;
  };
  std::vector<Item> items;
  for (const Copy& copy : movement.copies) {
    items.push_back({copy.input, copy.output, StridedCopy(copy.plan, size_of(dtype))});
  }
  const bool fills = movement.fills;
  const auto value = static_cast<float>(movement.fill);
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        if (fills) fill(out[0], value);
        for (const Item& item : items) {
          if (out[item.output]) item.copy.run(in[item.input].data, out[item.output].data);
        }
      });
}

Made make_trilu(const KernelRequest& request) {
  if (request.inputs[0].dtype != DType::kFloat32) return nullptr;
  const Shape& shape = request.inputs[0].shape;
  const std::int64_t rows = shape[shape.rank() - 2];
  const std::int64_t columns = shape[shape.rank() - 1];
  const std::int64_t matrices = shape.count(0, shape.rank() - 2);
  const bool upper = request.node.attributes.integer("upper", 1) != 0;
  const std::int64_t k = std::clamp(request.node.attributes.integer("k", 0), -rows, columns);
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
#pragma omp parallel for schedule(static) if (matrices * rows * columns > 65536)
        for (std::int64_t row = 0; row < matrices * rows; ++row) {
          const float* x = in[0].as<float>() + row * columns;
          float* y = out[0].as<float>() + row * columns;
          // Kept are the columns [first, last).
          const std::int64_t edge =
              std::clamp<std::int64_t>(row % rows + k + (upper ? 0 : 1), 0, columns);
          const std::int64_t first = upper ? edge : 0;
          const std::int64_t last = upper ? columns : edge;
          std::fill(y, y + first, 0.0F);
          std::copy(x + first, x + last, y + first);
          std::fill(y + last, y + columns, 0.0F);
        }
      });
}

constexpr KernelEntry kKernels[] = {
    {"Concat", make_movement},    {"Expand", make_movement},    {"Pad", make_movement},
    {"Slice", make_movement},     {"SliceGrad", make_movement}, {"Split", make_movement},
    {"Transpose", make_movement}, {"Trilu", make_trilu},
};

}  // namespace

std::span<const KernelEntry> cpu_kernels() { return kKernels; }

}  // namespace pipetrain::movement
