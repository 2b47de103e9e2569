#include "ops/conv/depthwise_kernels_cpu.h"

#include <omp.h>

#include "graph/op.h"
#include "ops/conv/depthwise_planar_cpu.h"
#include "ops/conv/onednn_convolution_cpu.h"
#include "ops/kernel/adding_kernel.h"
#include "ops/kernel/element_types.h"
#include "ops/kernel/vector8_cpu.h"

namespace pipetrain {
namespace {

template <class Element>
std::unique_ptr<Kernel> make_pass(DepthwisePass pass) {
  const int threads = omp_get_max_threads();
  const std::size_t bytes = depthwise_workspace_bytes(pass, threads);
  return make_kernel(
      [pass = std::move(pass), threads](std::span<const Tensor> in, std::span<const Tensor> out,
                                        const RunContext& context) {
        depthwise_run(pass, in[0].as<Element>(), in[1].as<Element>(), data_or_null<float>(in, 2),
                      out[0].as<Element>(), context.workspace, threads);
      },
      bytes);
}

template <class Element>
std::unique_ptr<Kernel> make_planar_pass(DepthwisePlanarPass pass) {
  const int threads = omp_get_max_threads();
  const std::size_t bytes = depthwise_planar_workspace_bytes(pass, threads);
  return make_kernel(
      [pass = std::move(pass), threads](std::span<const Tensor> in, std::span<const Tensor> out,
                                        const RunContext& context) {
        depthwise_planar_run(pass, in[0].as<Element>(), in[1].as<Element>(),
                             data_or_null<float>(in, 2), out[0].as<Element>(), context.workspace,
                             threads);
      },
      bytes);
}

/// Input gradients between blocked tensors under windows so wide that sliding over what is read
/// once counts.
bool is_wide_input_gradient(const KernelRequest& request, const Depthwise& shape) {
  const bool blocked = shape.x_lanes > 1 && shape.y_lanes > 1;
  const std::int64_t narrowest = request.inputs[0].dtype == DType::kFloat32 ? 5 : 7;
  return request.node.op->name == "ConvInputGrad" && blocked && shape.columns.kernel >= narrowest;
}

}  // namespace

std::optional<Depthwise> own_depthwise(const KernelRequest& request, const TensorType& x,
                                       const TensorType& w, const TensorType& y) {
  const auto shape =
      depthwise(conv_geometry(request.node.attributes, x.shape, w.shape), x.layout, y.layout);
  if (!shape) return {};
  const bool ours = depthwise_rows_are_long(*shape) || is_wide_input_gradient(request, *shape) ||
                    !onednn_has_vector_code(request);
  return ours ? shape : std::nullopt;
}

template <class Element>
std::unique_ptr<Kernel> make_depthwise_forward(const Depthwise& shape) {
  return depthwise_rows_are_long(shape) ? make_planar_pass<Element>(depthwise_planar_forward(shape))
                                        : make_pass<Element>(depthwise_forward(shape));
}

template <class Element>
std::unique_ptr<Kernel> make_depthwise_input_gradient(const Depthwise& shape) {
  return depthwise_rows_are_long(shape)
             ? make_planar_pass<Element>(depthwise_planar_input_gradient(shape))
             : make_pass<Element>(depthwise_input_gradient(shape));
}

template <class Element>
std::unique_ptr<Kernel> make_depthwise_weight_gradient(const Depthwise& shape) {
  const int threads = omp_get_max_threads();
  const bool planar = depthwise_rows_are_long(shape);
  return make_adding_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context,
          bool add) {
        (planar ? depthwise_planar_weight_gradient<Element>
                : depthwise_weight_gradient<Element>)(shape, in[0].as<Element>(),
                                                      in[1].as<Element>(), add, out[0].as<float>(),
                                                      data_or_null<float>(out, 1),
                                                      context.workspace, threads);
      },
      planar ? depthwise_planar_weight_gradient_workspace_bytes(shape, threads)
             : depthwise_weight_gradient_workspace_bytes(shape, threads));
}

#define PIPETRAIN_DEPTHWISE_KERNELS_OF(Element)                                              \
  template std::unique_ptr<Kernel> make_depthwise_forward<Element>(const Depthwise&);        \
  template std::unique_ptr<Kernel> make_depthwise_input_gradient<Element>(const Depthwise&); \
  template std::unique_ptr<Kernel> make_depthwise_weight_gradient<Element>(const Depthwise&)
PIPETRAIN_DEPTHWISE_KERNELS_OF(float);
PIPETRAIN_DEPTHWISE_KERNELS_OF(BFloat16);
#undef PIPETRAIN_DEPTHWISE_KERNELS_OF

}  // namespace pipetrain
