// Batch normalization by the statistics of the batch, or its gradient, as a cuDNN graph.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "device/libraries_cuda.h"
#include "ops/cuda/plan_count_cuda.h"

namespace pipetrain {

/// x, y and their gradients: (images, channels, positions), row-major. Everything else is float32
/// per channel: scale, bias and their gradients, mean and inverse deviation, 1 / sqrt(biased
/// variance + epsilon).
struct NormShapes {
  bool gradient;
  std::int64_t images, channels, positions;
  float epsilon;  // of the forward pass
  bool relu;      // of the forward pass: y is max(0, y)
  enum class Precision : std::uint8_t { kFloat, kBFloat16, kFloat16 } numbers;

  auto operator<=>(const NormShapes&) const = default;
};

/// Addresses of the tensors. Null: `bias` and y in the gradient; the last four in the forward pass.
struct NormTensors {
  void *x, *scale, *bias, *y, *mean, *inverse;
  void *dy, *dx, *dscale, *dbias;
};

class NormGraph {
 public:
  explicit NormGraph(const NormShapes& shapes);
  ~NormGraph();

  /// See LibraryGraph.
  PlanCount plans_for(const std::string& properties, std::string* reason);
  bool build(cudnnHandle_t handle, std::string* reason);
  std::size_t workspace_bytes() const;
  void run(cudnnHandle_t handle, const NormTensors& tensors, void* workspace) const;
  /// Whether the result sizes that cuDNN infers match the shapes. False and the reason if not.
  static bool infers_sizes(const NormShapes& shapes, std::string* reason);

 private:
  struct Content;
  std::unique_ptr<Content> content_;
};

}  // namespace pipetrain
