// For models that classify every token or pixel: adds the most likely class of each position as
// another output.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "onnx_io/model.h"
#include "passes/training_graph.h"

namespace pipetrain {

class PositionClasses {
 public:
  /// By what the model says of its training; nothing for other models.
  PositionClasses(const OnnxModel& model, const TrainingGraph& graph);
  /// Adds the name of the output, or its values: (N, T) for scores (N, T, C), (N, …) for (N, C, …).
  /// -1 where a score is not a number.
  void add_name(std::vector<std::string>& names) const;
  void add_values(std::vector<HostTensor>& outputs) const;

 private:
  std::optional<std::size_t> scores_;  // which output
};

}  // namespace pipetrain
