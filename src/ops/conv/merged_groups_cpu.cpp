#include "ops/conv/merged_groups_cpu.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/conv/onednn_convolution_cpu.h"
#include "ops/kernel/adding_kernel.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kParallelElements = 1 << 14;

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// The request for the convolution of merged groups.
struct MergedRequest {
  Node node;
  TensorType weight;
  KernelRequest request;

  MergedRequest(const MergedGroups& shape, const KernelRequest& given)
      : node(given.node), request{node, given.inputs, given.outputs} {
    const bool gradient = given.node.op->name == "ConvWeightGrad";
    TensorType& type = gradient ? request.outputs[0] : request.inputs[1];
    type.shape[1] *= shape.together;
    weight = type;
    node.attributes.set("group", shape.groups / shape.together);
    if (gradient) node.attributes.set("output_shape", type.shape.dims());
  }
  MergedRequest(const MergedRequest&) = delete;  // `request` refers to `node`
};

/// Calls `row(narrow, wide)` with the offsets of the weights of every output channel in both forms.
template <class Row>
void for_each_row(const MergedGroups& shape, Row row) {
  const std::int64_t length = shape.inputs * shape.taps, rows = shape.groups * shape.outputs;
#pragma omp parallel for schedule(static) if (rows * length > kParallelElements)
  for (std::int64_t m = 0; m < rows; ++m) {
    const std::int64_t slot = m / shape.outputs % shape.together;
    row(m * length, (m * shape.together + slot) * length);
  }
}

/// Forward or input gradient: the weights are spread in the workspace, before that of oneDNN.
class MergedPass final : public Kernel {
 public:
  MergedPass(const MergedGroups& shape, const MergedRequest& merged, std::unique_ptr<Kernel> kernel)
      : shape_(shape), weight_(merged.weight), kernel_(std::move(kernel)) {
    for (const TensorType& type : merged.request.inputs) inputs_.push_back({type});
  }

  void run(std::span<const Tensor> in, std::span<const Tensor> out,
           const RunContext& context) override {
    const std::size_t size = size_of(weight_.dtype);
    const auto* from = in[1].as<const std::byte>();
    std::byte* to = context.workspace;
    const std::size_t row = static_cast<std::size_t>(shape_.inputs * shape_.taps) * size,
                      wide_row = row * static_cast<std::size_t>(shape_.together);
    for_each_row(shape_, [&](std::int64_t narrow, std::int64_t wide) {
      const std::size_t at = static_cast<std::size_t>(wide) * size;
      std::memset(to + at / wide_row * wide_row, 0, wide_row);
      std::memcpy(to + at, from + static_cast<std::size_t>(narrow) * size, row);
    });
    for (std::size_t i = 0; i < in.size(); ++i) inputs_[i].data = i == 1 ? to : in[i].data;
    RunContext rest = context;
    rest.workspace += aligned(weight_.bytes());
    kernel_->run(inputs_, out, rest);
  }
  std::size_t workspace_bytes() const override {
    return aligned(weight_.bytes()) + kernel_->workspace_bytes();
  }

 private:
  MergedGroups shape_;
  TensorType weight_;
  std::unique_ptr<Kernel> kernel_;
  std::vector<Tensor> inputs_;
};

/// The gradients of merged weights lie in the workspace, of which those within groups are taken.
class MergedWeightGradient final : public AddingKernel {
 public:
  MergedWeightGradient(const MergedGroups& shape, const MergedRequest& merged,
                       std::unique_ptr<Kernel> kernel)
      : shape_(shape), weight_(merged.weight), kernel_(std::move(kernel)) {
    for (const TensorType& type : merged.request.outputs) outputs_.push_back({type});
  }

  void run(std::span<const Tensor> in, std::span<const Tensor> out,
           const RunContext& context) override {
    run(in, out, context, /*add=*/false);
  }
  void run_adding(std::span<const Tensor> in, std::span<const Tensor> out,
                  const RunContext& context) override {
    run(in, out, context, /*add=*/true);
  }
  std::size_t workspace_bytes() const override {
    return aligned(weight_.bytes()) + aligned(bias_bytes()) + kernel_->workspace_bytes();
  }

 private:
  std::size_t bias_bytes() const {
    return static_cast<std::size_t>(weight_.shape[0]) * sizeof(float);
  }

  void run(std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context,
           bool add) {
    const bool sums_bias = out.size() > 1 && out[1];
    outputs_[0].data = context.workspace;
    if (out.size() > 1)
      outputs_[1].data = sums_bias ? context.workspace + aligned(weight_.bytes()) : nullptr;
    RunContext rest = context;
    rest.workspace += aligned(weight_.bytes()) + aligned(bias_bytes());
    kernel_->run(in, outputs_, rest);
    const auto take = [&](const float* from, std::int64_t count, float* to) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = add ? to[i] + from[i] : from[i];
    };
    const auto* wide_gradient = outputs_[0].as<float>();
    auto* gradient = out[0].as<float>();
    for_each_row(shape_, [&](std::int64_t narrow, std::int64_t wide) {
      take(wide_gradient + wide, shape_.inputs * shape_.taps, gradient + narrow);
    });
    if (sums_bias) take(outputs_[1].as<float>(), weight_.shape[0], out[1].as<float>());
  }

  MergedGroups shape_;
  TensorType weight_;
  std::unique_ptr<Kernel> kernel_;
  std::vector<Tensor> outputs_;
};

/// Null where oneDNN has no kernel.
template <class Merged>
std::unique_ptr<Kernel> merged_kernel(const MergedGroups& shape, const MergedRequest& merged,
                                      std::unique_ptr<Kernel> kernel) {
  if (!kernel) return nullptr;
  return std::make_unique<Merged>(shape, merged, std::move(kernel));
}

}  // namespace

std::optional<MergedGroups> merged_groups(const ConvGeometry& geometry, const Shape& w,
                                          std::int64_t lanes) {
  const std::int64_t together = conv_groups_together(w, geometry.group, lanes);
  if (together < 2) return {};
  return MergedGroups{geometry.group, together, geometry.inputs, geometry.outputs,
                      w.count(2, w.rank())};
}

std::unique_ptr<Kernel> make_merged_forward(const MergedGroups& shape,
                                            const KernelRequest& request) {
  const MergedRequest merged(shape, request);
  return merged_kernel<MergedPass>(shape, merged, make_onednn_forward(merged.request));
}

std::unique_ptr<Kernel> make_merged_input_gradient(const MergedGroups& shape,
                                                   const KernelRequest& request) {
  const MergedRequest merged(shape, request);
  return merged_kernel<MergedPass>(shape, merged, make_onednn_input_gradient(merged.request));
}

std::unique_ptr<Kernel> make_merged_weight_gradient(const MergedGroups& shape,
                                                    const KernelRequest& request) {
  const MergedRequest merged(shape, request);
  return merged_kernel<MergedWeightGradient>(shape, merged,
                                             make_onednn_weight_gradient(merged.request));
}

bool merged_groups_have_vector_code(const MergedGroups& shape, const KernelRequest& request) {
  return onednn_has_vector_code(MergedRequest(shape, request).request);
}

}  // namespace pipetrain
