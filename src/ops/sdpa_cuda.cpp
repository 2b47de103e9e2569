// Attention by cuDNN's fused kernels, where operands are narrow and the mask is one that these
// know.
#include <algorithm>
#include <optional>

#include "graph/op.h"
#include "ops/attention.h"
#include "ops/element_types.h"
#include "ops/library_kernels_cuda.h"
#include "ops/library_plans_cuda.h"
#include "ops/sdpa_graph_cuda.h"

namespace pipetrain {
namespace {

class SdpaKernel final : public Kernel {
 public:
  /// `unread_bytes`: of the largest result that nobody may read.
  SdpaKernel(std::shared_ptr<const SdpaGraph> graph, bool gradient, std::size_t unread_bytes,
             cudnnHandle_t handle)
      : graph_(std::move(graph)),
        gradient_(gradient),
        unread_bytes_((unread_bytes + 255) / 256 * 256),
        handle_(handle) {}

  void run(std::span<const Tensor> in, std::span<const Tensor> out,
           const RunContext& context) override {
    const auto from = [&](std::size_t i) { return data_or_null<void>(in, i); };
    // The graph writes all results, in an evaluation the sums for a gradient, too.
    const auto to = [&](std::size_t i) -> void* {
      void* const data = data_or_null<void>(out, i);
      return data ? data : context.workspace;
    };
    const SdpaTensors tensors = gradient_ ? SdpaTensors{from(1), from(2), from(3), from(6), from(7),
                                                        from(0), to(0),   to(1),   to(2)}
                                          : SdpaTensors{from(0), from(1), from(2), to(0),  to(1),
                                                        nullptr, nullptr, nullptr, nullptr};
    graph_->run(handle_, tensors, context.workspace + unread_bytes_);
  }
  std::size_t workspace_bytes() const override { return unread_bytes_ + graph_->workspace_bytes(); }

 private:
  std::shared_ptr<const SdpaGraph> graph_;
  bool gradient_;
  std::size_t unread_bytes_;
  cudnnHandle_t handle_;
};

/// What a plan depends on.
struct SdpaKey {
  SdpaShapes shapes;
  bool gradient, keeps_lse;
  auto operator<=>(const SdpaKey&) const = default;
};

/// What the fused kernels take of a node; `first` is the index of q among its inputs.
std::optional<SdpaShapes> shapes_of(const KernelRequest& request, std::size_t first) {
  const attention::Geometry g = attention::geometry_of(request, first);
  const auto absent = [&](std::size_t i) {
    return i >= request.inputs.size() || request.inputs[i].dtype == DType::kUndefined;
  };
  const bool masked = !absent(first + 3) || !absent(first + 4);
  if (masked || g.softcap > 0 || g.left >= 0 || g.right >= 0 || g.offset_from_lengths) return {};
  if (g.width != g.value_width || g.width % 8 != 0 || g.width > 128) return {};
  if (g.batch * g.queries * g.keys == 0) return {};
  SdpaShapes::Mask mask = SdpaShapes::Mask::kNone;
  if (g.causal && g.offset == 0) {
    mask = SdpaShapes::Mask::kCausal;
  } else if (g.causal && g.offset > 0 && g.offset == g.keys - g.queries) {
    mask = SdpaShapes::Mask::kCausalLast;
  } else if (g.causal) {
    return {};
  }
  const auto steps = [](const attention::Strides& s) {
    return SdpaShapes::Steps{s.batch, s.head, s.step};
  };
  return SdpaShapes{g.batch,
                    g.heads,
                    g.key_heads,
                    g.queries,
                    g.keys,
                    g.width,
                    steps(g.q),
                    steps(g.k),
                    steps(g.v),
                    steps(g.y),
                    static_cast<float>(g.scale),
                    mask,
                    request.inputs[first].dtype == DType::kFloat16};
}

/// Whether all of these tensors are there and have the type.
bool all_are(DType dtype, const std::vector<TensorType>& types,
             std::initializer_list<std::size_t> indices) {
  return std::all_of(indices.begin(), indices.end(),
                     [&](std::size_t i) { return i < types.size() && types[i].dtype == dtype; });
}

}  // namespace

std::unique_ptr<Kernel> make_sdpa_cuda(const KernelRequest& request, const CudaQueue& queue) {
  const bool gradient = request.node.op->name == "AttentionGrad";
  const DType narrow = request.inputs[0].dtype;
  if (!is_row_major(request) || (narrow != DType::kBFloat16 && narrow != DType::kFloat16))
    return nullptr;
  const bool keeps_lse =
      !gradient && request.outputs.size() > 1 && request.outputs[1].dtype != DType::kUndefined;
  if (gradient) {
    // Of a mask's gradient, the fourth result, nobody reads anything: there is no mask (shapes_of).
    if (!all_are(narrow, request.inputs, {0, 1, 2, 3, 6}) ||
        !all_are(narrow, request.outputs, {0, 1, 2}) ||
        !all_are(DType::kFloat32, request.inputs, {7}))
      return nullptr;
  } else if (!all_are(narrow, request.inputs, {0, 1, 2}) ||
             !all_are(narrow, request.outputs, {0}) ||
             (keeps_lse && request.outputs[1].dtype != DType::kFloat32)) {
    return nullptr;
  }
  const std::optional<SdpaShapes> shapes = shapes_of(request, gradient ? 1 : 0);
  if (!shapes) return nullptr;
  cudnnHandle_t handle = queue.libraries->cudnn();
  const auto build = [&](const SdpaKey& key,
                         std::string* reason) -> std::shared_ptr<const SdpaGraph> {
    auto graph = std::make_shared<SdpaGraph>(key.shapes, key.gradient, key.keeps_lse);
    return graph->build(handle, reason) ? graph : nullptr;
  };
  auto graph = queue.libraries->plans<LibraryPlans<SdpaGraph, SdpaKey>>()
                   .find({*shapes, gradient, keeps_lse}, build)
                   .graph;
  // Where the library has none for this GPU there is always the own kernel.
  if (!graph) return nullptr;
  std::size_t unread_bytes = keeps_lse ? request.outputs[1].bytes() : 0;
  for (std::size_t i = 0; gradient && i < 3; ++i)
    unread_bytes = std::max(unread_bytes, request.outputs[i].bytes());
  return std::make_unique<SdpaKernel>(std::move(graph), gradient, unread_bytes, handle);
}

}  // namespace pipetrain
