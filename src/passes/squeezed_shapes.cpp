#include "passes/squeezed_shapes.h"

#include <algorithm>
#include <vector>

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

Shape squeezed(const Shape& shape, const Shape* larger) {
  const bool fits = larger && larger->rank() == shape.rank();
  std::vector<std::int64_t> dims;
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    if (shape[i] != 1 || (fits && (*larger)[i] != 1)) dims.push_back(shape[i]);
  }
  return Shape(std::move(dims));
}

}  // namespace pipetrain
