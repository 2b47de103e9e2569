// Plain loops for Rotary.
#include "ops/attention/rotary.h"
#include "ops/kernel/element_types.h"

namespace pipetrain::rotary {
namespace {

template <class T>
void run(const Geometry& g, const T* x, const T* cosine, const T* sine, T* y) {
  for (std::int64_t b = 0; b < g.batch; ++b) {
    for (std::int64_t t = 0; t < g.steps; ++t) {
      const std::int64_t table = b * g.table_batch_stride + t * g.pairs;
      for (std::int64_t h = 0; h < g.heads; ++h) {
        const std::int64_t at = b * g.batch_stride + h * g.head_stride + t * g.step_stride;
        turn(g, x + at, cosine + table, sine + table, y + at);
      }
    }
  }
}

std::unique_ptr<Kernel> make_rotary(const KernelRequest& request) {
  if (!is_row_major(request)) return nullptr;
  return for_element_type<float, double>(request.inputs[0].dtype, [&]<class T>() {
    return make_kernel([g = geometry_of(request.node.attributes, request.inputs[0].shape,
                                        request.inputs[1].shape)](std::span<const Tensor> in,
                                                                  std::span<const Tensor> out,
                                                                  const RunContext&) {
      run(g, in[0].as<T>(), in[1].as<T>(), in[2].as<T>(), out[0].as<T>());
    });
  });
}

constexpr KernelEntry kRotaryReferenceKernels[] = {{"Rotary", make_rotary}};

}  // namespace

std::span<const KernelEntry> reference_kernels() { return kRotaryReferenceKernels; }

}  // namespace pipetrain::rotary
