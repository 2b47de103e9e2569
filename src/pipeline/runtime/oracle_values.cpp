// Values of the oracle: what a value holds, and the kernels that compute it.
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/index.h"
#include "graph/op.h"
#include "pipeline/runtime/oracle.h"

namespace pipetrain {

HostTensor Oracle::content(int stage, int version, const MicroBatchState* micro_batch, int variant,
                           ValueId id, Values& local) {
  const TrainingGraph& training = *variants_[at(variant)].training;
  const Graph& graph = training.graph;
  const Value& value = graph[id];
  if (const auto found = local.find(id); found != local.end()) return found->second;
  if (micro_batch) {
    if (const auto found = micro_batch->values.find(id); found != micro_batch->values.end())
      return found->second;
  }
  if (value.producer) {
    const Node& node = graph[value.producer];
    if (node.op->flags & kView)
      return content(stage, version, micro_batch, variant, node.inputs[0], local)
          .reshaped(value.type.shape);
    PT_CHECK(node.part == Part::kPrepare, kInternal, "value {} was never computed", value.name);
    std::vector<HostTensor> inputs;
    std::vector<Tensor> in, out;
    for (const ValueId input : node.inputs) {
      inputs.push_back(input ? content(stage, version, micro_batch, variant, input, local)
                             : HostTensor());
      in.push_back(inputs.back() ? inputs.back().view() : Tensor{});
    }
    for (const ValueId output : node.outputs) {
      local[output] = HostTensor(graph[output].type);
      out.push_back(local[output].view());
    }
    const auto kernel =
        make_kernel(options_.backend, {node, graph.input_types(node), graph.output_types(node)});
    const Buffer workspace(kernel->workspace_bytes());
    RunContext context;
    context.workspace = workspace.data();
    kernel->run(in, out, context);
    return local[id];
  }
  switch (value.role) {
    case Role::kConstant:
      return value.data;
    case Role::kState:
      return running_.at(value.name);
    case Role::kParameter:
      return stages_[at(stage)].weights.at(version).at(value.name);
    case Role::kLossScale:
      return HostTensor::scalar<float>(
          static_cast<float>(micro_batch->data->loss_scale * loss_scale_.value));
    case Role::kInput:
    case Role::kLabel: {
      std::size_t column = training.inputs.size();
      for (std::size_t i = 0; i < training.inputs.size(); ++i) {
        if (training.inputs[i].value == id) column = i;
      }
      HostTensor out(value.type);
      std::memcpy(out.view().data, micro_batch->data->columns[column], value.type.bytes());
      return out;
    }
    default:
      PT_FAIL(kInternal, "value {} was never computed", value.name);
  }
}

void Oracle::run_nodes(int stage, int version, MicroBatchState& micro_batch,
                       const std::vector<NodeId>& nodes, Values& results) {
  const int variant = micro_batch.data ? micro_batch.data->variant : 0;
  const TrainingGraph& training = *variants_[at(variant)].training;
  Values local = results;
  for (const NodeId id : nodes) {
    const Node& node = training.graph[id];
    std::vector<HostTensor> inputs;
    std::vector<Tensor> in, out;
    for (const ValueId input : node.inputs) {
      inputs.push_back(input ? content(stage, version, micro_batch.data ? &micro_batch : nullptr,
                                       variant, input, local)
                             : HostTensor());
      in.push_back(inputs.back() ? inputs.back().view() : Tensor{});
    }
    for (const ValueId output : node.outputs) {
      HostTensor result(training.graph[output].type);
      local[output] = results[output] = result;
      out.push_back(result.view());
    }
    const auto kernel = make_kernel(options_.backend, {node, training.graph.input_types(node),
                                                       training.graph.output_types(node)});
    const Buffer workspace(kernel->workspace_bytes());
    RunContext context;
    context.workspace = workspace.data();
    context.seed = options_.seed;
    context.step = micro_batch.data ? micro_batch.data->step : 0;
    context.first_sample = micro_batch.data ? micro_batch.data->first_sample : 0;
    context.samples = training.micro_batch;
    kernel->run(in, out, context);
  }
}

}  // namespace pipetrain
