#include "ops/matmul/tile_product_cpu.h"

#include "ops/matmul/tile_worker_cpu.h"

namespace pipetrain::tiles {

std::size_t workspace_bytes(const GemmShape& shape, bool packed, int threads) {
  if (!packed) return run_workspace_bytes(shape, threads);
  return Sizes(shape, useful_threads(shape, threads)).workspace_bytes(packed);
}

template <class Out>
void multiply(const Instructions& instructions, const Product<Out>& product, std::byte* workspace,
              int threads) {
  const auto& [shape, a, b, packed, bias, add, c] = product;
  run(instructions,
      Operation{shape, Lines<std::uint16_t>{a.data, a.row_stride, a.column_stride},
                Lines<std::uint16_t>{b.data, b.column_stride, b.row_stride}, packed,
                Rows<Out>{c, shape.n, bias, add}},
      workspace, threads);
}

std::int64_t packed_elements(std::int64_t n, std::int64_t k) {
  return round_up(n, kSide) * round_up(k, kStep);
}

template <class Element>
void pack(std::int64_t n, std::int64_t k, const MatrixOf<Element>& b, std::uint16_t* packed,
          int threads) {
  const Lines<Element> columns{b.data, b.column_stride, b.row_stride};
  const std::int64_t depth = depth_of(k);
  const std::int64_t width = round_up((n + threads - 1) / threads, kSide);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int thread = 0; thread < threads; ++thread) {
    const std::int64_t left = std::min(n, thread * width);
    for (std::int64_t begin = 0; begin < k; begin += depth) {
      const std::int64_t pass = std::min(depth, k - begin);
      columns.template pack<Order::kPairs>(
          left, std::min(width, n - left), begin, pass,
          packed + begin * round_up(n, kSide) + left * tiles_along(pass) * kStep);
    }
  }
}

template void multiply(const Instructions&, const Product<float>&, std::byte*, int);
template void multiply(const Instructions&, const Product<std::uint16_t>&, std::byte*, int);
template void pack(std::int64_t, std::int64_t, const MatrixOf<float>&, std::uint16_t*, int);
template void pack(std::int64_t, std::int64_t, const MatrixOf<std::uint16_t>&, std::uint16_t*, int);

}  // namespace pipetrain::tiles
