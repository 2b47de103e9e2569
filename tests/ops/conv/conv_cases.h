// Convolutions that several tests go through.
#pragma once

#include <vector>

#include "ops/conv/conv.h"
#include "support/blocked.h"
#include "support/op_check.h"

namespace pipetrain::test {

struct ConvCase {
  const char* name;
  Shape x;
  Shape w;
  Ints strides, dilations, pads;
  std::int64_t group = 1;

  Attributes attributes() const {
    return {{"strides", strides}, {"dilations", dilations}, {"pads", pads}, {"group", group}};
  }
  Shape y() const {
    return infer_op("Conv", attributes(), {{DType::kFloat32, x}, {DType::kFloat32, w}})[0].shape;
  }
  Attributes with_output(const Shape& shape, bool bias = false) const {
    Attributes out = attributes();
    out.set("output_shape", shape.dims());
    out.set("with_bias", std::int64_t{bias});
    return out;
  }
  /// The layouts in which the channels of both feature maps fill whole blocks.
  std::vector<Layout> blocked_layouts() const {
    if (x[1] % 16 != 0 || w[0] % 16 != 0) return {Layout::kBlocked8};
    return {Layout::kBlocked8, Layout::kBlocked16};
  }
};

inline const std::vector<ConvCase>& conv_cases() {
  static const std::vector<ConvCase> list = {
      {"plain", {2, 3, 5, 6}, {4, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
      {"stride_leaves_a_rest", {1, 2, 6, 7}, {3, 2, 2, 3}, {2, 3}, {1, 1}, {0, 0, 0, 0}},
      {"asymmetric_pads", {2, 2, 5, 5}, {3, 2, 3, 3}, {2, 2}, {1, 1}, {0, 1, 1, 2}},
      {"dilated", {1, 2, 9, 8}, {2, 2, 3, 2}, {1, 2}, {2, 3}, {2, 0, 1, 1}},
      {"groups", {2, 6, 4, 4}, {4, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, 2},
      {"depthwise", {2, 4, 5, 5}, {4, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, 4},
      {"depthwise_multiplied", {1, 3, 5, 5}, {6, 1, 3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}, 3},
      {"pointwise", {2, 5, 3, 4}, {7, 5, 1, 1}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
      {"pointwise_strided", {2, 5, 5, 5}, {7, 5, 1, 1}, {2, 2}, {1, 1}, {0, 0, 0, 0}},
      {"sequence", {2, 3, 11}, {4, 3, 3}, {2}, {1}, {1, 0}},
      {"sequence_groups", {2, 4, 9}, {4, 2, 3}, {1}, {2}, {2, 2}, 2},
      {"volume", {1, 2, 4, 5, 3}, {3, 2, 2, 3, 2}, {1, 2, 1}, {1, 1, 1}, {1, 0, 1, 0, 1, 0}},
      {"kernel_covers_everything", {2, 3, 4, 4}, {5, 3, 4, 4}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
      {"padding_beyond_kernel", {1, 2, 3, 3}, {2, 2, 2, 2}, {1, 1}, {1, 1}, {3, 2, 2, 3}},
  };
  return list;
}

/// Larger channel counts, where the vector code of the CPU works in whole and partial blocks.
inline const std::vector<ConvCase>& wide_cases() {
  static const std::vector<ConvCase> list = {
      {"resnet", {2, 64, 8, 8}, {64, 64, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
      {"winograd_edges", {2, 32, 9, 7}, {48, 32, 3, 3}, {1, 1}, {1, 1}, {1, 0, 0, 1}},
      {"winograd_deep", {2, 80, 8, 8}, {96, 80, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
      {"winograd_chunks", {7, 48, 17, 14}, {80, 48, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
      {"winograd_ranges", {193, 80, 3, 3}, {96, 80, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
      {"winograd_strided", {2, 32, 16, 15}, {48, 32, 3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}},
      {"winograd_strided_chunks", {9, 48, 23, 30}, {80, 48, 3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 0}},
      {"winograd_strided_unreached", {3, 32, 16, 33}, {48, 32, 3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 0}},
      {"winograd_dilated", {2, 32, 17, 15}, {48, 32, 3, 3}, {1, 1}, {2, 2}, {2, 2, 2, 2}},
      {"winograd_dilated_chunks", {3, 48, 24, 23}, {80, 48, 3, 3}, {1, 1}, {3, 3}, {3, 0, 2, 3}},
      {"smaller_than_window", {32, 16, 2, 2}, {24, 16, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
      {"single_position", {32, 8, 1, 1}, {16, 8, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
      {"small_half_panel", {32, 56, 1, 2}, {8, 56, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
      {"small_unreached", {32, 8, 1, 1}, {16, 8, 2, 2}, {1, 1}, {3, 3}, {1, 1, 2, 2}},
      {"small_uneven", {32, 8, 2, 1}, {16, 8, 3, 3}, {2, 1}, {1, 1}, {1, 1, 0, 1}},
      {"small_wide_window", {32, 8, 3, 3}, {16, 8, 5, 5}, {1, 1}, {1, 1}, {2, 2, 2, 2}},
      {"resnet_strided", {2, 32, 9, 9}, {64, 32, 3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}},
      {"strided_to_few", {5, 32, 8, 7}, {48, 32, 3, 3}, {2, 2}, {1, 1}, {1, 0, 1, 1}},
      {"shortcut", {2, 32, 8, 8}, {64, 32, 1, 1}, {2, 2}, {1, 1}, {0, 0, 0, 0}},
      {"blocks_of_positions", {3, 96, 9, 7}, {80, 96, 1, 1}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
      {"wide_shortcut", {3, 64, 9, 8}, {96, 64, 1, 1}, {2, 2}, {1, 1}, {0, 0, 0, 0}},
      {"stem", {2, 3, 18, 18}, {32, 3, 7, 7}, {2, 2}, {1, 1}, {3, 3, 3, 3}},
      {"grey_stem", {2, 1, 12, 12}, {6, 1, 5, 5}, {1, 1}, {1, 1}, {2, 2, 2, 2}},
      {"few_channels", {3, 3, 11, 13}, {7, 3, 3, 3}, {1, 1}, {1, 1}, {0, 1, 2, 0}},
      {"few_channels_wide", {2, 2, 9, 40}, {4, 2, 2, 5}, {1, 1}, {1, 1}, {0, 0, 0, 3}},
      {"odd_channels", {2, 20, 7, 7}, {50, 20, 5, 5}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
      {"to_pixels", {2, 64, 6, 6}, {3, 64, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
      {"depthwise", {2, 32, 9, 9}, {32, 1, 3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}, 32},
      {"depthwise_odd", {2, 36, 6, 6}, {36, 1, 5, 5}, {1, 1}, {1, 1}, {2, 2, 2, 2}, 36},
      {"depthwise_dilated", {2, 16, 9, 9}, {16, 1, 3, 3}, {1, 1}, {2, 2}, {2, 2, 2, 2}, 16},
      {"resnext", {2, 64, 5, 5}, {64, 4, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, 16},
      {"groups", {2, 48, 5, 5}, {24, 16, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, 3},
      {"narrow_groups", {2, 96, 6, 7}, {96, 8, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, 12},
      {"regnet", {2, 96, 7, 5}, {96, 24, 3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}, 4},
      {"groups_to_more", {2, 32, 5, 5}, {64, 8, 3, 3}, {1, 1}, {2, 2}, {2, 2, 2, 2}, 4},
      {"same_upper", {2, 16, 8, 8}, {32, 16, 3, 3}, {2, 2}, {1, 1}, {0, 0, 1, 1}},
      {"dilated", {2, 32, 9, 9}, {32, 32, 3, 3}, {1, 1}, {2, 2}, {2, 2, 2, 2}},
      {"causal", {2, 16, 1, 20}, {16, 16, 1, 3}, {1, 1}, {1, 4}, {0, 8, 0, 0}},
      {"sequence", {2, 24, 40}, {32, 24, 5}, {2}, {1}, {2, 2}},
      {"sequence_blocks", {2, 32, 21}, {48, 32, 5}, {2}, {2}, {3, 4}},
      {"sequence_point", {3, 64, 33}, {96, 64, 1}, {1}, {1}, {0, 0}},
      {"sequence_small", {32, 16, 2}, {32, 16, 3}, {1}, {1}, {1, 1}},
      {"sequence_columns", {2, 32, 64}, {48, 32, 3}, {1}, {16}, {32, 0}},
      {"sequence_columns_around", {2, 32, 48}, {32, 32, 4}, {1}, {8}, {8, 16}},
      {"sequence_columns_shorten", {2, 32, 64}, {48, 32, 3}, {1}, {8}, {0, 0}},
      {"sequence_columns_single_row", {2, 16, 8}, {16, 16, 3}, {1}, {8}, {8, 8}},
      {"sequence_columns_groups", {2, 64, 48}, {64, 8, 3}, {1}, {8}, {8, 8}, 8},
      {"sequence_pads_no_columns", {2, 32, 64}, {48, 32, 3}, {1}, {8}, {4, 4}},
      {"sequence_columns_rest", {2, 32, 60}, {48, 32, 3}, {1}, {8}, {8, 8}},
      {"sequence_groups", {2, 64, 19}, {64, 4, 3}, {1}, {1}, {1, 1}, 16},
      {"sequence_stem", {2, 1, 64}, {16, 1, 9}, {4}, {1}, {0, 0}},
      {"volume_groups",
       {1, 32, 3, 5, 6},
       {32, 8, 1, 3, 3},
       {1, 2, 2},
       {1, 1, 1},
       {0, 1, 1, 0, 1, 1},
       4},
      {"volume", {1, 16, 4, 5, 6}, {16, 16, 3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1, 1, 1, 1}},
  };
  return list;
}

/// Volumes that Winograd takes slice by slice: with few and many tiles, windows of slices with and
/// without padding, strides and gaps along the depth, and more slices in the window than there are.
inline const std::vector<ConvCase>& volume_cases() {
  const Ints one = {1, 1, 1}, two = {2, 2, 2}, around = {1, 1, 1, 1, 1, 1},
             flat = {0, 1, 1, 0, 1, 1};
  static const std::vector<ConvCase> list = {
      {"few_tiles", {2, 32, 3, 9, 7}, {48, 32, 3, 3, 3}, one, one, around},
      {"many_channels", {1, 80, 3, 5, 6}, {64, 80, 3, 3, 3}, one, one, around},
      {"chunks", {2, 32, 4, 13, 10}, {48, 32, 3, 3, 3}, one, one, around},
      {"many_slices", {1, 32, 70, 5, 4}, {32, 32, 3, 3, 3}, one, one, around},
      {"one_side", {2, 32, 5, 8, 9}, {32, 32, 3, 3, 3}, one, one, {2, 1, 1, 0, 1, 1}},
      {"unpadded_depth", {2, 32, 6, 8, 8}, {32, 32, 3, 3, 3}, one, one, flat},
      {"unpadded_depth_chunks", {3, 32, 5, 12, 13}, {48, 32, 3, 3, 3}, one, one, flat},
      {"slices", {2, 32, 5, 9, 8}, {48, 32, 1, 3, 3}, one, one, flat},
      {"single_slice", {5, 32, 1, 8, 8}, {32, 32, 3, 3, 3}, one, one, around},
      {"dilated_depth", {2, 32, 6, 8, 8}, {32, 32, 3, 3, 3}, one, {2, 1, 1}, {2, 1, 1, 2, 1, 1}},
      {"dilated", {1, 32, 5, 11, 13}, {48, 32, 3, 3, 3}, one, two, {2, 2, 2, 2, 2, 2}},
      {"strided", {2, 32, 7, 16, 15}, {48, 32, 3, 3, 3}, two, one, around},
      {"strided_chunks", {3, 32, 6, 16, 24}, {48, 32, 3, 3, 3}, two, one, {1, 1, 1, 1, 1, 0}},
      {"strided_slices", {2, 32, 6, 16, 16}, {48, 32, 1, 3, 3}, {1, 2, 2}, one, flat},
      {"strided_depth", {2, 32, 7, 8, 9}, {32, 32, 2, 3, 3}, {2, 1, 1}, one, {1, 1, 1, 0, 1, 1}},
      {"strided_dilated_depth",
       {1, 32, 9, 8, 8},
       {32, 32, 2, 3, 3},
       {2, 1, 1},
       {3, 1, 1},
       {2, 1, 1, 1, 1, 1}},
      {"one_output_slice", {2, 32, 3, 8, 8}, {32, 32, 3, 3, 3}, one, one, flat},
      {"even_depth", {2, 32, 5, 8, 8}, {32, 32, 2, 3, 3}, one, one, {1, 1, 1, 0, 1, 1}},
      {"stride_beyond_slices", {2, 32, 4, 8, 8}, {32, 32, 1, 3, 3}, {2147483647, 1, 1}, one, flat},
      {"deep_window", {1, 32, 9, 4, 5}, {32, 32, 9, 3, 3}, one, one, flat},
      {"strided_past_slices", {2, 32, 8, 8, 8}, {32, 32, 1, 3, 3}, {3, 1, 1}, one, flat},
  };
  return list;
}

/// Windows of one position over enough of them that row-major feature maps are multiplied as they
/// lie.
inline const std::vector<ConvCase>& pointwise_cases() {
  const Ints one = {1, 1}, none = {0, 0, 0, 0};
  static const std::vector<ConvCase> list = {
      {"pw_widens", {3, 24, 9, 11}, {72, 24, 1, 1}, one, one, none},
      {"pw_reduces", {2, 40, 10, 8}, {9, 40, 1, 1}, one, one, none},
      {"pw_odd", {5, 7, 13, 13}, {19, 7, 1, 1}, one, one, none},
      {"pw_wide", {2, 96, 9, 8}, {80, 96, 1, 1}, one, one, none},
      {"pw_single", {1, 1, 8, 8}, {1, 1, 1, 1}, one, one, none},
      {"pw_many_positions", {1, 20, 40, 41}, {12, 20, 1, 1}, one, one, none},
      {"pw_sequence", {2, 20, 100}, {7, 20, 1}, {1}, {1}, {0, 0}},
      {"pw_volume", {2, 5, 4, 5, 6}, {3, 5, 1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}},
  };
  return list;
}

/// Depthwise convolutions at the edges: channels that fill no vectors, windows of all kinds, bands
/// of rows, several samples a sum.
inline const std::vector<ConvCase>& depthwise_cases() {
  const Ints one = {1, 1}, two = {2, 2}, around = {1, 1, 1, 1};
  static const std::vector<ConvCase> list = {
      {"dw_3x3", {2, 32, 9, 11}, {32, 1, 3, 3}, one, one, around, 32},
      {"dw_3x3_strided", {3, 40, 10, 9}, {40, 1, 3, 3}, two, one, {1, 0, 1, 1}, 40},
      {"dw_5x5", {2, 16, 13, 8}, {16, 1, 5, 5}, one, one, {2, 2, 2, 2}, 16},
      {"dw_5x5_strided", {2, 24, 14, 15}, {24, 1, 5, 5}, two, one, {1, 2, 2, 1}, 24},
      {"dw_7x7", {19, 48, 7, 7}, {48, 1, 7, 7}, one, one, {3, 3, 3, 3}, 48},
      {"dw_7x7_bands", {1, 16, 70, 90}, {16, 1, 7, 7}, one, one, {3, 3, 3, 3}, 16},
      {"dw_7x7_strided", {2, 32, 15, 17}, {32, 1, 7, 7}, two, one, {3, 3, 2, 2}, 32},
      {"dw_few", {2, 5, 9, 6}, {5, 1, 5, 3}, one, one, {2, 1, 2, 1}, 5},
      {"dw_odd", {2, 19, 6, 20}, {19, 1, 4, 6}, {1, 2}, one, {0, 2, 3, 1}, 19},
      {"dw_stride_3", {2, 16, 17, 16}, {16, 1, 5, 5}, {3, 3}, one, {0, 1, 1, 2}, 16},
      {"dw_stride_beyond_window", {2, 16, 17, 16}, {16, 1, 2, 2}, {3, 4}, one, {0, 0, 0, 0}, 16},
      {"dw_dilated", {2, 32, 17, 14}, {32, 1, 3, 3}, one, {2, 3}, {2, 3, 2, 3}, 32},
      {"dw_dilated_strided", {2, 16, 17, 14}, {16, 1, 5, 5}, two, {3, 2}, {6, 4, 6, 4}, 16},
      {"dw_11x11", {2, 16, 12, 13}, {16, 1, 11, 11}, one, one, {5, 5, 5, 5}, 16},
      {"dw_padding_beyond", {2, 16, 4, 4}, {16, 1, 2, 2}, one, one, {3, 2, 2, 3}, 16},
      {"dw_rest", {2, 16, 9, 10}, {16, 1, 2, 2}, {3, 3}, one, {0, 0, 0, 0}, 16},
      {"dw_long_rows", {2, 12, 8, 50}, {12, 1, 3, 3}, one, one, around, 12},
      {"dw_long_rows_strided", {2, 12, 9, 80}, {12, 1, 5, 5}, two, one, {2, 2, 2, 2}, 12},
      {"dw_sequence", {2, 48, 37}, {48, 1, 4}, {1}, {1}, {3, 0}, 48},
      {"dw_sequence_strided", {2, 20, 37}, {20, 1, 9}, {2}, {2}, {8, 8}, 20},
  };
  return list;
}

/// y or dx (with `input_gradient`) of blocked tensors, with weights packed before or not.
inline HostTensor in_blocks(const ConvCase& c, const HostTensor& from, const HostTensor& w,
                            const HostTensor& b, bool input_gradient, bool packed,
                            Layout layout = Layout::kBlocked8) {
  Attributes attributes = input_gradient ? c.with_output(c.x) : c.attributes();
  std::string op = input_gradient ? "ConvInputGrad" : "Conv";
  HostTensor weights = w;
  if (packed) {
    weights = run_op("PackConvolution", {{"input_gradient", std::int64_t{input_gradient}}}, {w},
                     Backend::kCpu)[0];
    attributes.set("weight_shape", c.w.dims());
    op += "Packed";
  }
  std::vector<HostTensor> inputs = {to_layout(from, layout), weights};
  if (b) inputs.push_back(b);
  const TensorType type{DType::kFloat32, input_gradient ? c.x : c.y(), layout};
  return to_layout(run_in_layouts(op, attributes, inputs, {type})[0], Layout::kRowMajor);
}

}  // namespace pipetrain::test
