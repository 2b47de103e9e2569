// Which of the project's own kernels a Conv, ConvInputGrad or ConvWeightGrad gets, by its shape,
// types and layouts; x, w and y are those of the convolution, whichever of them the request reads.
// Include it from *_cpu.cpp files only.
#pragma once

#include <optional>

#include "ops/conv/depthwise_kernels_cpu.h"
#include "ops/conv/few_channels_cpu.h"
#include "ops/conv/merged_groups_cpu.h"
#include "ops/conv/pointwise_cpu.h"
#include "ops/conv/small_feature_map_cpu.h"
#include "ops/conv/split_pointwise_cpu.h"
#include "ops/conv/tile_convolution_cpu.h"
#include "ops/conv/tile_image_cpu.h"
#include "ops/conv/winograd_cpu.h"

namespace pipetrain::convolution {

bool is_input_gradient(const KernelRequest& request);
bool is_float32(const KernelRequest& request);
/// Whether both operands are stored as bfloat16, and the result, too, unless it is a weight's
/// gradient. A bias, and its gradient, are float.
bool is_bfloat16(const KernelRequest& request);
/// The shape for our own Winograd kernels, where the rule wants Winograd and the layout is theirs.
std::optional<WinogradShape> own_winograd(const KernelRequest& request, const TensorType& x,
                                          const TensorType& w, const TensorType& y);
/// The same for feature maps of few positions.
std::optional<SmallFeatureMap> own_small_feature_map(const KernelRequest& request,
                                                     const TensorType& x, const TensorType& w,
                                                     const TensorType& y);
/// The same for row-major feature maps of a few channels.
std::optional<FewChannels> own_few_channels(const KernelRequest& request, const TensorType& x,
                                            const TensorType& w, const TensorType& y);
/// The same for windows of one position between row-major feature maps.
std::optional<Pointwise> own_pointwise(const KernelRequest& request, const TensorType& x,
                                       const TensorType& w, const TensorType& y);
/// The same for windows of one position between feature maps in blocks of 16 channels.
std::optional<SplitPointwise> own_split(const KernelRequest& request, const TensorType& x,
                                        const TensorType& w, const TensorType& y);
/// The same on tiles.
std::optional<TileConvolution> own_tiles(const KernelRequest& request, const TensorType& x,
                                         const TensorType& w, const TensorType& y);
/// The same for weight gradients with pairs.
std::optional<TileConvolution> own_pairs(const KernelRequest& request, const TensorType& x,
                                         const TensorType& w, const TensorType& y);
/// The same for narrow groups of channels.
std::optional<MergedGroups> own_merged(const KernelRequest& request, const TensorType& x,
                                       const TensorType& w, const TensorType& y);
/// The same for row-major images of few channels.
std::optional<TileImage> own_tile_image(const KernelRequest& request, const TensorType& x,
                                        const TensorType& w, const TensorType& y);

}  // namespace pipetrain::convolution
