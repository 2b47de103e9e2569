#include "support/run_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "ops/registry/registry.h"

namespace pipetrain::test {

std::vector<HostTensor> run_kernel(Kernel& kernel, const Node& node,
                                   const std::vector<HostTensor>& inputs,
                                   const std::vector<TensorType>& outputs,
                                   const RunContext& context) {
  constexpr std::size_t kGuard = 128;
  std::vector<Tensor> in;
  std::vector<std::vector<std::byte>> before;
  for (const HostTensor& input : inputs) {
    in.push_back(input.view());
    if (!input) in.back() = Tensor{};
    const auto* bytes = static_cast<const std::byte*>(input.view().data);
    before.emplace_back(bytes, bytes + (input ? input.type().bytes() : 0));
  }
  std::vector<Buffer> buffers;
  std::vector<Tensor> out;
  for (const TensorType& type : outputs) {
    if (type.dtype == DType::kUndefined) {
      buffers.emplace_back();
      out.emplace_back();
      continue;
    }
    buffers.emplace_back(type.bytes() + 2 * kGuard);
    std::memset(buffers.back().data(), 0xFF, buffers.back().bytes());
    out.push_back({type, buffers.back().data() + kGuard});
  }
  const Buffer workspace(kernel.workspace_bytes() + kGuard);
  std::memset(workspace.data(), 0xFF, workspace.bytes());
  RunContext with_workspace = context;
  with_workspace.workspace = workspace.data();
  kernel.run(in, out, with_workspace);

  const auto intact = [](const std::byte* from, std::size_t count) {
    return std::all_of(from, from + count, [](std::byte b) { return b == std::byte{0xFF}; });
  };
  EXPECT_TRUE(intact(workspace.data() + kernel.workspace_bytes(), kGuard))
      << node.op->name << " writes behind its workspace";
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (before[i].empty()) continue;
    EXPECT_EQ(std::memcmp(before[i].data(), inputs[i].view().data, before[i].size()), 0)
        << node.op->name << " writes into input " << i;
  }
  std::vector<HostTensor> results;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!out[i]) {
      results.emplace_back();
      continue;
    }
    EXPECT_TRUE(intact(buffers[i].data(), kGuard))
        << node.op->name << " writes before output " << i;
    EXPECT_TRUE(intact(buffers[i].data() + kGuard + outputs[i].bytes(), kGuard))
        << node.op->name << " writes behind output " << i;
    results.emplace_back(outputs[i]);
    std::memcpy(results.back().view().data, out[i].data, outputs[i].bytes());
  }
  return results;
}

KernelRequest request_of(const Node& node, const std::vector<HostTensor>& inputs,
                         const std::vector<TensorType>& outputs) {
  KernelRequest request{node, {}, outputs};
  for (const HostTensor& input : inputs) request.inputs.push_back(input.type());
  return request;
}

std::vector<HostTensor> run_node(Backend backend, const Node& node,
                                 const std::vector<HostTensor>& inputs,
                                 const std::vector<TensorType>& outputs,
                                 const RunContext& context) {
  return run_made([&](const KernelRequest& request) { return make_kernel(backend, request); }, node,
                  inputs, outputs, context);
}

std::vector<HostTensor> run_graph(const Graph& graph, Backend backend, const Feeds& feeds,
                                  const RunContext& context) {
  std::vector<HostTensor> values(graph.values.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = graph.values[i].data;
  for (const auto& [id, tensor] : feeds) {
    PT_CHECK(tensor.type() == graph[id].type, kInternal, "fed {} to {} {}", tensor.type().text(),
             graph[id].name, graph[id].type.text());
    values[static_cast<std::size_t>(id.index)] = tensor;
  }
  for (const Node& node : graph.nodes) {
    std::vector<HostTensor> inputs;
    for (const ValueId id : node.inputs) {
      inputs.push_back(id ? values[static_cast<std::size_t>(id.index)] : HostTensor());
      PT_CHECK(!id || inputs.back(), kInternal, "value {} was not fed", graph[id].name);
    }
    const std::vector<HostTensor> results =
        run_node(backend, node, inputs, graph.output_types(node), context);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (node.outputs[i]) values[static_cast<std::size_t>(node.outputs[i].index)] = results[i];
    }
  }
  return values;
}

std::vector<TensorType> infer_op(std::string_view op, const Attributes& attributes,
                                 const std::vector<TensorType>& inputs) {
  const OpDef* definition = find_op(op);
  PT_CHECK(definition != nullptr, kInternal, "no canonical operator {}", op);
  InferContext infer{attributes, inputs, {}};
  definition->infer(infer);
  return infer.outputs;
}

std::vector<HostTensor> run_op(std::string_view op, const Attributes& attributes,
                               const std::vector<HostTensor>& inputs, Backend backend,
                               const RunContext& context) {
  std::vector<TensorType> types;
  for (const HostTensor& input : inputs) types.push_back(input.type());
  const std::vector<TensorType> outputs = infer_op(op, attributes, types);
  Node node;
  node.op = find_op(op);
  node.attributes = attributes;
  node.name = "test";
  return run_node(backend, node, inputs, outputs, context);
}

}  // namespace pipetrain::test
