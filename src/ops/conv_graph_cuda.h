// A convolution, or one of its gradients, as a graph that cuDNN chooses a plan for. The only file
// behind this header that sees the headers of cudnn-frontend.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/libraries_cuda.h"

namespace pipetrain {

enum class ConvPass : std::uint8_t { kForward, kInputGradient, kWeightGradient };

/// Row-major tensors of floats. x: (N, C, spatial…)   w: (M, C / group, kernel…)   y: (N, M, …)
struct ConvShapes {
  std::vector<std::int64_t> x, w, y;
  std::vector<std::int64_t> pad_begin, pad_end, stride, dilation;
  bool bias = false;  // (M), added by the forward pass
};

class ConvGraph {
 public:
  ConvGraph(ConvPass pass, const ConvShapes& shapes);
  ~ConvGraph();

  /// Asks cuDNN for plans for a GPU that need not be here; `properties`: its description in JSON.
  /// Returns how many there are, or 0 and the reason.
  int plans_for(const std::string& properties, std::string* reason);
  /// Chooses the first plan that can be built. False and the reason when there is none.
  bool build(cudnnHandle_t handle, std::string* reason);
  std::size_t workspace_bytes() const;
  /// `first`, `second`: x and w; dy and w; dy and x. `bias` may be null.
  void run(cudnnHandle_t handle, void* first, void* second, void* bias, void* out,
           void* workspace) const;

 private:
  struct Content;
  std::unique_ptr<Content> content_;
};

}  // namespace pipetrain
