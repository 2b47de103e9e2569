#include "ops/conv/merged_groups_cpu.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/conv/onednn_convolution_cpu.h"
#include "ops/kernel/adding_kernel.h"
#include "ops/kernel/workspace.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kParallelElements = 1 << 14;

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
std::unique_ptr<Kernel> merged_pass(const MergedGroups& shape, const MergedRequest& merged,
                                    std::unique_ptr<Kernel> kernel) {
  if (!kernel) return nullptr;
  std::vector<Tensor> inputs;
  for (const TensorType& type : merged.request.inputs) inputs.push_back({type});
  const std::size_t size = size_of(merged.weight.dtype),
                    bytes = aligned_part(merged.weight.bytes());
  const std::size_t workspace_bytes = bytes + kernel->workspace_bytes();
  return make_kernel(
      [shape, size, bytes, inputs, kernel = std::move(kernel)](std::span<const Tensor> in,
                                                               std::span<const Tensor> out,
                                                               const RunContext& context) mutable {
        const auto* from = in[1].as<const std::byte>();
        std::byte* const to = context.workspace;
        const std::size_t row = static_cast<std::size_t>(shape.inputs * shape.taps) * size,
                          wide_row = row * static_cast<std::size_t>(shape.together);
        for_each_row(shape, [&](std::int64_t narrow, std::int64_t wide) {
          const std::size_t at = static_cast<std::size_t>(wide) * size;
          std::memset(to + at / wide_row * wide_row, 0, wide_row);
          std::memcpy(to + at, from + static_cast<std::size_t>(narrow) * size, row);
        });
        for (std::size_t i = 0; i < in.size(); ++i) inputs[i].data = i == 1 ? to : in[i].data;
        RunContext rest = context;
        rest.workspace += bytes;
        kernel->run(inputs, out, rest);
      },
      workspace_bytes);
}

/// The gradients of merged weights lie in the workspace, of which those within groups are taken.
std::unique_ptr<Kernel> merged_weight_gradient(const MergedGroups& shape,
                                               const MergedRequest& merged,
                                               std::unique_ptr<Kernel> kernel) {
  if (!kernel) return nullptr;
  std::vector<Tensor> outputs;
  for (const TensorType& type : merged.request.outputs) outputs.push_back({type});
  const std::int64_t biases = merged.weight.shape[0];
  const std::size_t bytes = aligned_part(merged.weight.bytes());
  const std::size_t bias_bytes = aligned_part(static_cast<std::size_t>(biases) * sizeof(float));
  const std::size_t workspace_bytes = bytes + bias_bytes + kernel->workspace_bytes();
  return make_adding_kernel(
      [shape, biases, bytes, bias_bytes, outputs, kernel = std::move(kernel)](
          std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context,
          bool add) mutable {
        const bool sums_bias = out.size() > 1 && out[1];
        outputs[0].data = context.workspace;
        if (out.size() > 1) outputs[1].data = sums_bias ? context.workspace + bytes : nullptr;
        RunContext rest = context;
        rest.workspace += bytes + bias_bytes;
        kernel->run(in, outputs, rest);
        const auto take = [&](const float* from, std::int64_t count, float* to) {
          for (std::int64_t i = 0; i < count; ++i) to[i] = add ? to[i] + from[i] : from[i];
        };
        const auto* wide_gradient = outputs[0].as<float>();
        auto* gradient = out[0].as<float>();
        for_each_row(shape, [&](std::int64_t narrow, std::int64_t wide) {
          take(wide_gradient + wide, shape.inputs * shape.taps, gradient + narrow);
        });
        if (sums_bias) take(outputs[1].as<float>(), biases, out[1].as<float>());
      },
      workspace_bytes);
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
  return merged_pass(shape, merged, make_onednn_forward(merged.request));
}

std::unique_ptr<Kernel> make_merged_input_gradient(const MergedGroups& shape,
                                                   const KernelRequest& request) {
  const MergedRequest merged(shape, request);
  return merged_pass(shape, merged, make_onednn_input_gradient(merged.request));
}

std::unique_ptr<Kernel> make_merged_weight_gradient(const MergedGroups& shape,
                                                    const KernelRequest& request) {
  const MergedRequest merged(shape, request);
  return merged_weight_gradient(shape, merged, make_onednn_weight_gradient(merged.request));
}

bool merged_groups_have_vector_code(const MergedGroups& shape, const KernelRequest& request) {
  return onednn_has_vector_code(MergedRequest(shape, request).request);
}

}  // namespace pipetrain
