// Convolutions on the CPU with oneDNN (onednn_convolution_cpu.h). Each is asked which memory
// formats it runs fastest in; tensors that come in another format are reordered on the way in and
// out. The algorithm is direct (or a GEMM, where oneDNN has no direct code), or between
// channel-blocked tensors Winograd by a fixed rule of the shape: never the outcome of a race, since
// it decides the bits. Winograd's is ours (winograd_cpu.h): oneDNN 2.6 has it for AVX-512 only,
// half as fast, and with input gradients that are wrong where the paddings of an axis differ.
// Where AVX512_BF16 multiplies bfloat16, Winograd's pays with stride 1 only; others are direct,
// with weight gradients of our own (pair_weight_gradient_cpu.h). With AMX they are products on
// tiles (tile_convolution_cpu.h). Feature maps smaller than the window become products of whole
// channels (small_feature_map_cpu.h); both read weights that were packed before, too. A few
// channels of grey images have kernels of their own (few_channels_cpu.h), and narrow groups become
// wider ones (merged_groups_cpu.h).
#include <omp.h>

#include <optional>
#include <type_traits>

#include "ops/conv/added_weight_gradient_cpu.h"
#include "ops/conv/conv.h"
#include "ops/conv/conv_choice_cpu.h"
#include "ops/conv/onednn_convolution_cpu.h"
#include "ops/conv/packed_convolution_cpu.h"
#include "ops/conv/pair_weight_gradient_cpu.h"
#include "ops/kernel/adding_kernel.h"
#include "ops/kernel/element_types.h"
#include "ops/kernel/vector8_cpu.h"
#include "ops/matmul/gemm_cpu.h"

namespace pipetrain {
namespace {

using namespace convolution;

/// What gemm_cpu.h multiplies: bfloat16 numbers as their bits.
template <class Element>
using Factor = std::conditional_t<std::is_same_v<Element, float>, float, std::uint16_t>;

template <class Element>
std::unique_ptr<Kernel> pointwise_kernel(const Pointwise& shape, bool input_gradient) {
  using Number = Factor<Element>;
  const int threads = omp_get_max_threads();
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        const auto *from = in[0].as<Number>(), *w = in[1].as<Number>();
        auto* to = out[0].as<Number>();
        if (input_gradient)
          return pointwise_input_gradient(shape, from, w, to, context.workspace, threads);
        pointwise_forward(shape, from, w, data_or_null<float>(in, 2), to, context.workspace,
                          threads);
      },
      pointwise_workspace_bytes<Number>(shape, input_gradient, threads));
}

template <class Element>
std::unique_ptr<Kernel> pointwise_gradient_kernel(const Pointwise& shape) {
  using Number = Factor<Element>;
  const int threads = omp_get_max_threads();
  return make_adding_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context,
          bool add) {
        pointwise_weight_gradient(shape, in[0].as<Number>(), in[1].as<Number>(), add,
                                  out[0].as<float>(), data_or_null<float>(out, 1),
                                  context.workspace, threads);
      },
      pointwise_weight_gradient_workspace_bytes<Number>(shape, threads));
}

template <class Element>
std::unique_ptr<Kernel> winograd_forward_kernel(const WinogradShape& shape, bool packed) {
  const int threads = omp_get_max_threads();
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        winograd_forward<Element>(shape, in[0].as<Element>(), {in[1].as<Element>(), packed},
                                  data_or_null<float>(in, 2), out[0].as<Element>(),
                                  context.workspace, threads);
      },
      winograd_workspace_bytes(shape, /*input_gradient=*/false, threads));
}

template <class Element>
std::unique_ptr<Kernel> small_feature_map_forward_kernel(const SmallFeatureMap& shape,
                                                         bool packed) {
  const int threads = omp_get_max_threads();
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        small_feature_map_forward<Element>(
            shape, in[0].as<Element>(), {in[1].as<Element>(), packed}, data_or_null<float>(in, 2),
            out[0].as<Element>(), context.workspace, threads);
      },
      small_feature_map_workspace_bytes(shape, packed, threads));
}

