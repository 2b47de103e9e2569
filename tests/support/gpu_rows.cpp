#include "support/gpu_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "graph/op.h"
#include "support/device_kernel.h"
#include "support/emulated_kernels.h"
#include "support/op_check.h"
#include "support/run_kernels.h"

namespace pipetrain::test {

HostTensor stored_as(const HostTensor& wide, DType dtype) {
  if (!wide || dtype == DType::kFloat32 || wide.dtype() != DType::kFloat32) return wide;
  HostTensor out(TensorType{dtype, wide.shape()});
  for (std::size_t i = 0; i < wide.span<float>().size(); ++i) {
    const float x = wide.span<float>()[i];
    out.view().as<std::uint16_t>()[i] =
        dtype == DType::kBFloat16 ? float_to_bfloat16(x) : float_to_half(x);
  }
  return out;
}

std::vector<HostTensor> run_on_gpu(const Node& node, const std::vector<HostTensor>& inputs,
                                   const std::vector<TensorType>& outputs, std::size_t shift) {
  constexpr std::size_t kGuard = 64;
  Device* const device = device_under_test();
  KernelRequest request{node, {}, outputs};
  std::vector<Tensor> in;
  std::vector<Buffer> shifted;
  for (const HostTensor& input : inputs) {
    request.inputs.push_back(input.type());
    in.push_back(input.view());
    if (shift == 0 || !input) continue;
    shifted.emplace_back(input.type().bytes() + shift);
    std::memcpy(shifted.back().data() + shift, input.view().data, input.type().bytes());
    in.back().data = shifted.back().data() + shift;
  }
  const auto kernel = make_gpu_kernel(request);
  if (!kernel) return {};
  std::vector<HostTensor> first;
  for (int order = 0; order < (device ? 3 : emulated_orders()); ++order) {
    set_emulated_order(order);
    const Buffer workspace(kernel->workspace_bytes() + kGuard);
    std::memset(workspace.data(), 0xFF, workspace.bytes());
    std::vector<Buffer> buffers;
    std::vector<Tensor> out;
    for (const TensorType& type : outputs) {
      const bool is_asked_for = type.dtype != DType::kUndefined;
      buffers.emplace_back(shift + (is_asked_for ? type.bytes() : 0) + kGuard);
      std::memset(buffers.back().data(), 0xFF, buffers.back().bytes());
      out.push_back(is_asked_for ? Tensor{type, buffers.back().data() + shift} : Tensor());
    }
    RunContext context;
    context.workspace = workspace.data();
    kernel->run(in, out, context);
    const auto intact = [](const Buffer& buffer, std::size_t bytes) {
      return std::all_of(buffer.data() + bytes, buffer.data() + bytes + kGuard,
                         [](std::byte b) { return b == std::byte{0xFF}; });
    };
    EXPECT_TRUE(intact(workspace, kernel->workspace_bytes())) << "writes behind its workspace";
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!out[i]) {
        if (order == 0) first.emplace_back();
        continue;
      }
      EXPECT_TRUE(intact(buffers[i], shift + outputs[i].bytes())) << "writes behind output " << i;
      HostTensor result(outputs[i]);
      std::memcpy(result.view().data, out[i].data, outputs[i].bytes());
      if (order == 0) {
        first.push_back(result);
      } else {
        expect_same_bits(result, first[i], "another order of threads");
      }
    }
  }
  set_emulated_order(0);
  return first;
}

void check_on_gpu(const RowCase& c) {
  Node node;
  node.op = find_op(c.op);
  node.attributes = c.attributes;
  node.name = "test";
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(c.op + " over " + std::string(name_of(dtype)));
    std::vector<HostTensor> stored = c.inputs, rounded = c.inputs;
    std::vector<TensorType> types;
    for (const std::size_t i : c.narrow) {
      stored[i] = stored_as(c.inputs[i], dtype);
      rounded[i] = as_float(stored[i], DType::kFloat32);
    }
    for (const HostTensor& input : rounded) types.push_back(input.type());
    std::vector<TensorType> outputs = infer_op(c.op, c.attributes, types);
    for (std::size_t i = c.most_results; i < outputs.size(); ++i) outputs[i] = TensorType{};
    const auto expected = run_node(Backend::kReference, node, rounded, outputs);
    for (const std::size_t i : c.narrow_results) outputs[i].dtype = dtype;
    const auto results = run_on_gpu(node, stored, outputs, c.shift);
    ASSERT_EQ(results.size(), outputs.size()) << "no kernel";
    for (std::size_t i = 0; i < std::min(results.size(), c.most_results); ++i) {
      const DType result = outputs[i].dtype;
      const double last = result == DType::kBFloat16 ? 0.004 : result == DType::kFloat16 ? 5e-4 : 0;
      expect_close(as_float(results[i], DType::kFloat32), expected[i], c.tolerance + last,
                   "output " + std::to_string(i));
    }
  }
}

}  // namespace pipetrain::test
