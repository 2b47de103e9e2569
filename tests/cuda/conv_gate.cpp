// Checks that cuDNN offers a plan for the backend's convolutions on a described GPU, which need not
// be present: conv_gate DEVICE.json. Also compares cuDNN's output shapes with pipetrain's.
#include <cudnn.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "ops/conv/conv.h"
#include "ops/conv/conv_graph_cuda.h"

namespace {

using pipetrain::ConvGraph;
using pipetrain::ConvPass;
using pipetrain::ConvPrecision;
using pipetrain::ConvShapes;
using Dims = std::vector<std::int64_t>;

struct Case {
  const char* name;
  Dims x, w;
  Dims pad_begin, pad_end, stride, dilation;
  bool bias;
};

/// With the shape of y from the operator's inference.
ConvShapes shapes_of(const Case& c) {
  pipetrain::Ints pads = c.pad_begin;
  pads.insert(pads.end(), c.pad_end.begin(), c.pad_end.end());
  const std::int64_t group = c.x[1] / c.w[1];
  const pipetrain::Attributes attributes = {
      {"strides", c.stride}, {"dilations", c.dilation}, {"pads", pads}, {"group", group}};
  const pipetrain::ConvGeometry geometry =
      pipetrain::conv_geometry(attributes, pipetrain::Shape(c.x), pipetrain::Shape(c.w));
  const pipetrain::Shape y = pipetrain::window_outputs(c.x[0], c.w[0], geometry.window);
  return {c.x, c.w, y.dims(), c.pad_begin, c.pad_end, c.stride, c.dilation, c.bias};
}

const Case kCases[] = {
    {"3x3", {16, 64, 32, 32}, {128, 64, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, false},
    {"3x3 with bias", {16, 64, 32, 32}, {128, 64, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, true},
    {"first layer 7x7", {8, 3, 224, 224}, {64, 3, 7, 7}, {3, 3}, {3, 3}, {2, 2}, {1, 1}, false},
    {"1x1", {8, 256, 14, 14}, {64, 256, 1, 1}, {0, 0}, {0, 0}, {1, 1}, {1, 1}, false},
    {"1x1 stride 2", {8, 256, 28, 28}, {512, 256, 1, 1}, {0, 0}, {0, 0}, {2, 2}, {1, 1}, false},
    {"depthwise", {8, 96, 28, 28}, {96, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, false},
    {"groups", {8, 64, 28, 28}, {64, 16, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, false},
    {"dilated", {4, 32, 40, 40}, {32, 32, 3, 3}, {2, 2}, {2, 2}, {1, 1}, {2, 2}, false},
    {"uneven padding", {4, 16, 28, 28}, {32, 16, 4, 4}, {1, 1}, {2, 2}, {1, 1}, {1, 1}, true},
    {"one channel", {16, 1, 8, 8}, {8, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, true},
    {"odd sizes", {3, 5, 17, 13}, {7, 5, 3, 2}, {1, 0}, {1, 0}, {2, 1}, {1, 1}, true},
    {"one axis", {4, 16, 100}, {32, 16, 5}, {2}, {2}, {1}, {1}, true},
    {"many images", {256, 64, 112, 112}, {64, 64, 7, 7}, {3, 3}, {3, 3}, {1, 1}, {1, 1}, false},
    {"odd channels", {2, 20, 7, 7}, {50, 20, 5, 5}, {0, 0}, {0, 0}, {1, 1}, {1, 1}, false},
    {"odd channels with bias", {2, 20, 7, 7}, {50, 20, 5, 5}, {0, 0}, {0, 0}, {1, 1}, {1, 1}, true},
    {"three axes",
     {2, 16, 8, 16, 16},
     {32, 16, 3, 3, 3},
     {1, 1, 1},
     {1, 1, 1},
     {1, 1, 1},
     {1, 1, 1},
     false},
};

struct Numbers {
  const char* name;
  ConvPrecision numbers;
};
const Numbers kNumbers[] = {{"float32", ConvPrecision::kFloat},
                            {"tf32", ConvPrecision::kTensorFloat},
                            {"bfloat16", ConvPrecision::kBFloat16},
                            {"float16", ConvPrecision::kFloat16}};

struct Variant {
  Numbers numbers;
  bool channels_last;
};
std::vector<Variant> variants() {
  std::vector<Variant> out;
  for (const bool channels_last : {false, true}) {
    for (const Numbers& numbers : kNumbers) {
      out.push_back({numbers, channels_last});
    }
  }
  return out;
}

/// Numerical notes that a plan for these types must not have.
std::set<int> forbidden(ConvPrecision numbers) {
  std::set<int> out = {
      CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,  CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
      CUDNN_NUMERICAL_NOTE_WINOGRAD,          CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4,
      CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13};
  if (numbers == ConvPrecision::kFloat) {
    out.insert({CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
                CUDNN_NUMERICAL_NOTE_FFT});
  }
  return out;
}

/// What is wrong with the plans that were kept; empty if nothing is.
std::string wrong(const pipetrain::PlanCount& plans, ConvPass pass, ConvPrecision numbers) {
  for (const int note : forbidden(numbers)) {
    if (plans.notes.contains(note)) return "a plan has numerical note " + std::to_string(note);
  }
  for (const std::string& part : pipetrain::inaccurate_plans(pass, numbers)) {
    for (const std::string& name : plans.names) {
      if (name.find(part) != std::string::npos) return "plan " + name + " is inaccurate";
    }
  }
  if (plans.workspace_bytes > pipetrain::kMostConvWorkspace)
    return "a plan takes " + std::to_string(plans.workspace_bytes) + " bytes of workspace";
  return {};
}

/// Compares output shapes from cuDNN's descriptors over random windows (symmetric padding only: the
/// descriptors support no other). Returns how many differ.
int compare_shapes(int count) {
  std::uint64_t random = 1;
  const auto below = [&](std::int64_t bound) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::int64_t>((random >> 33) % static_cast<std::uint64_t>(bound));
  };
  cudnnTensorDescriptor_t x = nullptr;
  cudnnFilterDescriptor_t w = nullptr;
  cudnnConvolutionDescriptor_t conv = nullptr;
  cudnnCreateTensorDescriptor(&x);
  cudnnCreateFilterDescriptor(&w);
  cudnnCreateConvolutionDescriptor(&conv);
  int wrong = 0;
  for (int i = 0; i < count; ++i) {
    Case c{"", {1 + below(8), 1 + below(8)}, {1 + below(8), 0}, {}, {}, {}, {}, false};
    c.w[1] = c.x[1];
    for (int d = 0; d < 2; ++d) {
      c.w.push_back(1 + below(5));
      c.dilation.push_back(1 + below(3));
      c.stride.push_back(1 + below(3));
      c.pad_begin.push_back(below(3));
      c.x.push_back((c.w.back() - 1) * c.dilation.back() + 1 + below(20));
    }
    c.pad_end = c.pad_begin;
    const auto at = [](const Dims& dims, std::size_t d) { return static_cast<int>(dims[d]); };
    cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, at(c.x, 0), at(c.x, 1),
                               at(c.x, 2), at(c.x, 3));
    cudnnSetFilter4dDescriptor(w, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, at(c.w, 0), at(c.w, 1),
                               at(c.w, 2), at(c.w, 3));
    cudnnSetConvolution2dDescriptor(conv, at(c.pad_begin, 0), at(c.pad_begin, 1), at(c.stride, 0),
                                    at(c.stride, 1), at(c.dilation, 0), at(c.dilation, 1),
                                    CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
    int dims[4] = {};
    const cudnnStatus_t status =
        cudnnGetConvolution2dForwardOutputDim(conv, x, w, &dims[0], &dims[1], &dims[2], &dims[3]);
    const ConvShapes shapes = shapes_of(c);
    if (status == CUDNN_STATUS_SUCCESS && Dims(dims, dims + 4) == shapes.y) continue;
    std::printf("shape %d differs from cuDNN's (%s)\n", i, cudnnGetErrorString(status));
    ++wrong;
  }
  std::printf("shapes compared with cuDNN's descriptors: %d\n", count);
  return wrong;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  std::ifstream file(arguments[1]);
  const std::string device((std::istreambuf_iterator<char>(file)), {});
  const char* passes[] = {"forward", "input gradient", "weight gradient"};
  int refused = 0;
  for (const auto& [numbers, channels_last] : variants()) {
    int accepted = 0, offered = 0, kept = 0, fewest = 1 << 30;
    for (const Case& c : kCases) {
      if (channels_last && c.x.size() != 4) continue;
      for (int pass = 0; pass < 3; ++pass) {
        ConvShapes shapes = shapes_of(c);
        shapes.numbers = numbers.numbers;
        shapes.channels_last = channels_last;
        shapes.float_bias = numbers.numbers == ConvPrecision::kFloat ||
                            numbers.numbers == ConvPrecision::kTensorFloat;
        const auto graph_pass = static_cast<ConvPass>(pass);
        ConvGraph graph(graph_pass, shapes, pipetrain::kMostConvWorkspace);
        std::string reason;
        const pipetrain::PlanCount plans = graph.plans_for(device, &reason);
        if (plans.kept > 0) reason = wrong(plans, graph_pass, numbers.numbers);
        if (plans.kept > 0 && reason.empty()) {
          ++accepted;
          offered += plans.offered;
          kept += plans.kept;
          fewest = std::min(fewest, plans.kept);
          continue;
        }
        ++refused;
        std::printf("refused: %s%s, %s, %s: %s\n", numbers.name,
                    channels_last ? ", channels last" : "", c.name, passes[pass], reason.c_str());
      }
    }
    std::printf(
        "convolution graphs in %s, %s, that cuDNN accepts for %s: %d; of %d plans %d are kept, at "
        "least %d of a graph\n",
        numbers.name, channels_last ? "channels last" : "row-major", arguments[1], accepted,
        offered, kept, accepted > 0 ? fewest : 0);
  }
  std::printf("refused: %d\n", refused);
  return refused + compare_shapes(2000) > 0 ? 1 : 0;
}
