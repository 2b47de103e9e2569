#include "cli/commands/position_classes.h"

#include <algorithm>
#include <cmath>

#include "passes/loss.h"

namespace pipetrain {

PositionClasses::PositionClasses(const TrainingDescription& training, const TrainingGraph& graph) {
  if (training.loss != "cross-entropy") return;
  for (std::size_t k = 0; k < graph.outputs.size() && !scores_; ++k) {
    const TensorType& type = graph.graph[graph.outputs[k]].type;
    if (!training.loss_output.empty() && graph.output_names[k] != training.loss_output) continue;
    if (type.dtype != DType::kFloat32 || type.shape.rank() < 3) continue;
    scores_ = k;
    axis_ = class_axis(graph.graph, graph.outputs[k]);
  }
}

void PositionClasses::add_name(std::vector<std::string>& names) const {
  if (!scores_) return;
  std::string name = "class";
  while (std::ranges::count(names, name) > 0) name += "_";
  names.push_back(std::move(name));
}

void PositionClasses::add_values(std::vector<HostTensor>& outputs) const {
  if (!scores_) return;
  const HostTensor& scores = outputs[*scores_];
  std::vector<std::int64_t> dims = scores.type().shape.dims();
  const auto classes = static_cast<std::size_t>(dims[axis_]);
  std::size_t inner = 1;
  for (std::size_t i = axis_ + 1; i < dims.size(); ++i) inner *= static_cast<std::size_t>(dims[i]);
  dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(axis_));
  HostTensor out(TensorType{DType::kInt64, Shape(dims)});
  const auto from = scores.span<const float>();
  const auto to = out.span<std::int64_t>();
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::size_t first = i / inner * inner * classes + i % inner;
    std::size_t best = 0;
    bool finite = true;
    for (std::size_t c = 0; c < classes; ++c) {
      const float score = from[first + c * inner];
      finite = finite && !std::isnan(score);
      if (score > from[first + best * inner]) best = c;
    }
    to[i] = finite ? static_cast<std::int64_t>(best) : -1;
  }
  outputs.push_back(std::move(out));
}

}  // namespace pipetrain