/// Ours between channel-blocked tensors, null where there is none.
template <class Element>
std::unique_ptr<Kernel> make_blocked_forward(const KernelRequest& request) {
  const TensorType &x = request.inputs[0], &w = request.inputs[1], &y = request.outputs[0];
  if (const auto shape = own_split(request, x, w, y)) return make_split_forward(*shape);
  if (const auto shape = own_tiles(request, x, w, y))
    return make_tile_pass(*shape, /*input_gradient=*/false, tiles::amx());
  if (const auto shape = own_tile_image(request, x, w, y))
    return make_tile_image_forward(*shape, tiles::amx());
  if (const auto shape = own_winograd(request, x, w, y)) {
    return winograd_forward_kernel<Element>(*shape, /*packed=*/false);
  }
  if (const auto shape = own_small_feature_map(request, x, w, y);
      shape && small_feature_map_packs(*shape)) {
    return small_feature_map_forward_kernel<Element>(*shape, /*packed=*/false);
  }
  if (const auto shape = own_depthwise(request, x, w, y))
    return make_depthwise_forward<Element>(*shape);
  if (const auto shape = own_merged(request, x, w, y)) return make_merged_forward(*shape, request);
  if (const auto shape = own_pointwise(request, x, w, y))
    return pointwise_kernel<Element>(*shape, /*input_gradient=*/false);
  return nullptr;
}

std::unique_ptr<Kernel> make_forward(const KernelRequest& request) {
  if (is_bfloat16(request)) {
    auto kernel = make_blocked_forward<BFloat16>(request);
    return kernel ? std::move(kernel) : make_onednn_forward(request);
  }
  if (!is_float32(request)) return nullptr;
  if (auto kernel = make_blocked_forward<float>(request)) return kernel;
  if (const auto shape =
          own_few_channels(request, request.inputs[0], request.inputs[1], request.outputs[0])) {
    const int threads = omp_get_max_threads();
    return make_kernel(
        [shape = *shape, threads](std::span<const Tensor> in, std::span<const Tensor> out,
                                  const RunContext& context) {
          few_channels_forward(shape, in[0].as<float>(), in[1].as<float>(),
                               data_or_null<float>(in, 2), out[0].as<float>(), context.workspace,
                               threads);
        },
        few_channels_workspace_bytes(*shape, threads));
  }
  return make_onednn_forward(request);
}

template <class Element>
std::unique_ptr<Kernel> winograd_input_kernel(const WinogradShape& shape, bool packed) {
  const int threads = omp_get_max_threads();
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        winograd_input_gradient<Element>(shape, in[0].as<Element>(), {in[1].as<Element>(), packed},
                                         out[0].as<Element>(), context.workspace, threads);
      },
      winograd_workspace_bytes(shape, /*input_gradient=*/true, threads));
}

template <class Element>
std::unique_ptr<Kernel> small_feature_map_input_kernel(const SmallFeatureMap& shape, bool packed) {
  const int threads = omp_get_max_threads();
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        small_feature_map_input_gradient<Element>(shape, in[0].as<Element>(),
                                                  {in[1].as<Element>(), packed},
                                                  out[0].as<Element>(), context.workspace, threads);
      },
      small_feature_map_workspace_bytes(shape, packed, threads));
}

template <class Element>
std::unique_ptr<Kernel> make_blocked_input_gradient(const KernelRequest& request) {
  const TensorType &dy = request.inputs[0], &w = request.inputs[1], &dx = request.outputs[0];
  if (const auto shape = own_split(request, dx, w, dy)) return make_split_input_gradient(*shape);
  if (const auto shape = own_tiles(request, dx, w, dy))
    return make_tile_pass(*shape, /*input_gradient=*/true, tiles::amx());
  if (const auto shape = own_winograd(request, dx, w, dy)) {
    return winograd_input_kernel<Element>(*shape, /*packed=*/false);
  }
  if (const auto shape = own_small_feature_map(request, dx, w, dy);
      shape && small_feature_map_packs(*shape)) {
    return small_feature_map_input_kernel<Element>(*shape, /*packed=*/false);
  }
  if (const auto shape = own_depthwise(request, dx, w, dy))
    return make_depthwise_input_gradient<Element>(*shape);
  if (const auto shape = own_merged(request, dx, w, dy))
    return make_merged_input_gradient(*shape, request);
  if (const auto shape = own_pointwise(request, dx, w, dy))
    return pointwise_kernel<Element>(*shape, /*input_gradient=*/true);
  return nullptr;
}

std::unique_ptr<Kernel> make_input_gradient(const KernelRequest& request) {
  if (is_bfloat16(request)) {
    auto kernel = make_blocked_input_gradient<BFloat16>(request);
    return kernel ? std::move(kernel) : make_onednn_input_gradient(request);
  }
  if (!is_float32(request)) return nullptr;
  if (auto kernel = make_blocked_input_gradient<float>(request)) return kernel;
  return make_onednn_input_gradient(request);
}

