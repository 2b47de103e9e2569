// A compiled stage: lists of steps, tables and a memory plan, without addresses.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "ops/kernel/kernel.h"
#include "optim/optimizer.h"
#include "pipeline/schedule/capacity.h"
#include "pipeline/stage/slice.h"
#include "pipeline/stage/stage_arena.h"
#include "pipeline/stage/stage_layout.h"

namespace pipetrain {

class AddingKernel;
class StageExecutor;
class TouchedRows;

/// Adds one contribution to its accumulator.
struct StageStepAddition {
  int accumulation;
  Location from;
  std::size_t count;
  bool direct;
  bool adds = false;  // the kernel adds it to the accumulator itself
};

/// Copies a value of a micro-batch into the batch for weight gradients.
struct StageBatchedValue {
  Location from;
  std::size_t to;                 // offset in the stage's block of batched values
  std::size_t bytes;              // of a micro-batch
  std::size_t micro_batch_bytes;  // between two micro-batches: of the largest one
};

/// One kernel with its operands. Addresses are filled in at every run; nothing is allocated.
struct StageStep {
  std::unique_ptr<Kernel> kernel;
  AddingKernel* adding = nullptr;  // the kernel, where it adds its contribution itself
  std::vector<Tensor> in, out;
  std::vector<Location> in_at, out_at;
  std::vector<int> in_direct,
      out_direct;  // index of the accumulation that a W contribution goes to, or -1
  std::vector<StageStepAddition> additions;  // into accumulators, after the kernel has run
  std::string name;
  NodeId node;
  double seconds = 0;        // total of its runs
  double last_seconds = 0;   // the last of them
  bool independent = false;  // of all other steps of its list; stands at its end
  bool repeatable = false;   // on a GPU: its work depends on addresses alone
};

/// The place of an entry of StageMicroBatch::table in a copy of the stage's inputs; inputs that the
/// stage does not read have no bytes.
struct OutsidePlace {
  std::size_t table, offset, bytes;
};

/// The layout of a copy of everything that a micro-batch reads from outside the stage.
struct OutsideValues {
  std::vector<OutsidePlace> inputs;    // graph inputs and label
  std::vector<OutsidePlace> received;  // values of other stages, by table entry
  std::size_t input_bytes = 0, received_bytes = 0;
  // The maximum over all variants, which share this memory.
  std::size_t most_input_bytes = 0, most_received_bytes = 0;
};

/// A stage at one of the shapes that it runs at.
struct CompiledVariant {
  const TrainingGraph* training = nullptr;
  const Slices* slices = nullptr;
  const StageSlice* slice = nullptr;
  StageLayout layout;
  std::vector<StageStep> prepare, forward, backward, input_gradient, weight_gradient,
      batch_gradient, finish;
  std::vector<StageStepAddition> late_additions;  // contributions that no W node computes
  std::vector<StageBatchedValue> batched_values;
  std::vector<Location> gradient_at;  // as slice->parameters
  std::size_t table_size = 0;         // of StageMicroBatch::table
  OutsideValues outside;
  std::vector<ValueId> constants;  // that the steps read
  std::vector<ValueId> running;    // running statistics that the steps read
  bool reads_loss_scale = false;
  bool has_loss = false;

  ValueId root(ValueId id) const { return slices->root[static_cast<std::size_t>(id.index)]; }
};

struct CompiledStage {
  std::vector<CompiledVariant> variants;
  StageArena arena;
  std::size_t workspace_bytes = 0;                         // the largest of any kernel
  std::vector<std::unique_ptr<TouchedRows>> touched_rows;  // by accumulation; null: not by rows
  std::vector<int> completion;            // accumulations in the order of their completion
  std::vector<std::size_t> completed_as;  // by accumulation: its place in `completion`
  UpdateOwners owners;                    // of variant 0
};

/// Compiles every variant of stage `index`, with kernels of the executor. Error when an operator
/// has no kernel.
CompiledStage compile_stage(int index, const std::vector<StageVariant>& variants,
                            const StageCapacity& capacity, const OptimizerSettings& optimizer,
                            const UpdateShare& share, StageExecutor& executor);

/// Moves independent steps to the end of the list and marks them: they may run in any order, since
/// no other step writes their operands or touches their results. With `beside_others` (deferred
/// lists) they must not touch what other lists of the stage write meanwhile.
void put_independent_last(std::vector<StageStep>& steps, bool beside_others);

}  // namespace pipetrain
