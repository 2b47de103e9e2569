// Attention over bfloat16 or float16, or its gradient, as a cuDNN graph for which fused kernels
// exist.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "device/libraries_cuda.h"
#include "ops/cuda/plan_count_cuda.h"

namespace pipetrain {

/// q, y: (batch, heads, queries, width)   k, v: (batch, key_heads, keys, width)
struct SdpaShapes {
  /// Strides in elements; the elements of a vector are contiguous.
  struct Steps {
    std::int64_t batch, head, step;
    auto operator<=>(const Steps&) const = default;
  };
  std::int64_t batch, heads, key_heads, queries, keys, width;
  Steps q, k, v, y;
  float scale;
  enum class Mask : std::uint8_t {
    kNone,
    kCausal,      // query i attends to keys up to i
    kCausalLast,  // the last query attends to all keys
  } mask;
  bool half;  // float16, else bfloat16

  auto operator<=>(const SdpaShapes&) const = default;
};

/// Addresses of the tensors; only `lse` (batch, heads, queries) is float32.
struct SdpaTensors {
  void *q, *k, *v, *y, *lse;
  void *dy, *dq, *dk, *dv;  // of the gradient; null in the forward pass
};

class SdpaGraph {
 public:
  /// `keeps_lse`: the forward pass writes lse.
  SdpaGraph(const SdpaShapes& shapes, bool gradient, bool keeps_lse);
  ~SdpaGraph();

  /// See LibraryGraph.
  PlanCount plans_for(const std::string& properties, std::string* reason);
  bool build(cudnnHandle_t handle, std::string* reason);
  std::size_t workspace_bytes() const;
  void run(cudnnHandle_t handle, const SdpaTensors& tensors, void* workspace) const;

 private:
  struct Content;
  std::unique_ptr<Content> content_;
};

}  // namespace pipetrain
