// Reorder on the CPU: one oneDNN reorder for elements of 4 bytes. Those of 2 bytes, which oneDNN
// would convert on the way, are transposed in tiles of 16 x 16. Other types, and layouts of GPUs,
// use the reference kernel.
#include <omp.h>

#include <algorithm>

#include "ops/kernel/onednn_cpu.h"
#include "ops/kernel/transposed_tile_cpu.h"
#include "ops/reorder/reorder.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kParallelElements = 65536;

using transposed::kTile;
using transposed::transpose_tile;

/// Transposes a matrix of `rows` x `columns` elements; rows lie next to each other in both.
void transpose(const std::uint16_t* from, std::int64_t rows, std::int64_t columns,
               std::uint16_t* to) {
  const std::int64_t whole_rows = rows / kTile * kTile, whole_columns = columns / kTile * kTile;
  for (std::int64_t r = 0; r < whole_rows; r += kTile) {
    for (std::int64_t c = 0; c < whole_columns; c += kTile)
      transpose_tile(from + r * columns + c, columns, to + c * rows + r, rows);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = r < whole_rows ? whole_columns : 0; c < columns; ++c)
      to[c * rows + r] = from[r * columns + c];
  }
}

/// Channels per block; 0 for other layouts.
std::int64_t block_of(Layout layout) {
  if (layout == Layout::kBlocked8) return 8;
  return layout == Layout::kBlocked16 ? 16 : 0;
}

/// Between row-major and blocks of channels, of elements of 2 bytes: each block is a matrix of
/// channels x positions.
std::unique_ptr<Kernel> make_transposing(const KernelRequest& request) {
  const TensorType &x = request.inputs[0], &y = request.outputs[0];
  const bool to_blocks = x.layout == Layout::kRowMajor;
  const std::int64_t block = block_of(to_blocks ? y.layout : x.layout);
  if (block == 0 || (to_blocks ? x : y).layout != Layout::kRowMajor || x.shape[1] % block != 0)
    return nullptr;
  const std::int64_t positions = x.shape.count(2, x.shape.rank());
  const std::int64_t blocks = x.shape[0] * (x.shape[1] / block);
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        const auto* from = in[0].as<const std::uint16_t>();
        auto* to = out[0].as<std::uint16_t>();
        const std::int64_t elements = block * positions;
#pragma omp parallel for schedule(static) if (blocks * elements > kParallelElements)
        for (std::int64_t b = 0; b < blocks; ++b) {
          const std::int64_t rows = to_blocks ? block : positions;
          transpose(from + b * elements, rows, elements / rows, to + b * elements);
        }
      });
}

std::unique_ptr<Kernel> make(const KernelRequest& request) {
  const DType dtype = request.inputs[0].dtype;
  if (size_of(dtype) == sizeof(std::uint16_t)) return make_transposing(request);
  if (dtype != DType::kFloat32 && dtype != DType::kInt32) return nullptr;
  for (const TensorType& type : {request.inputs[0], request.outputs[0]}) {
    if (type.layout == Layout::kChannelsLast) return nullptr;
  }
  return make_sequence_kernel([&](PrimitiveSequence& sequence) {
    const auto x = sequence.input(0, onednn_desc(request.inputs[0]));
    sequence.reorder(x, sequence.output(0, onednn_desc(request.outputs[0])));
  });
}

constexpr KernelEntry kKernels[] = {{"Reorder", make}};

}  // namespace

std::span<const KernelEntry> reorder_cpu_kernels() { return kKernels; }

}  // namespace pipetrain
