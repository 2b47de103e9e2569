// Convolutions by cuDNN.
#include <algorithm>
#include <limits>
#include <utility>

#include "graph/op.h"
#include "ops/conv/conv.h"
#include "ops/conv/conv_graph_cuda.h"
#include "ops/conv/depthwise_cuda.h"
#include "ops/cuda/library_kernels_cuda.h"
#include "ops/cuda/library_plans_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/elementwise/elementwise_list_cuda.h"
#include "ops/elementwise/padded_rows_launch_cuda.h"
#include "ops/movement/movement_launch_cuda.h"
#include "ops/reduce/reduce_launch_cuda.h"
#include "ops/reorder/reorder_launch_cuda.h"

namespace pipetrain {
namespace {

ConvShapes shapes_of(const ConvGeometry& geometry, const Shape& x, const Shape& w, const Shape& y) {
  ConvShapes shapes{x.dims(), w.dims(), y.dims(), {}, {}, {}, {}, false};
  for (const WindowAxis& axis : geometry.window) {
    shapes.pad_begin.push_back(axis.pad_begin);
    shapes.pad_end.push_back(axis.pad_end);
    shapes.stride.push_back(axis.stride);
    shapes.dilation.push_back(axis.dilation);
  }
  return shapes;
}

/// What a plan depends on.
struct ConvKey {
  ConvPass pass;
  ConvShapes shapes;
  auto operator<=>(const ConvKey&) const = default;
};
using ConvPlans = LibraryPlans<ConvGraph, ConvKey>;

/// A graph with its plan. One that takes more workspace than it should, or is less accurate, is
/// better than none.
std::shared_ptr<const ConvGraph> build_graph(const ConvKey& key, cudnnHandle_t handle,
                                             std::string* reason) {
  constexpr std::int64_t kAnyWorkspace = std::numeric_limits<std::int64_t>::max();
  const std::pair<std::int64_t, ConvPlanChoice> choices[] = {
      {kMostConvWorkspace, ConvPlanChoice::kAccurate},
      {kAnyWorkspace, ConvPlanChoice::kAccurate},
      {kMostConvWorkspace, ConvPlanChoice::kAny},
      {kAnyWorkspace, ConvPlanChoice::kAny}};
  for (const auto& [most_workspace, choice] : choices) {
    auto graph = std::make_shared<ConvGraph>(key.pass, key.shapes, most_workspace, choice);
    if (graph->build(handle, reason)) return graph;
  }
  return nullptr;
}

/// x with its padding in memory, for weight gradients whose padding differs between the two ends of
/// an axis: cuDNN 9.14 computes wrong gradients in float32 for them (seen on an H200).
struct PaddedInput {
  std::int64_t count = 0;  // elements; none: x is taken as it is
  int element_size = 0;
  std::int64_t offset = 0;  // of the first element of x
  movement::CopyWalk walk;

  std::size_t bytes() const {
    return (static_cast<std::size_t>(count) * static_cast<std::size_t>(element_size) + 255) / 256 *
           256;
  }
  void fill(const void* x, std::byte* to, const CudaQueue& queue) const {
    movement::launch_fill_elements(to, 0, element_size, count, queue);
    const movement::CopyTask task{walk, ConstFloatView(x, Stored::kFloat),
                                  FloatView(to + offset * element_size, Stored::kFloat)};
    movement::launch_copies(&task, 1, element_size, queue);
  }
};

/// Takes the padding out of `shapes`.
PaddedInput pad_in_memory(ConvShapes& shapes, DType dtype) {
  PaddedInput out;
  if (shapes.pad_begin == shapes.pad_end) return out;
  const std::vector<std::int64_t> plain = shapes.x;
  for (std::size_t axis = 0; axis < shapes.pad_begin.size(); ++axis)
    shapes.x[2 + axis] += shapes.pad_begin[axis] + shapes.pad_end[axis];
  const std::vector<std::int64_t> from = shapes.strides_of(plain);
  const std::vector<std::int64_t> to = shapes.strides_of(shapes.x);
  out.element_size = static_cast<int>(size_of(dtype));
  out.walk.dimensions = static_cast<int>(plain.size());
  out.walk.count = out.count = 1;
  for (std::size_t d = 0; d < plain.size(); ++d) {
    out.walk.sizes[d] = plain[d];
    out.walk.source[d] = from[d];
    out.walk.target[d] = to[d];
    out.walk.count *= plain[d];
    out.count *= shapes.x[d];
    if (d >= 2) out.offset += shapes.pad_begin[d - 2] * to[d];
  }
  shapes.pad_begin.assign(shapes.pad_begin.size(), 0);
  shapes.pad_end = shapes.pad_begin;
  return out;
}

/// x and w with their channels padded to kWide in memory, as tensor cores read groups of eight: for
/// ResNet-50's first layer on an H200 the weight gradient takes 272 instead of 310 us, the forward
/// pass as long as before, 460 us.
struct PaddedChannels {
  std::int64_t positions = 0;  // rows of x; none: channels are taken as they are
  std::int64_t weights = 0;    // rows of w
  std::int64_t channels = 0;

