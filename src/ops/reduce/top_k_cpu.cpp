// Float TopK; threads split the lines. A line is copied first, so that sorting reads contiguous
// memory whatever the axis.
#include <omp.h>

#include <algorithm>
#include <numeric>

#include "graph/op.h"
#include "ops/reduce/top_k.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kParallelElements = 1 << 13;

/// An element of a line; `key` orders the best first, `position` breaks ties.
struct Candidate {
  float key;
  std::int32_t position;
};

/// Sorts the best first; NaN counts as larger than any number.
struct Better {
  bool largest;
  bool operator()(const Candidate& a, const Candidate& b) const {
    const float left = largest ? a.key : b.key;
    const float right = largest ? b.key : a.key;
    if (left > right || (left != left && right == right)) return true;
    if (right > left || (right != right && left == left)) return false;
    return a.position < b.position;
  }
};

std::unique_ptr<Kernel> make_top_k(const KernelRequest& request) {
  const Shape& shape = request.inputs[0].shape;
  const auto axis = static_cast<std::size_t>(request.node.attributes.integer("axis"));
  const std::int64_t size = shape[axis];
  if (request.inputs[0].dtype != DType::kFloat32 || size >= std::int64_t{1} << 31) return nullptr;
  const std::int64_t inner = shape.count(axis + 1, shape.rank());
  const std::int64_t lines = shape.count(0, axis) * inner;
  const std::int64_t k = request.node.attributes.integer("k");
  const Better better{request.node.attributes.flag("largest")};
  // One buffer per chunk of consecutive lines.
  const std::int64_t chunks = std::clamp<std::int64_t>(lines, 1, omp_get_max_threads());
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
#pragma omp parallel for schedule(static) if (lines * size > kParallelElements)
        for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
          auto* candidates = reinterpret_cast<Candidate*>(context.workspace) + chunk * size;
          for (std::int64_t line = lines * chunk / chunks; line < lines * (chunk + 1) / chunks;
               ++line) {
            const float* x = in[0].as<float>() + line / inner * size * inner + line % inner;
            for (std::int64_t i = 0; i < size; ++i) {
              candidates[i] = {x[i * inner], static_cast<std::int32_t>(i)};
            }
            std::partial_sort(candidates, candidates + k, candidates + size, better);
            for (std::int64_t i = 0; i < k; ++i) {
              const std::int64_t to = (line / inner * k + i) * inner + line % inner;
              if (out[0]) out[0].as<float>()[to] = candidates[i].key;
              if (out[1]) out[1].as<std::int64_t>()[to] = candidates[i].position;
            }
          }
        }
      },
      sizeof(Candidate) * static_cast<std::size_t>(chunks * size));
}

constexpr KernelEntry kKernels[] = {{"TopK", make_top_k}};

}  // namespace

std::span<const KernelEntry> top_k_cpu_kernels() { return kKernels; }

}  // namespace pipetrain
