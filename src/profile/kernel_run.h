// A kernel with memory in the state in which training would find it.
#pragma once

#include <memory>
#include <vector>

#include "ops/registry.h"
#include "passes/training_graph.h"
#include "profile/work.h"

namespace pipetrain {

/// Runs one node over several sets of operands in turn: weights, saved activations and outputs have
/// left the nearer caches since their last use, as in a training step, while what the node before
/// has just computed is still there.
class KernelRun final : public Work {
 public:
  /// The sets together take about `memory_bytes`. Outputs that nobody reads are not computed.
  KernelRun(const TrainingGraph& training, Backend backend, const Node& node,
            const std::vector<HostTensor>& inputs, const std::vector<bool>& is_read,
            std::size_t memory_bytes);

  void prepare() override;
  void run() override { kernel_->run(sets_[current_].in, sets_[current_].out, context_); }
  std::size_t workspace_bytes() const { return workspace_.bytes(); }

 private:
  struct OperandSet {
    std::vector<Tensor> in, out;
  };

  std::unique_ptr<Kernel> kernel_;
  Buffer workspace_;
  std::vector<HostTensor> memory_;
  std::vector<OperandSet> sets_;
  std::vector<std::size_t> fresh_;  // inputs that the node before has just computed
  std::size_t current_ = 0;
  RunContext context_;
};

}  // namespace pipetrain