template <class Element>
std::unique_ptr<Kernel> make_blocked_weight_gradient(const KernelRequest& request) {
  const TensorType &x = request.inputs[0], &dy = request.inputs[1], &dw = request.outputs[0];
  const int threads = omp_get_max_threads();
  if (const auto shape = own_split(request, x, dw, dy)) return make_split_weight_gradient(*shape);
  if (const auto shape = own_tiles(request, x, dw, dy))
    return make_tile_weight_gradient(*shape, tiles::amx());
  if (const auto shape = own_tile_image(request, x, dw, dy))
    return make_tile_image_weight_gradient(*shape, tiles::amx());
  if (const auto shape = own_winograd(request, x, dw, dy)) {
    return make_adding_kernel(
        [shape = *shape, threads](std::span<const Tensor> in, std::span<const Tensor> out,
                                  const RunContext& context, bool add) {
          winograd_weight_gradient<Element>(shape, in[0].as<Element>(), in[1].as<Element>(), add,
                                            out[0].as<float>(), data_or_null<float>(out, 1),
                                            context.workspace, threads);
        },
        winograd_weight_gradient_workspace_bytes(*shape, threads));
  }
  if (const auto shape = own_depthwise(request, x, dw, dy))
    return make_depthwise_weight_gradient<Element>(*shape);
  if (const auto shape = own_merged(request, x, dw, dy))
    return make_merged_weight_gradient(*shape, request);
  if (const auto shape = own_pointwise(request, x, dw, dy))
    return pointwise_gradient_kernel<Element>(*shape);
  auto shape = own_small_feature_map(request, x, dw, dy);
  if (const auto pairs = own_pairs(request, x, dw, dy); pairs && !shape)
    return make_pair_weight_gradient(*pairs, tiles::vectors());
  if (!shape) return nullptr;
  const std::size_t bytes = small_feature_map_weight_gradient_workspace_bytes(*shape, threads);
  return make_adding_kernel(
      [shape = std::move(*shape), threads](std::span<const Tensor> in, std::span<const Tensor> out,
                                           const RunContext& context, bool add) {
        small_feature_map_weight_gradient<Element>(
            shape, in[0].as<Element>(), in[1].as<Element>(), add, out[0].as<float>(),
            data_or_null<float>(out, 1), context.workspace, threads);
      },
      bytes);
}

std::unique_ptr<Kernel> few_channels_gradient_kernel(const FewChannels& shape) {
  const int threads = omp_get_max_threads();
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        few_channels_weight_gradient(shape, in[0].as<float>(), in[1].as<float>(),
                                     out[0].as<float>(), data_or_null<float>(out, 1),
                                     context.workspace, threads);
      },
      few_channels_workspace_bytes(shape, threads));
}

std::unique_ptr<Kernel> make_weight_gradient(const KernelRequest& request) {
  if (!is_float32(request) && !is_bfloat16(request)) return nullptr;
  auto own = is_float32(request) ? make_blocked_weight_gradient<float>(request)
                                 : make_blocked_weight_gradient<BFloat16>(request);
  if (own) return own;
  if (const auto shape =
          own_few_channels(request, request.inputs[0], request.outputs[0], request.inputs[1]);
      shape && is_float32(request)) {
    return std::make_unique<AddedWeightGradient>(few_channels_gradient_kernel(*shape),
                                                 request.outputs);
  }
  return make_onednn_weight_gradient(request);
}

// --- packed weights ---

TensorType packed_weight_type(const KernelRequest& request) {
  return {DType::kFloat32, Shape(request.node.attributes.ints("weight_shape"))};
}

std::unique_ptr<Kernel> make_packed_forward(const KernelRequest& request) {
  const TensorType &x = request.inputs[0], &y = request.outputs[0];
  const TensorType w = packed_weight_type(request);
  if (const auto shape = own_winograd(request, x, w, y)) {
    return winograd_forward_kernel<float>(*shape, /*packed=*/true);
  }
  const auto shape = own_small_feature_map(request, x, w, y);
  return shape ? small_feature_map_forward_kernel<float>(*shape, /*packed=*/true) : nullptr;
}

std::unique_ptr<Kernel> make_packed_input_gradient(const KernelRequest& request) {
  const TensorType &dy = request.inputs[0], &dx = request.outputs[0];
  const TensorType w = packed_weight_type(request);
  if (const auto shape = own_winograd(request, dx, w, dy)) {
    return winograd_input_kernel<float>(*shape, /*packed=*/true);
  }
  const auto shape = own_small_feature_map(request, dx, w, dy);
  return shape ? small_feature_map_input_kernel<float>(*shape, /*packed=*/true) : nullptr;
}

