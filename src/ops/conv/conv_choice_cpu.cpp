#include "ops/conv/conv_choice_cpu.h"

#include "ops/conv/conv.h"
#include "ops/matmul/gemm_cpu.h"

namespace pipetrain::convolution {
namespace {

bool has_bias(const KernelRequest& request) {
  return request.node.op->name == "Conv" && request.inputs.size() > 2 &&
         request.inputs[2].dtype != DType::kUndefined;
}

/// Whether products are made with instructions for bfloat16 numbers, at least twice as many in the
/// time as of floats.
bool multiplies_bfloat16(const KernelRequest& request) {
  return is_bfloat16(request) && has_fast_bfloat16_products() &&
         request.node.attributes.text("algorithm", "auto") != "winograd";
}

/// Channels of a block where both tensors lie in blocks of as many, otherwise 0.
std::int64_t lanes_of(const TensorType& x, const TensorType& y) {
  if (x.layout != y.layout) return 0;
  return x.layout == Layout::kBlocked8 ? 8 : x.layout == Layout::kBlocked16 ? 16 : 0;
}

/// The convolution, with two axes where it is one of sequences: feature maps of height 1.
ConvGeometry plane_geometry(const KernelRequest& request, const TensorType& x,
                            const TensorType& w) {
  ConvGeometry out = conv_geometry(request.node.attributes, x.shape, w.shape);
  if (out.window.size() == 1) out.window.insert(out.window.begin(), WindowAxis{});
  return out;
}

}  // namespace

bool is_input_gradient(const KernelRequest& request) {
  const std::string_view op = request.node.op->name;
  return op == "ConvInputGrad" || op == "ConvInputGradPacked";
}

bool is_float32(const KernelRequest& request) { return request.inputs[0].dtype == DType::kFloat32; }

bool is_bfloat16(const KernelRequest& request) {
  const bool gradient_of_weight = request.node.op->name == "ConvWeightGrad";
  const DType result = gradient_of_weight ? DType::kFloat32 : DType::kBFloat16;
  const auto is_float_or_absent = [](std::span<const TensorType> types, std::size_t i) {
    return i >= types.size() || types[i].dtype == DType::kUndefined ||
           types[i].dtype == DType::kFloat32;
  };
  return request.inputs[0].dtype == DType::kBFloat16 &&
         request.inputs[1].dtype == DType::kBFloat16 && request.outputs[0].dtype == result &&
         is_float_or_absent(request.inputs, 2) && is_float_or_absent(request.outputs, 1);
}

std::optional<WinogradShape> own_winograd(const KernelRequest& request, const TensorType& x,
                                          const TensorType& w, const TensorType& y) {
  const std::int64_t lanes = lanes_of(x, y);
  if (lanes == 0) return {};
  const std::string wish = request.node.attributes.text("algorithm", "auto");
  if (wish == "direct") return {};
  const auto shape = winograd_shape(conv_geometry(request.node.attributes, x.shape, w.shape), lanes,
                                    /*least_channels=*/wish == "winograd" ? 16 : 32);
  if (!shape) return {};
  // Twice the rate is more than Winograd saves with stride 2, and AMX's more than with stride 1.
  const bool narrow = multiplies_bfloat16(request);
  if (narrow && (shape->stride == 2 || has_amx())) return {};
  // Small maps fill their tiles partly.
  const double most = narrow ? 0.4 : shape->stride == 2 ? 0.8 : 2.0 / 3.0;
  if (winograd_share(*shape, is_input_gradient(request)) > most) return {};
  return shape;
}

std::optional<SmallFeatureMap> own_small_feature_map(const KernelRequest& request,
                                                     const TensorType& x, const TensorType& w,
                                                     const TensorType& y) {
  const std::int64_t lanes = lanes_of(x, y);
  if (lanes == 0) return {};
  const std::string_view op = request.node.op->name;
  const ConvolutionPass pass = op == "ConvWeightGrad"       ? ConvolutionPass::kWeightGradient
                               : is_input_gradient(request) ? ConvolutionPass::kInputGradient
                                                            : ConvolutionPass::kForward;
  return small_feature_map(plane_geometry(request, x, w), lanes, pass,
                           multiplies_bfloat16(request));
}

std::optional<FewChannels> own_few_channels(const KernelRequest& request, const TensorType& x,
                                            const TensorType& w, const TensorType& y) {
  if (x.layout != Layout::kRowMajor || y.layout != Layout::kRowMajor) return {};
  return few_channels(conv_geometry(request.node.attributes, x.shape, w.shape));
}

std::optional<Pointwise> own_pointwise(const KernelRequest& request, const TensorType& x,
                                       const TensorType& w, const TensorType& y) {
  if (x.layout != Layout::kRowMajor || y.layout != Layout::kRowMajor) return {};
  const bool narrow = request.inputs[0].dtype == DType::kBFloat16;
  if (narrow && (has_bias(request) || !has_gemm_bfloat16())) return {};
  return pointwise(conv_geometry(request.node.attributes, x.shape, w.shape));
}

std::optional<SplitPointwise> own_split(const KernelRequest& request, const TensorType& x,
                                        const TensorType& w, const TensorType& y) {
  const bool sums_bias = request.node.op->name == "ConvWeightGrad" && request.outputs.size() > 1;
  if (!is_float32(request) || lanes_of(x, y) != 16 || sums_bias) return {};
  return split_pointwise(plane_geometry(request, x, w));
}

std::optional<TileConvolution> own_tiles(const KernelRequest& request, const TensorType& x,
                                         const TensorType& w, const TensorType& y) {
  const bool sums_bias = request.node.op->name == "ConvWeightGrad" && request.outputs.size() > 1;
  if (!has_amx() || !multiplies_bfloat16(request) || lanes_of(x, y) != 16 || sums_bias) return {};
  return tile_convolution(plane_geometry(request, x, w));
}

std::optional<TileConvolution> own_pairs(const KernelRequest& request, const TensorType& x,
                                         const TensorType& w, const TensorType& y) {
  if (has_amx() || !multiplies_bfloat16(request) || lanes_of(x, y) != 16) return {};
  return tile_convolution(plane_geometry(request, x, w));
}

std::optional<MergedGroups> own_merged(const KernelRequest& request, const TensorType& x,
                                       const TensorType& w, const TensorType& y) {
  const std::int64_t lanes = lanes_of(x, y);
  if (lanes == 0) return {};
  return merged_groups(conv_geometry(request.node.attributes, x.shape, w.shape), w.shape, lanes);
}

std::optional<TileImage> own_tile_image(const KernelRequest& request, const TensorType& x,
                                        const TensorType& w, const TensorType& y) {
  const bool sums_bias = request.node.op->name == "ConvWeightGrad" && request.outputs.size() > 1;
  const bool fits = x.layout == Layout::kRowMajor && y.layout == Layout::kBlocked16;
  if (!has_amx() || !multiplies_bfloat16(request) || !fits || sums_bias) return {};
  if (request.node.op->name == "ConvInputGrad") return {};
  return tile_image(conv_geometry(request.node.attributes, x.shape, w.shape));
}

}  // namespace pipetrain::convolution
