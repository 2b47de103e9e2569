// Attention by cuDNN's fused kernels, for bfloat16 and float16 operands and the masks that cuDNN
// supports.
#include <algorithm>
#include <optional>

#include "graph/op.h"
#include "ops/attention/attention.h"
#include "ops/attention/sdpa_graph_cuda.h"
#include "ops/attention/sdpa_parts.h"
#include "ops/cuda/library_kernels_cuda.h"
#include "ops/cuda/library_plans_cuda.h"
#include "ops/kernel/element_types.h"

namespace pipetrain {
namespace {

/// Workspace limit of the deterministic gradient, whose workspace grows with samples, heads and the
/// square of the length.
constexpr std::size_t kMostWorkspace = std::size_t{512} << 20;
constexpr std::int64_t kNarrowBytes = 2;

std::byte* moved(void* data, std::int64_t bytes) {
  return data ? static_cast<std::byte*>(data) + bytes : nullptr;
}

/// The batch is processed in groups of samples, or of heads of one sample, one after another; the
/// groups share a workspace.
class SdpaKernel final : public Kernel {
 public:
  /// `graph` is of the shapes `part`; `unread_bytes`: of the largest result that nobody may read.
  SdpaKernel(std::shared_ptr<const SdpaGraph> graph, const SdpaShapes& whole,
             const SdpaShapes& part, bool gradient, std::size_t unread_bytes, cudnnHandle_t handle)
      : graph_(std::move(graph)),
        whole_(whole),
        part_(part),
        gradient_(gradient),
        unread_bytes_((unread_bytes + 255) / 256 * 256),
        handle_(handle) {}

  void run(std::span<const Tensor> in, std::span<const Tensor> out,
           const RunContext& context) override {
    const auto from = [&](std::size_t i) { return data_or_null<void>(in, i); };
    // The graph writes all results, also log-sum-exp during evaluation.
    const auto to = [&](std::size_t i) -> void* {
      void* const data = data_or_null<void>(out, i);
      return data ? data : context.workspace;
    };
    const SdpaTensors tensors = gradient_ ? SdpaTensors{from(1), from(2), from(3), from(6), from(7),
                                                        from(0), to(0),   to(1),   to(2)}
                                          : SdpaTensors{from(0), from(1), from(2), to(0),  to(1),
                                                        nullptr, nullptr, nullptr, nullptr};
    for (std::int64_t sample = 0; sample < whole_.batch; sample += part_.batch) {
      for (std::int64_t head = 0; head < whole_.key_heads; head += part_.key_heads)
        graph_->run(handle_, part_of(tensors, sample, head), context.workspace + unread_bytes_);
    }
  }
  std::size_t workspace_bytes() const override { return unread_bytes_ + graph_->workspace_bytes(); }

 private:
  /// The tensors, offset to a sample and key head.
  SdpaTensors part_of(const SdpaTensors& t, std::int64_t sample, std::int64_t key_head) const {
    const std::int64_t head = key_head * (whole_.heads / whole_.key_heads);
    const auto skipped = [&](const SdpaShapes::Steps& steps, std::int64_t heads) {
      return (sample * steps.batch + heads * steps.head) * kNarrowBytes;
    };
    const std::int64_t q = skipped(whole_.q, head), k = skipped(whole_.k, key_head),
                       v = skipped(whole_.v, key_head), y = skipped(whole_.y, head);
    const std::int64_t lse =
        (sample * whole_.heads + head) * whole_.queries * static_cast<std::int64_t>(sizeof(float));
    return {moved(t.q, q),  moved(t.k, k),  moved(t.v, v),  moved(t.y, y), moved(t.lse, lse),
            moved(t.dy, y), moved(t.dq, q), moved(t.dk, k), moved(t.dv, v)};
  }

  std::shared_ptr<const SdpaGraph> graph_;
  SdpaShapes whole_, part_;
  bool gradient_;
  std::size_t unread_bytes_;
  cudnnHandle_t handle_;
};

/// Splits into groups that need about 1 / `times` of the workspace: by samples, or by the heads of
/// one. False when there is only one head, or when the log-sum-exp of smaller groups would not be
/// aligned. `has_lse`: whether the graph reads or writes it.
bool take_fewer(SdpaShapes* part, std::size_t times, bool has_lse) {
  const std::int64_t of_head = has_lse ? part->queries : 0;
  if (part->batch > 1) {
    // If no group of samples is aligned, the heads of a second sample are not either.
    const std::int64_t batch = group_size(part->batch, times, part->heads * of_head);
    const bool is_fewer = batch < part->batch;
    part->batch = batch;
    return is_fewer;
  }
  const std::int64_t shared = part->heads / part->key_heads;
  const std::int64_t key_heads = group_size(part->key_heads, times, shared * of_head);
  const bool is_fewer = key_heads < part->key_heads;
  part->key_heads = key_heads;
  part->heads = key_heads * shared;
  return is_fewer;
}

/// What a plan depends on.
struct SdpaKey {
  SdpaShapes shapes;
  bool gradient, keeps_lse;
  auto operator<=>(const SdpaKey&) const = default;
};

/// The shapes for the fused kernels; `first` is the index of q among its inputs.
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

/// Whether all of these tensors are present and have the type.
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
    // The fourth result, the gradient of the mask, is never read: there is no mask (shapes_of).
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
  auto& plans = queue.libraries->plans<LibraryPlans<SdpaGraph, SdpaKey>>();
  SdpaShapes part = *shapes;
  auto found = plans.find({part, gradient, keeps_lse}, build);
  const bool is_new = found.is_new;  // other shapes may have the same parts
  const auto needs_too_much = [&] {
    return found.graph && found.graph->workspace_bytes() > kMostWorkspace;
  };
  while (needs_too_much() && take_fewer(&part, found.graph->workspace_bytes() / kMostWorkspace + 1,
                                        gradient || keeps_lse))
    found = plans.find({part, gradient, keeps_lse}, build);
  // A single head takes what it needs.
  if (needs_too_much() && (part.batch > 1 || part.key_heads > 1))
    found = {nullptr, "its parts would not begin at multiples of 16 bytes", is_new};
  // If the library has no plan for this GPU or for parts, the hand-written kernel is used.
  if (!found.graph) {
    if (is_new) warn_of_missing_plan(request, kByHandWrittenKernel, found.reason);
    return nullptr;
  }
  std::size_t unread_bytes = keeps_lse ? request.outputs[1].bytes() : 0;
  for (std::size_t i = 0; gradient && i < 3; ++i)
    unread_bytes = std::max(unread_bytes, request.outputs[i].bytes());
  return std::make_unique<SdpaKernel>(std::move(found.graph), *shapes, part, gradient, unread_bytes,
                                      handle);
}

}  // namespace pipetrain
