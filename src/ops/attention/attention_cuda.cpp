// Attention and rotary embeddings on GPUs.
#include "ops/attention/attention.h"
#include "ops/attention/attention_launch_cuda.h"
#include "ops/attention/rotary.h"
#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"

namespace pipetrain::attention {
namespace {

using Made = std::unique_ptr<Kernel>;
using Tensors = std::span<const Tensor>;

bool floats(const KernelRequest& request) {
  return is_stored_float(request.inputs[0].dtype) && takes_types(request);
}

Walk walk_of(const Strides& strides) { return {strides.batch, strides.head, strides.step}; }

Heads heads_of(const Geometry& g) {
  return {g.batch,
          g.heads,
          g.key_heads,
          g.queries,
          g.keys,
          g.width,
          g.value_width,
          walk_of(g.q),
          walk_of(g.k),
          walk_of(g.v),
          walk_of(g.y),
          {g.mask[0], g.mask[1], g.mask[2], g.mask[3]},
          static_cast<float>(g.scale),
          static_cast<float>(g.softcap),
          g.causal,
          g.offset_from_lengths,
          g.offset,
          g.left,
          g.right};
}

/// The mask and lengths inputs of a node; `index` is that of the mask.
Masks masks_of(Tensors in, std::size_t mask) {
  Masks out;
  if (mask < in.size() && in[mask]) {
    if (in[mask].type.dtype == DType::kBool) {
      out.shown = in[mask].as<std::uint8_t>();
    } else {
      out.added = numbers_at(in, mask);
    }
  }
  if (mask + 1 < in.size() && in[mask + 1]) out.lengths = in[mask + 1].as<std::int64_t>();
  return out;
}

Made make_forward(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request)) return nullptr;
  const Heads heads = heads_of(geometry_of(request, 0));
  if (!fits(heads)) return nullptr;
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    launch_attention(heads, masks_of(in, 3), numbers_at(in, 0), numbers_at(in, 1),
                     numbers_at(in, 2), places_at(out, 0), places_at(out, 1), queue);
  });
}

Made make_gradient(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request)) return nullptr;
  const Heads heads = heads_of(geometry_of(request, 1));
  if (!fits(heads)) return nullptr;
  const auto rows = static_cast<std::size_t>(heads.batch * heads.heads * heads.queries);
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        auto* factors = reinterpret_cast<float*>(context.workspace);
        launch_attention_gradient(heads, masks_of(in, 4), numbers_at(in, 0), numbers_at(in, 1),
                                  numbers_at(in, 2), numbers_at(in, 3), numbers_at(in, 6),
                                  numbers_at(in, 7), places_at(out, 0), places_at(out, 1),
                                  places_at(out, 2), places_at(out, 3), factors, queue);
      },
      rows * sizeof(float));
}

Made make_rotary(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request)) return nullptr;
  const rotary::Geometry g = rotary::geometry_of(request.node.attributes, request.inputs[0].shape,
                                                 request.inputs[1].shape);
  const rotary::Turns turns{g.batch,       g.heads,       g.steps,
                            g.width,       g.pairs,       g.batch_stride,
                            g.head_stride, g.step_stride, g.table_batch_stride,
                            g.interleaved, g.inverse};
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    rotary::launch_rotary(turns, numbers_at(in, 0), numbers_at(in, 1), numbers_at(in, 2),
                          places_at(out, 0), queue);
  });
}

constexpr CudaKernelEntry kKernels[] = {
    {"Attention", make_forward},
    {"AttentionGrad", make_gradient},
    {"Rotary", make_rotary},
};

}  // namespace
}  // namespace pipetrain::attention

namespace pipetrain {
std::span<const CudaKernelEntry> attention_cuda_kernels() { return attention::kKernels; }
}  // namespace pipetrain
