// Times the kernels of a training step under the load of training, with all stages active.
#pragma once

#include <vector>

#include "profile/step_walk.h"

namespace pipetrain {

struct StepTimingOptions {
  int threads = 1;       // OpenMP threads of each copy
  int copies = 1;        // that walk at the same time
  int repeats = 5;       // rounds at least
  double seconds = 0.4;  // more rounds while they fit into this
  bool brief = false;    // of a long walk the first counts, and there is no other
};

struct StepTiming {
  std::vector<double> seconds;               // by group
  std::vector<std::size_t> workspace_bytes;  // by node
  bool one_walk = false;                     // the first one, cold
};

/// All copies walk through the graph in synchronized rounds. A round counts as measured by its
/// slowest copy, since a pipeline runs at the pace of its slowest device; the result is the median
/// of the rounds. Temporary slowdowns of a core then affect all nodes alike, and relative times do
/// not depend on when a node was measured. `group` gives each node a number from 0 on; nodes of one
/// group get their mean; -1: a view. With one thread seconds are CPU time, otherwise wall time. The
/// first error of any copy is thrown again.
StepTiming time_step(const TrainingGraph& training, Backend backend, const SampleData& data,
                     const std::vector<bool>& is_read, const std::vector<int>& group,
                     const StepTimingOptions& options);

}  // namespace pipetrain
