// Runs graphs, single nodes and kernels. A kernel's outputs start as 0xFF bytes (NaN) and stand
// between guards, and its inputs must come out unchanged.
#pragma once

#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "ops/kernel/kernel.h"
#include "ops/registry/registry.h"
#include "tensor/tensor.h"

namespace pipetrain::test {

/// Values fed by id; parameters, states and constants not fed have the content of the graph.
using Feeds = std::map<ValueId, HostTensor>;

/// Runs every node in order; element i is the content of value i (empty where it was neither fed
/// nor computed).
std::vector<HostTensor> run_graph(const Graph& graph, Backend backend, const Feeds& feeds,
                                  const RunContext& context = {});

/// Runs a kernel of a node.
std::vector<HostTensor> run_kernel(Kernel& kernel, const Node& node,
                                   const std::vector<HostTensor>& inputs,
                                   const std::vector<TensorType>& outputs,
                                   const RunContext& context);

KernelRequest request_of(const Node& node, const std::vector<HostTensor>& inputs,
                         const std::vector<TensorType>& outputs);

/// Runs a node with the kernel that `make` gives; nothing when it gives none.
template <class Make>
std::vector<HostTensor> run_made(const Make& make, const Node& node,
                                 const std::vector<HostTensor>& inputs,
                                 const std::vector<TensorType>& outputs,
                                 const RunContext& context) {
  if (node.op->flags & kView) return {inputs.at(0).reshaped(outputs.at(0).shape)};
  const std::unique_ptr<Kernel> kernel = make(request_of(node, inputs, outputs));
  if (!kernel) return {};
  return run_kernel(*kernel, node, inputs, outputs, context);
}

/// Makes and runs the kernel of one node. An output whose type is kUndefined is passed as absent
/// and stays empty in the result.
std::vector<HostTensor> run_node(Backend backend, const Node& node,
                                 const std::vector<HostTensor>& inputs,
                                 const std::vector<TensorType>& outputs,
                                 const RunContext& context = {});

/// Infers and runs one canonical operator. Empty tensors are absent inputs.
std::vector<HostTensor> run_op(std::string_view op, const Attributes& attributes,
                               const std::vector<HostTensor>& inputs,
                               Backend backend = Backend::kReference,
                               const RunContext& context = {});

/// The output types that `infer` gives.
std::vector<TensorType> infer_op(std::string_view op, const Attributes& attributes,
                                 const std::vector<TensorType>& inputs);

}  // namespace pipetrain::test
