// A convolution, or one of its gradients, as a graph that cuDNN chooses a plan for.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/libraries_cuda.h"
#include "ops/cuda/plan_count_cuda.h"

namespace pipetrain {

enum class ConvPass : std::uint8_t { kForward, kInputGradient, kWeightGradient };

/// How a graph stores and multiplies; sums are float32 in all of them.
enum class ConvPrecision : std::uint8_t {
  kFloat,        // strictly float32
  kTensorFloat,  // float32 whose operands may be rounded to TF32
  kBFloat16,     // operands and activations
  kFloat16,
};

/// x: (N, C, spatial…)   w: (M, C / group, kernel…)   y: (N, M, …), all of them row-major or all of
/// them with axis 1 innermost.
struct ConvShapes {
  std::vector<std::int64_t> x, w, y;
  std::vector<std::int64_t> pad_begin, pad_end, stride, dilation;
  bool bias = false;  // (M), added by the forward pass
  ConvPrecision numbers = ConvPrecision::kFloat;
  /// Whether bias and result are stored in float32 where operands are narrow.
  bool float_bias = true, float_result = false;
  bool channels_last = false;

  /// In elements, of x, w or y.
  std::vector<std::int64_t> strides_of(const std::vector<std::int64_t>& dims) const;
  auto operator<=>(const ConvShapes&) const = default;
};

/// Bytes of workspace for one convolution: enough to turn large operands over, and little beside a
/// GPU's memory. Each stage has one workspace, as large as its hungriest kernel needs.
constexpr std::int64_t kMostConvWorkspace = std::int64_t{1} << 30;

/// Parts of the names of plans, as cudnn-frontend 1.32 writes them (engine_knob=value_…), that are
/// excluded as inaccurate though they have no numerical note that says so: measured with cuDNN 9.14
/// by tests/cuda/conv_plans.cpp (docs/gpu-status.md). TF32, which was not measured, has the list of
/// float32.
std::vector<std::string> inaccurate_plans(ConvPass pass, ConvPrecision numbers);

/// kAny: deterministic plans that multiply and add up in the required types, by their numerical
/// notes. kAccurate: without Winograd's and inaccurate_plans().
enum class ConvPlanChoice : std::uint8_t { kAccurate, kAny };

class ConvGraph {
 public:
  ConvGraph(ConvPass pass, const ConvShapes& shapes, std::int64_t most_workspace,
            ConvPlanChoice choice = ConvPlanChoice::kAccurate);
  ~ConvGraph();

  /// As LibraryGraph has them.
  PlanCount plans_for(const std::string& properties, std::string* reason);
  bool build(cudnnHandle_t handle, std::string* reason);
  /// For tests: each plan instead of the first.
  std::int64_t count_plans(cudnnHandle_t handle, std::string* reason);
  bool build_plan(std::int64_t index, std::string* name);
  std::size_t workspace_bytes() const;
  /// `first`, `second`: x and w; dy and w; dy and x. `bias` may be null.
  void run(cudnnHandle_t handle, void* first, void* second, void* bias, void* out,
           void* workspace) const;

 private:
  struct Content;
  std::unique_ptr<Content> content_;
};

}  // namespace pipetrain
