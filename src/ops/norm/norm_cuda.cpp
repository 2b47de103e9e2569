// Row-major batch normalization by cuDNN, by the statistics of the batch. (With channels last the
// hand-written kernels read no more than necessary. So do those of layer and root-mean-square
// normalization; for these cuDNN 9.14 takes 42 ms for a gradient of 200,704 rows of 96 on an H100.)
#include <algorithm>
#include <cmath>
#include <utility>

#include "graph/op.h"
#include "ops/cuda/library_kernels_cuda.h"
#include "ops/cuda/library_plans_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/elementwise/elementwise_list_cuda.h"
#include "ops/norm/batch_norm.h"
#include "ops/norm/batch_norm_launch_cuda.h"
#include "ops/norm/norm_graph_cuda.h"

namespace pipetrain {
namespace {

using SharedGraph = std::shared_ptr<const NormGraph>;
using NormPlans = LibraryPlans<NormGraph, NormShapes>;

/// A graph with its plan; null when cuDNN has none.
NormPlans::Found plan_for(const NormShapes& shapes, CudaLibraries& libraries) {
  const auto build = [&](const NormShapes& wanted, std::string* reason) -> SharedGraph {
    auto graph = std::make_shared<NormGraph>(wanted);
    return graph->build(libraries.cudnn(), reason) ? graph : nullptr;
  };
  return libraries.plans<NormPlans>().find(shapes, build);
}

/// Hands out slices of the workspace; that of the cuDNN graph comes last.
class WorkspaceParts {
 public:
  explicit WorkspaceParts(std::byte* at) : at_(at) {}
  template <class T = std::byte>
  T* next(std::size_t bytes) {
    std::byte* const part = at_;
    at_ += rounded(bytes);
    return reinterpret_cast<T*>(part);
  }
  static std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

 private:
  std::byte* at_;
};

std::size_t float_bytes(std::int64_t count) {
  return static_cast<std::size_t>(count) * sizeof(float);
}

class NormKernel : public Kernel {
 public:
  NormKernel(const NormShapes& shapes, SharedGraph graph, cudnnHandle_t handle)
      : shapes_(shapes), graph_(std::move(graph)), handle_(handle) {}

 protected:
  /// The tensor's memory, or scratch memory for an unused result.
  static void* or_scratch(std::span<const Tensor> tensors, std::size_t index, void* scratch) {
    return index < tensors.size() && tensors[index] ? tensors[index].data : scratch;
  }
  std::size_t channel_bytes() const { return float_bytes(shapes_.channels); }
  /// Workspace bytes: `parts`, then the graph's workspace.
  std::size_t workspace_with(std::initializer_list<std::size_t> parts) const {
    std::size_t bytes = graph_->workspace_bytes();
    for (const std::size_t part : parts) bytes += WorkspaceParts::rounded(part);
    return bytes;
  }

  NormShapes shapes_;
  SharedGraph graph_;
  cudnnHandle_t handle_;
};

class BatchNormForward final : public NormKernel {
 public:
  /// Limits of y that the graph does not support are applied afterwards.
  BatchNormForward(const NormShapes& shapes, const batch_norm::Channels& channels,
                   SharedGraph graph, cudnnHandle_t handle, const CudaQueue& queue)
      : NormKernel(shapes, std::move(graph), handle), queue_(queue) {
    using namespace elementwise;
    if (channels.clips && !shapes.relu)
      clip_ = encode(Clip<float, DeviceMath>{channels.low, channels.high}, UnaryFunctions());
  }

  void run(std::span<const Tensor> in, std::span<const Tensor> out,
           const RunContext& context) override {
    WorkspaceParts parts(context.workspace);
    auto* const mean = parts.next<void>(channel_bytes());
    auto* const inverse = parts.next<float>(channel_bytes());
    NormTensors tensors{};
    tensors.x = in[0].data;
    tensors.scale = in[1].data;
    tensors.bias = in[2].data;
    tensors.y = out[0].data;
    tensors.mean = or_scratch(out, 1, mean);
    tensors.inverse = inverse;
    graph_->run(handle_, tensors, parts.next(0));
    if (clip_.place >= 0)
      elementwise::launch_unary(clip_, numbers_at(out, 0), places_at(out, 0), out[0].count(),
                                queue_);
    // BatchNorm returns the variance, cuDNN the inverse deviation.
    if (out.size() > 2 && out[2])
      batch_norm::launch_variances(shapes_.channels, shapes_.epsilon, inverse, out[2].as<float>(),
                                   queue_);
  }
  std::size_t workspace_bytes() const override {
    return workspace_with({channel_bytes(), channel_bytes()});
  }

 private:
  CudaQueue queue_;
  elementwise::Coded clip_;
};

class BatchNormGradient final : public NormKernel {
 public:
  BatchNormGradient(const NormShapes& shapes, const batch_norm::Channels& channels,
                    SharedGraph graph, cudnnHandle_t handle, const CudaQueue& queue)
      : NormKernel(shapes, std::move(graph), handle), channels_(channels), queue_(queue) {}

