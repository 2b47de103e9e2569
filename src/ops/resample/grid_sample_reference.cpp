// GridSample and its gradient, one position after the other.
#include "graph/op.h"
#include "ops/kernel/element_types.h"
#include "ops/resample/grid_sample.h"
#include "ops/resample/grid_sample_loops.h"

namespace pipetrain {
namespace {

using Tensors = std::span<const Tensor>;

std::unique_ptr<Kernel> make_sample(const KernelRequest& request) {
  const GridGeometry g =
      grid_geometry(request.node.attributes, request.inputs[0].shape, request.inputs[1].shape);
  return for_element_type<float, double>(request.inputs[0].dtype, [&]<class T>() {
    return make_kernel([g](Tensors in, Tensors out, const RunContext&) {
      sample_positions(g, in[0].as<T>(), in[1].as<T>(), out[0].as<T>(), 0, g.batch * g.positions);
    });
  });
}

std::unique_ptr<Kernel> make_grid_sample_gradient(const KernelRequest& request) {
  const GridGeometry g =
      grid_geometry(request.node.attributes, request.inputs[1].shape, request.inputs[2].shape);
  return for_element_type<float, double>(request.inputs[0].dtype, [&]<class T>() {
    return make_kernel([g](Tensors in, Tensors out, const RunContext&) {
      for (std::int64_t sample = 0; sample < g.batch; ++sample) {
        sample_gradients(g, sample, in[0].as<T>(), in[1].as<T>(), in[2].as<T>(),
                         data_or_null<T>(out, 0), data_or_null<T>(out, 1));
      }
    });
  });
}

constexpr KernelEntry kGridSampleReferenceKernels[] = {
    {"GridSample", make_sample},
    {"GridSampleGrad", make_grid_sample_gradient},
};

}  // namespace

std::span<const KernelEntry> grid_sample_reference_kernels() { return kGridSampleReferenceKernels; }

}  // namespace pipetrain