WeightShape weight_shape(const Shape& w) { return {w[0], w[1], w.count(2, w.rank())}; }

std::unique_ptr<Kernel> make_pack(const KernelRequest& request) {
  const WeightShape shape = weight_shape(request.inputs[0].shape);
  const bool input_gradient = request.node.attributes.flag("input_gradient");
  const int threads = omp_get_max_threads();
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        pack_convolution(shape, input_gradient, in[0].as<float>(), out[0].as<float>(), threads);
      });
}

constexpr KernelEntry kKernels[] = {
    {"Conv", make_forward},
    {"ConvInputGrad", make_input_gradient},
    {"ConvWeightGrad", make_weight_gradient},
    {"ConvPacked", make_packed_forward},
    {"ConvInputGradPacked", make_packed_input_gradient},
    {"PackConvolution", make_pack},
};

}  // namespace

std::int64_t packed_weight_floats(const Shape& w, bool input_gradient) {
  return packed_convolution_floats(weight_shape(w), input_gradient);
}

bool convolution_packing_pays(const KernelRequest& request) {
  const bool input_gradient = request.node.op->name == "ConvInputGrad";
  const TensorType& w = request.inputs[1];
  const TensorType& x = input_gradient ? request.outputs[0] : request.inputs[0];
  const TensorType& y = input_gradient ? request.inputs[0] : request.outputs[0];
  if (!is_float32(request) || w.dtype != DType::kFloat32) return false;
  if (const auto shape = own_winograd(request, x, w, y))
    return winograd_has_few_tiles(*shape, input_gradient);
  return own_small_feature_map(request, x, w, y).has_value();
}

bool convolution_takes_bfloat16(const KernelRequest& request) {
  const std::string_view op = request.node.op->name;
  if ((op != "Conv" && op != "ConvInputGrad" && op != "ConvWeightGrad") || !is_bfloat16(request))
    return false;
  const TensorType& x = op == "ConvInputGrad" ? request.outputs[0] : request.inputs[0];
  const TensorType& w = op == "ConvWeightGrad" ? request.outputs[0] : request.inputs[1];
  const TensorType& y = op == "Conv"            ? request.outputs[0]
                        : op == "ConvInputGrad" ? request.inputs[0]
                                                : request.inputs[1];
  if (own_tiles(request, x, w, y) || own_tile_image(request, x, w, y)) return true;
  if (own_winograd(request, x, w, y)) return true;
  if (op != "ConvInputGrad" && own_few_channels(request, x, w, y)) return false;
  if (const auto shape = own_merged(request, x, w, y))
    return merged_groups_have_vector_code(*shape, request);
  if (own_depthwise(request, x, w, y) || own_pointwise(request, x, w, y)) return true;
  const auto shape = own_small_feature_map(request, x, w, y);
  if (shape && (op == "ConvWeightGrad" || small_feature_map_packs(*shape))) return true;
  if (op == "ConvWeightGrad" && own_pairs(request, x, w, y)) return true;
  // oneDNN's weight gradient of images is several times slower in bfloat16 than in float32.
  constexpr std::int64_t kChannelsOfImages = 4;
  if (op == "ConvWeightGrad" && w.shape[1] <= kChannelsOfImages) return false;
  return onednn_has_vector_code(request);
}

bool conv_weight_gradient_adds(const KernelRequest& request) {
  if (!is_float32(request) && !is_bfloat16(request)) return false;
  if (is_bfloat16(request) && !convolution_takes_bfloat16(request)) return false;
  const TensorType &x = request.inputs[0], &dy = request.inputs[1], &dw = request.outputs[0];
  if (own_split(request, x, dw, dy) || own_tiles(request, x, dw, dy) ||
      own_tile_image(request, x, dw, dy) || own_winograd(request, x, dw, dy) ||
      own_depthwise(request, x, dw, dy) || own_merged(request, x, dw, dy) ||
      own_pointwise(request, x, dw, dy) || own_small_feature_map(request, x, dw, dy) ||
      own_pairs(request, x, dw, dy)) {
    return true;
  }
  if (is_float32(request) && own_few_channels(request, x, dw, dy)) return false;
  return onednn_weight_gradient_adds(request);
}

Layout convolution_layout() { return has_avx512() ? Layout::kBlocked16 : Layout::kBlocked8; }

std::span<const KernelEntry> conv_cpu_kernels() { return kKernels; }

}  // namespace pipetrain
