// ONNX → canonical graph in one sweep: free dimensions are bound, types inferred, shape arithmetic
// folded and every opset's form of an operator brought to one. Nothing is folded through a trained
// tensor.
#pragma once

#include <map>
#include <set>
#include <string>

#include "graph/op.h"
#include "onnx_io/model.h"
#include "passes/parameters.h"
#include "passes/training_graph.h"

namespace pipetrain {

struct LowerOptions {
  std::int64_t micro_batch = 1;              // samples: binds axis 0 of every input
  std::map<std::string, std::int64_t> dims;  // other symbolic dimensions by name
  std::map<std::string, Shape>
      sample_shapes;        // per input, without axis 0: from the data, binds what is still free
  std::string output_node;  // train up to this value; empty: the model's own outputs
  ImportMode mode;
  /// TrainingGraph::repeating of larger micro-batches: these nodes exist for one sample, too.
  const RepeatingNodes* repeating = nullptr;
};

/// Returns the forward graph with inputs, outputs, parameters and running statistics; loss and
/// gradients come later. Error (kModel) lists every unsupported operator at once; (kUsage) names
/// dimensions that are still free.
TrainingGraph lower(const OnnxModel& model, const std::map<std::string, TensorRule>& rules,
                    const LowerOptions& options);

/// Removes nodes that no value in `keep` depends on.
void remove_dead_nodes(Graph& graph, const std::vector<ValueId>& keep);

}  // namespace pipetrain
