// For models that classify every token or pixel: adds the most likely class of each position as
// another output.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "passes/training_graph.h"
#include "train/export.h"

namespace pipetrain {

class PositionClasses {
 public:
  /// By how the model was trained; nothing for other models.
  PositionClasses(const TrainingDescription& training, const TrainingGraph& graph);
  /// Adds the name of the output, or its values: (N, T) for scores (N, T, C), (N, …) for (N, C, …)
  /// or (N, …, C), as the loss has read them.
  /// -1 where a score is not a number.
  void add_name(std::vector<std::string>& names) const;
  void add_values(std::vector<HostTensor>& outputs) const;

 private:
  std::optional<std::size_t> scores_;  // which output
  std::size_t axis_ = 0;               // of its classes, from which the loss takes them, too
};

}  // namespace pipetrain