  void run(std::span<const Tensor> in, std::span<const Tensor> out,
           const RunContext& context) override {
    if (!out[0]) {  // dx is unused, but the library always computes it
      return batch_norm::launch_batch_norm_gradient(
          channels_, /*training=*/true, numbers_at(in, 0), numbers_at(in, 1), numbers_at(in, 2),
          numbers_at(in, 3), numbers_at(in, 4), numbers_at(in, 5), FloatView(), places_at(out, 1),
          places_at(out, 2), /*workspace=*/nullptr, queue_);
    }
    WorkspaceParts parts(context.workspace);
    auto* const inverse = parts.next<float>(channel_bytes());
    batch_norm::launch_inverse_deviations(channels_.channels, channels_.epsilon,
                                          in[4].as<const float>(), inverse, queue_);
    NormTensors tensors{};
    tensors.dy = in[0].data;
    tensors.x = in[1].data;
    tensors.scale = in[2].data;
    tensors.mean = in[3].data;
    tensors.inverse = inverse;
    tensors.dx = out[0].data;
    tensors.dscale = or_scratch(out, 1, parts.next(channel_bytes()));
    tensors.dbias = or_scratch(out, 2, parts.next(channel_bytes()));
    void* const passed = parts.next(passed_bytes());
    if (channels_.clips) {
      batch_norm::launch_batch_norm_passed(channels_, numbers_at(in, 0), numbers_at(in, 1),
                                           numbers_at(in, 2), numbers_at(in, 3), numbers_at(in, 4),
                                           numbers_at(in, 5),
                                           FloatView(passed, stored_as(in[0].type.dtype)), queue_);
      tensors.dy = passed;
    }
    graph_->run(handle_, tensors, parts.next(0));
  }
  std::size_t workspace_bytes() const override {
    return workspace_with({channel_bytes(), channel_bytes(), channel_bytes(), passed_bytes()});
  }

 private:
  /// dy, zeroed where y was clipped.
  std::size_t passed_bytes() const {
    if (!channels_.clips) return 0;
    const std::size_t size = shapes_.numbers == NormShapes::Precision::kFloat ? 4 : 2;
    return static_cast<std::size_t>(shapes_.images * shapes_.channels * shapes_.positions) * size;
  }

  batch_norm::Channels channels_;
  CudaQueue queue_;
};

bool is_absent(const std::vector<TensorType>& types, std::size_t index) {
  return index >= types.size() || types[index].dtype == DType::kUndefined;
}
bool are(DType dtype, const std::vector<TensorType>& types,
         std::initializer_list<std::size_t> indices) {
  return std::all_of(indices.begin(), indices.end(),
                     [&](std::size_t i) { return i < types.size() && types[i].dtype == dtype; });
}
/// Whether all present tensors from `first` on are float32.
bool rest_is_float(const std::vector<TensorType>& types, std::size_t first) {
  for (std::size_t i = first; i < types.size(); ++i) {
    if (!is_absent(types, i) && types[i].dtype != DType::kFloat32) return false;
  }
  return true;
}

NormShapes::Precision numbers_of(DType dtype) {
  return dtype == DType::kBFloat16  ? NormShapes::Precision::kBFloat16
         : dtype == DType::kFloat16 ? NormShapes::Precision::kFloat16
                                    : NormShapes::Precision::kFloat;
}

}  // namespace

std::unique_ptr<Kernel> make_norm_cuda(const KernelRequest& request, const CudaQueue& queue) {
  const std::string_view op = request.node.op->name;
  const bool gradient = op == "BatchNormGrad";
  const std::size_t first = gradient ? 1 : 0;  // x, after dy
  const DType stored = request.inputs[first].dtype;
  // x, y and their gradients have one type, everything else is float32; y or dx and the scale must
  // be present.
  if (!takes_types(request) || !is_stored_float(stored) || request.inputs[first].count() == 0)
    return nullptr;
  if (!are(stored, request.inputs, {0}) || !are(stored, request.outputs, {0}) ||
      is_absent(request.inputs, first + 1) || !rest_is_float(request.inputs, first + 1) ||
      !rest_is_float(request.outputs, 1))
    return nullptr;
  if (!gradient && request.inputs.size() > 3) return nullptr;  // a sum
  const Attributes& attributes = request.node.attributes;
  const BatchNormShape shape(request.inputs[first].shape);
  const BatchNormLimits limits(attributes);
  const batch_norm::Channels channels{shape.images,
                                      shape.channels,
                                      shape.positions,
                                      static_cast<float>(batch_norm_epsilon(attributes)),
                                      static_cast<float>(limits.low),
                                      static_cast<float>(limits.high),
                                      static_cast<float>(limits.passes_from),
                                      limits.any()};
  NormShapes shapes{gradient,         shape.images, shape.channels,    shape.positions,
                    channels.epsilon, false,        numbers_of(stored)};
  if (gradient) {
    shapes.epsilon = 0;  // not in these graphs, of which equal ones share a plan
  } else {
    // cuDNN supports no limits but those of a Relu.
    shapes.relu = limits.any() && limits.low == 0 && !std::isfinite(limits.high);
  }
  cudnnHandle_t handle = queue.libraries->cudnn();
  const NormPlans::Found found = plan_for(shapes, *queue.libraries);
  // If the library has no plan for this GPU, the hand-written kernel is used.
  if (!found.graph) {
    if (found.is_new) warn_of_missing_plan(request, kByHandWrittenKernel, found.reason);
    return nullptr;
  }
  SharedGraph graph = found.graph;
  if (gradient)
    return std::make_unique<BatchNormGradient>(shapes, channels, std::move(graph), handle, queue);
  return std::make_unique<BatchNormForward>(shapes, channels, std::move(graph), handle, queue);
}

}  // namespace pipetrain
