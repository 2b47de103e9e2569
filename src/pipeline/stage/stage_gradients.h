// The gradient accumulators of a stage, and their reduction over its replicas.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/kernel/adding_kernel.h"
#include "pipeline/stage/stage_memory.h"
#include "pipeline/transport/replica_group.h"

namespace pipetrain {

class StageGradients {
 public:
  /// All arguments must outlive this.
  StageGradients(const CompiledStage& compiled, const StageMemory& memory, StageExecutor& executor)
      : compiled_(compiled), memory_(memory), executor_(executor) {}

  /// Adds a contribution of a micro-batch to its accumulator. `first`: it is the first of a step.
  void add(const StageStepAddition& addition, const StageAddresses& addresses, bool first);

  /// Floats of the gradients that replicas add up, in the order in which a backward completes them.
  std::vector<std::size_t> sizes() const;
  /// Which replica needs the sum of each.
  std::vector<int> owners() const;
  /// Makes this stage one of several that run different micro-batches. The group outlives this.
  void join(ReplicaGroup& group, int replica);
  ReplicaGroup* group() const { return group_; }
  int replica() const { return replica_; }
  /// Reduces over the replicas. `contributes`: whether this one has added a micro-batch.
  void reduce(bool contributes);

  /// Copies an accumulator that another stage has computed.
  void fetch(int accumulation, const StageGradients& from);
  /// An accumulator's bytes, and back.
  std::string read(int accumulation) const;
  void write(int accumulation, std::string_view bytes);

  /// The gradient of a variant's k-th parameter (StageSlice::parameters) after finish; null when it
  /// has none.
  std::byte* of_parameter(const CompiledVariant& variant, std::size_t k) const;
  /// The only rows in which that gradient may be non-zero; null: unknown.
  const TouchedRows* rows_of_parameter(const CompiledVariant& variant, std::size_t k) const;
  /// Name of the first that is not finite; empty when all are.
  std::string first_nonfinite() const;

 private:
  const TensorType& type_of(int accumulation) const;
  void join_leaves(std::size_t accumulation, std::size_t count, std::uint64_t leaves);

  const CompiledStage& compiled_;
  const StageMemory& memory_;
  StageExecutor& executor_;
  ReplicaGroup* group_ = nullptr;  // null: the only replica
  int replica_ = 0;
};

}  // namespace pipetrain