  std::size_t x_bytes() const { return bytes(positions); }
  std::size_t w_bytes() const { return bytes(weights); }

 private:
  static std::size_t bytes(std::int64_t rows) {
    return (static_cast<std::size_t>(rows) * kWide * sizeof(std::uint16_t) + 255) / 256 * 256;
  }
};

/// For narrow operands with channels last and one group.
PaddedChannels pad_channels(ConvPass pass, ConvShapes& shapes) {
  PaddedChannels out;
  if (shapes.x[1] >= kWide || shapes.w[1] != shapes.x[1]) return out;
  out.channels = shapes.x[1];
  out.positions = out.weights = 1;
  for (std::size_t d = 0; d < shapes.x.size(); ++d) {
    if (d == 1) continue;
    out.positions *= shapes.x[d];
    out.weights *= shapes.w[d];
  }
  if (pass == ConvPass::kWeightGradient) out.weights = 0;
  shapes.x[1] = shapes.w[1] = kWide;
  return out;
}

/// Of the workspace: for a bias in the type of the operands, and for a result on its way to float32
/// or, of a weight's gradient, to row-major.
struct ConvStaging {
  std::size_t bias_bytes, result_bytes;
  Stored operands;
  reorder::Matrices weights;  // no matrices: a result keeps its order
  PaddedInput padded;
  PaddedChannels channels;
};

class ConvKernel final : public Kernel {
 public:
  ConvKernel(ConvPass pass, const ConvShapes& shapes, const ConvStaging& staging,
             std::shared_ptr<const ConvGraph> graph, const CudaQueue& queue)
      : pass_(pass),
        bias_bytes_(staging.bias_bytes),
        narrow_bytes_(staging.result_bytes),
        stored_(staging.operands),
        weights_(staging.weights),
        padded_(staging.padded),
        channels_(staging.channels),
        graph_(std::move(graph)),
        handle_(queue.libraries->cudnn()),
        queue_(queue) {
    // The gradient of the bias: dy summed over all but its channels.
    bias_.kept_dimensions = 1;
    bias_.kept_sizes[0] = bias_.kept = shapes.y[1];
    bias_.reduced_dimensions = 2;
    std::int64_t positions = 1;
    for (std::size_t d = 2; d < shapes.y.size(); ++d) positions *= shapes.y[d];
    bias_.kept_strides[0] = shapes.channels_last ? 1 : positions;
    bias_.reduced_sizes[0] = shapes.y[0];
    bias_.reduced_strides[0] = shapes.y[1] * positions;
    bias_.reduced_sizes[1] = positions;
    bias_.reduced_strides[1] = shapes.channels_last ? shapes.y[1] : 1;
    bias_.reduced = shapes.y[0] * positions;
    bias_.innermost_is_reduced = !shapes.channels_last;
    // From (M, kernel, kWide) to (M, C, kernel).
    std::int64_t kernel = 1;
    for (std::size_t d = 2; d < shapes.w.size(); ++d) kernel *= shapes.w[d];
    const std::int64_t c = channels_.channels;
    without_padding_.dimensions = 3;
    const std::int64_t sizes[] = {shapes.w[0], c, kernel}, target[] = {c * kernel, kernel, 1},
                       source[] = {kernel * kWide, 1, kWide};
    std::copy_n(sizes, 3, without_padding_.sizes);
    std::copy_n(target, 3, without_padding_.target);
    std::copy_n(source, 3, without_padding_.source);
    without_padding_.count = shapes.w[0] * c * kernel;
  }

