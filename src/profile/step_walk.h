// One micro-batch through a whole training graph, kernel by kernel, as a stage runs it.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ops/registry/registry.h"
#include "passes/training_graph.h"
#include "profile/sample_data.h"

namespace pipetrain {

/// The nodes of a graph in their order, with kernels of their own and memory that is reused as in a
/// stage's arena. So caches are in the state of training: the previous node's result is hot,
/// weights and saved activations are as cold as in a step.
class StepWalk {
 public:
  /// Contents come from `data`, which is read only from here on: several walks may share it.
  /// Outputs that nobody reads (`is_read`) are not computed. Error with the frame "while measuring
  /// NODE (OPERATOR)" where there is no kernel.
  StepWalk(const TrainingGraph& training, Backend backend, const SampleData& data,
           const std::vector<bool>& is_read);

  /// Runs everything once. `clock` returns seconds; `seconds` (by node) gets those of each kernel.
  /// Errors as above.
  void run(double (*clock)(), std::span<double> seconds);

  /// By node; the same for every walk.
  const std::vector<std::size_t>& workspace_bytes() const { return workspace_bytes_; }

 private:
  struct Step {
    std::size_t node;
    std::unique_ptr<Kernel> kernel;
    std::vector<Tensor> in, out;
  };

  const TrainingGraph& training_;
  std::vector<Step> steps_;
  std::vector<HostTensor> contents_;  // parameters, inputs and their like, shared with other walks
  std::vector<Buffer> blocks_;        // what the nodes compute
  std::vector<std::size_t> workspace_bytes_;
  Buffer workspace_;
};

}  // namespace pipetrain
