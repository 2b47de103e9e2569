#include "passes/squeezed_shapes.h"

#include <algorithm>
#include <vector>

#include "graph/op.h"
#include "onnx_io/subgraph.h"

namespace pipetrain {

bool squeezes_all(const OnnxNode& node) {
  return node.op_type == "Squeeze" && !node.has_attribute("axes") && !node.has_input(1);
}

bool has_squeeze_of_all(const OnnxModel& model) {
  return std::ranges::any_of(model.nodes, [](const OnnxNode& node) {
    if (!has_subgraphs(node)) return squeezes_all(node);
    return std::ranges::any_of(with_inner_nodes(node),
                               [](const OnnxNode& inner) { return squeezes_all(inner); });
  });
}

Shape with_sample_axis(const Graph& graph, ValueId output) {
  const Shape& shape = graph[output].type.shape;
  if (shape.rank() == 0) return {1};
  const NodeId producer = graph[output].producer;
  if (shape[0] == 1 || !producer || graph[producer].op->name != "Reshape") return shape;
  const Shape& before = graph[graph[producer].inputs[0]].type.shape;
  if (before.rank() <= shape.rank() || before[0] != 1 ||
      squeezed(before, nullptr) != squeezed(shape, nullptr))
    return shape;
  std::vector<std::int64_t> dims = shape.dims();
  dims.insert(dims.begin(), 1);
  return Shape(std::move(dims));
}

Shape squeezed(const Shape& shape, const Shape* larger) {
  const bool fits = larger && larger->rank() == shape.rank();
  std::vector<std::int64_t> dims;
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    if (shape[i] != 1 || (fits && (*larger)[i] != 1)) dims.push_back(shape[i]);
  }
  return Shape(std::move(dims));
}

}  // namespace pipetrain
