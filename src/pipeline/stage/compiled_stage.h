// What the compiler makes of a stage's networks: lists of steps, tables and a plan of the memory,
// as one value without any addresses.
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

/// A network as one of the shapes it runs at. Both pointers outlive the stage.
struct StageVariant {
  const TrainingGraph* training = nullptr;
  const Slices* slices = nullptr;
};

/// Adds one contribution to its accumulator.
struct StageStepAddition {
  int accumulation;
  Location from;
  std::size_t count;
  bool direct;
  bool adds = false;  // the kernel adds it to the accumulator itself
};

/// Keeps what a micro-batch has computed of a value.
struct StageBatchedValue {
  Location from;
  std::size_t to;                 // offset in the stage's block of what is batched
  std::size_t bytes;              // of a micro-batch
  std::size_t micro_batch_bytes;  // between two micro-batches: of the largest one
};

/// One kernel with its operands: addresses are filled in at every run, nothing is allocated.
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
  double seconds = 0;        // that its runs have taken
  double last_seconds = 0;   // the last of them
  bool independent = false;  // of all other steps of its list, at whose end it stands
  bool repeatable = false;   // on a device: its work depends on addresses alone
};

/// Where an entry of StageMicroBatch::table lies in a copy of what comes from outside; inputs that
/// the stage does not read have no bytes there.
struct OutsidePlace {
  std::size_t table, offset, bytes;
};

/// What a micro-batch reads from outside the stage, laid out for a copy of it.
struct OutsideValues {
  std::vector<OutsidePlace> inputs;    // graph inputs and label
  std::vector<OutsidePlace> received;  // values of other stages, by table entry
  std::size_t input_bytes = 0, received_bytes = 0;
  // Of the variant of the stage that needs most: what is taken once serves all of them.
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
  std::size_t workspace_bytes = 0;                         // of the kernel that wants most
  std::vector<std::unique_ptr<TouchedRows>> touched_rows;  // by accumulation; null: not by rows
  std::vector<int> completion;            // accumulations in the order of their completion
  std::vector<std::size_t> completed_as;  // by accumulation: its place in `completion`
};

/// Compiles every variant of stage `index`, with kernels of the executor. Error when an operator
/// has no kernel.
CompiledStage compile_stage(int index, const std::vector<StageVariant>& variants,
                            const StageCapacity& capacity, const OptimizerSettings& optimizer,
                            StageExecutor& executor);

/// Puts the steps behind the others whose operands no other step of the list writes and that write
/// nothing that another reads or writes, and marks them: they may run in any order. Of a list that
/// is put off (`beside_others`) they must not touch what other lists of the stage write meanwhile.
void put_independent_last(std::vector<StageStep>& steps, bool beside_others);

}  // namespace pipetrain
