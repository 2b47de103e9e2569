// The gradient of recurrent weights on GPUs: the states before all steps, and one product by
// cuBLASLt over all of them.
#include "ops/cuda/library_kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/recurrent/recurrent.h"
#include "ops/recurrent/recurrent_launch_cuda.h"

namespace pipetrain {

std::unique_ptr<Kernel> make_recurrent_product_cuda(const KernelRequest& request,
                                                    const CudaQueue& queue) {
  const TensorType& dgates = request.inputs[0];
  const TensorType& y = request.inputs[1];
  // Where the last gate has states of its own the kernel does that is written here.
  const bool parts = request.inputs.size() > 3 && request.inputs[3].dtype != DType::kUndefined;
  if (parts || !takes_types(request) || !is_stored_float(dgates.dtype) || !is_stored_float(y.dtype))
    return nullptr;
  const std::int64_t hidden = y.shape[2], gates = dgates.shape[2] / hidden;
  const auto g = recurrent::geometry_of(request.node.attributes, dgates.shape, gates);
  const TensorType dgate_rows{dgates.dtype, {g.steps * g.samples, gates * hidden}};
  const TensorType before{dgates.dtype, {g.steps * g.samples, hidden}};
  Node node;
  node.op = find_op("MatMul");
  node.attributes = {{"trans_a", std::int64_t{1}}};
  node.name = request.node.name;
  std::shared_ptr<Kernel> product =
      make_matmul_cuda({node, {dgate_rows, before}, {request.outputs[0]}}, queue);
  if (!product) return nullptr;
  const std::size_t bytes = (before.bytes() + 255) / 256 * 256;
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        const recurrent::Layer layer{g.steps, g.samples, g.hidden, g.reverse,
                                     in.size() > 4 ? in[4].as<std::int32_t>() : nullptr};
        const Tensor states{before, context.workspace};
        recurrent::launch_states_before(layer, numbers_at(in, 1), numbers_at(in, 2),
                                        places_at({&states, 1}, 0), queue);
        const Tensor operands[] = {{dgate_rows, in[0].data}, states};
        RunContext behind = context;
        behind.workspace += bytes;
        product->run(operands, out, behind);
      },
      bytes + product->workspace_bytes());
}

}  // namespace pipetrain