  void run(std::span<const Tensor> in, std::span<const Tensor> out,
           const RunContext& context) override {
    std::byte* const padded = context.workspace + bias_bytes_ + narrow_bytes_;
    std::byte* const workspace = padded + padded_bytes();
    void* result = out[0].data;
    if (narrow_bytes_ > 0) result = context.workspace + bias_bytes_;
    void *x = in[0].data, *w = in[1].data;  // or dy and w, or x and dy
    if (out[0] && padded_.count > 0) {
      padded_.fill(x, padded, queue_);
      x = padded;
    }
    if (out[0] && channels_.positions > 0) {
      x = with_padded_channels(numbers_at(in, 0), padded, channels_.positions);
      if (channels_.weights > 0)
        w = with_padded_channels(numbers_at(in, 1), padded + channels_.x_bytes(),
                                 channels_.weights);
    }
    if (pass_ == ConvPass::kWeightGradient) {
      // The node has x before dy.
      if (out[0]) graph_->run(handle_, w, x, nullptr, result, workspace);
    } else {
      void* bias = in.size() > 2 ? in[2].data : nullptr;
      if (bias_bytes_ > 0) {
        elementwise::launch_restore(numbers_at(in, 2), FloatView(context.workspace, stored_),
                                    in[2].count(), queue_);
        bias = context.workspace;
      }
      graph_->run(handle_, x, w, bias, result, workspace);
    }
    if (channels_.positions > 0 && pass_ == ConvPass::kWeightGradient) {
      if (out[0]) {
        const movement::CopyTask task{without_padding_, ConstFloatView(result, stored_),
                                      places_at(out, 0)};
        movement::launch_copies(&task, 1, /*size=*/0, queue_);
      }
    } else if (weights_.matrices > 0 && out[0]) {
      reorder::launch_transpose(weights_, ConstFloatView(result, stored_), places_at(out, 0),
                                queue_);
    } else if (narrow_bytes_ > 0 && out[0]) {
      elementwise::launch_restore(ConstFloatView(result, stored_), places_at(out, 0),
                                  out[0].count(), queue_);
    }
    if (pass_ == ConvPass::kWeightGradient && out.size() > 1 && out[1])
      reduce::launch_reduce(reduce::Reduction::kSum, bias_, numbers_at(in, 1), places_at(out, 1),
                            reinterpret_cast<float*>(context.workspace), queue_);
  }
  std::size_t workspace_bytes() const override {
    const auto bias = static_cast<std::size_t>(reduce::workspace_of(bias_)) * sizeof(float);
    return std::max(bias_bytes_ + narrow_bytes_ + padded_bytes() + graph_->workspace_bytes(), bias);
  }

 private:
  std::size_t padded_bytes() const {
    return padded_.bytes() + channels_.x_bytes() + channels_.w_bytes();
  }
  void* with_padded_channels(const ConstFloatView& from, std::byte* to, std::int64_t rows) const {
    elementwise::launch_restore_rows(from, FloatView(to, stored_), rows, channels_.channels, rows,
                                     queue_);
    return to;
  }

