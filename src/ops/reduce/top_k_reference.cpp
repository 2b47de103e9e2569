// TopK by sorting the positions of each line.
#include <algorithm>
#include <numeric>

#include "graph/op.h"
#include "ops/kernel/type_switch.h"
#include "ops/reduce/top_k.h"

namespace pipetrain {
namespace {

/// a > b, NaN being larger than any number.
template <class T>
bool comes_before(T a, T b) {
  return a > b || (a != a && b == b);
}

std::unique_ptr<Kernel> make_top_k(const KernelRequest& request) {
  const Shape& shape = request.inputs[0].shape;
  const auto axis = static_cast<std::size_t>(request.node.attributes.integer("axis"));
  const std::int64_t outer = shape.count(0, axis);
  const std::int64_t size = shape[axis];
  const std::int64_t inner = shape.count(axis + 1, shape.rank());
  const std::int64_t k = request.node.attributes.integer("k");
  const bool largest = request.node.attributes.flag("largest");
  std::unique_ptr<Kernel> made;
  const std::size_t workspace = sizeof(std::int64_t) * static_cast<std::size_t>(size);
  visit_number(request.inputs[0].dtype, [&]<class T>(T) {
    made = make_kernel(
        [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
          auto* order = reinterpret_cast<std::int64_t*>(context.workspace);
          for (std::int64_t line = 0; line < outer * inner; ++line) {
            const T* x = in[0].as<T>() + line / inner * size * inner + line % inner;
            std::iota(order, order + size, std::int64_t{0});
            std::partial_sort(order, order + k, order + size, [=](std::int64_t a, std::int64_t b) {
              const T left = x[(largest ? a : b) * inner];
              const T right = x[(largest ? b : a) * inner];
              if (comes_before(left, right)) return true;
              return !comes_before(right, left) && a < b;
            });
            for (std::int64_t i = 0; i < k; ++i) {
              const std::int64_t to = (line / inner * k + i) * inner + line % inner;
              if (out[0]) out[0].as<T>()[to] = x[order[i] * inner];
              if (out[1]) out[1].as<std::int64_t>()[to] = order[i];
            }
          }
        },
        workspace);
  });
  return made;
}

constexpr KernelEntry kTopKReferenceKernels[] = {{"TopK", make_top_k}};

}  // namespace

std::span<const KernelEntry> top_k_reference_kernels() { return kTopKReferenceKernels; }

}  // namespace pipetrain