  ConvPass pass_;
  std::size_t bias_bytes_, narrow_bytes_;
  Stored stored_;
  reorder::Matrices weights_;
  PaddedInput padded_;
  PaddedChannels channels_;
  movement::CopyWalk without_padding_;  // of the gradient of a weight with padded channels
  std::shared_ptr<const ConvGraph> graph_;
  cudnnHandle_t handle_;
  CudaQueue queue_;
  reduce::ReduceWalk bias_;
};

/// Whether a weight lies in memory alike in both layouts.
bool lies_both_ways(const Shape& w) { return w[1] == 1 || w.count(2, w.rank()) == 1; }

/// Feature maps and weight row-major; or feature maps channels last and a weight that an operand
/// is, too, or can be taken for. A weight's gradient is row-major always.
bool takes_layouts(const KernelRequest& request, ConvPass pass, const Shape& w) {
  const Layout layout = request.inputs[0].layout;
  if (layout != Layout::kRowMajor && layout != Layout::kChannelsLast) return false;
  const TensorType& second = request.inputs[1];
  const TensorType& result = request.outputs[0];
  if (pass == ConvPass::kWeightGradient)
    return second.layout == layout &&
           (result.dtype == DType::kUndefined || result.layout == Layout::kRowMajor);
  return result.layout == layout && (second.layout == layout || lies_both_ways(w));
}

}  // namespace

std::unique_ptr<Kernel> make_conv_cuda(const KernelRequest& request, const CudaQueue& queue) {
  for (const auto* types : {&request.inputs, &request.outputs}) {
    for (const TensorType& type : *types) {
      if (type.dtype == DType::kUndefined) continue;
      if (!is_stored_float(type.dtype) || type.count() == 0) return nullptr;
    }
  }
  const DType operands = request.inputs[0].dtype, stored = request.outputs[0].dtype;
  if (request.inputs[1].dtype != operands) return nullptr;
  if (stored != operands && stored != DType::kFloat32 && stored != DType::kUndefined)
    return nullptr;
  const std::string_view op = request.node.op->name;
  const ConvPass pass = op == "Conv"            ? ConvPass::kForward
                        : op == "ConvInputGrad" ? ConvPass::kInputGradient
                                                : ConvPass::kWeightGradient;
  const Shape& first = request.inputs[0].shape;
  const Shape& second = request.inputs[1].shape;
  const Shape& result = request.outputs[0].shape;
  const Shape& x = pass == ConvPass::kInputGradient ? result : first;
  const Shape& w = pass == ConvPass::kWeightGradient ? result : second;
  const Shape& y = pass == ConvPass::kForward         ? result
                   : pass == ConvPass::kInputGradient ? first
                                                      : second;
  if (!takes_layouts(request, pass, w)) return nullptr;
  if (pass == ConvPass::kForward && has_depthwise_kernel(request)) return nullptr;
  ConvShapes shapes = shapes_of(conv_geometry(request.node.attributes, x, w), x, w, y);
  shapes.bias = request.inputs.size() > 2 && request.inputs[2].dtype != DType::kUndefined;
  shapes.numbers = operands == DType::kBFloat16  ? ConvPrecision::kBFloat16
                   : operands == DType::kFloat16 ? ConvPrecision::kFloat16
                   : queue.tensor_floats         ? ConvPrecision::kTensorFloat
                                                 : ConvPrecision::kFloat;
  // For narrow operands cuDNN has biases and results of their type only.
  const auto aligned = [&](std::int64_t count) {
    return (static_cast<std::size_t>(count) * size_of(operands) + 255) / 256 * 256;
  };
  const bool narrow = operands != DType::kFloat32;
  shapes.float_bias = shapes.float_result = !narrow;
  shapes.channels_last = request.inputs[0].layout == Layout::kChannelsLast;
  const bool turns =
      pass == ConvPass::kWeightGradient && shapes.channels_last && !lies_both_ways(w);
  ConvStaging staging{};
  staging.operands = stored_as(operands);
  if (narrow && shapes.channels_last && pass != ConvPass::kInputGradient &&
      shapes.pad_begin == shapes.pad_end)
    staging.channels = pad_channels(pass, shapes);
  if (narrow && shapes.bias) staging.bias_bytes = aligned(w[0]);
  if ((narrow && stored == DType::kFloat32) || turns)
    staging.result_bytes = aligned(result.count());
  if (staging.channels.positions > 0 && pass == ConvPass::kWeightGradient && result.rank() > 0)
    staging.result_bytes = aligned(result.count() / w[1] * kWide);
  if (pass == ConvPass::kWeightGradient) staging.padded = pad_in_memory(shapes, operands);
  // From (M, kernel, C) to (M, C, kernel).
  if (turns) staging.weights = {w[0], w.count(2, w.rank()), w[1]};
  const ConvPlans::Found found = queue.libraries->plans<ConvPlans>().find(
      {pass, shapes}, [&](const ConvKey& key, std::string* reason) {
        return build_graph(key, queue.libraries->cudnn(), reason);
      });
  if (found.graph) return std::make_unique<ConvKernel>(pass, shapes, staging, found.graph, queue);
  if (found.is_new) warn_of_missing_plan(request, "runs on the CPU", found.reason);
  return nullptr;
}

}  // namespace pipetrain
