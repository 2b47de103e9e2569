// What a compiled stage consists of: shared by the compiler and the stage, and by nobody else.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/page_block.h"
#include "ops/kernel.h"
#include "optim/update.h"
#include "pipeline/stage/moments.h"
#include "pipeline/stage/stage.h"
#include "pipeline/stage/stage_layout.h"

namespace pipetrain {

class AddingKernel;

/// Adds one contribution to its accumulator.
struct StageStepAddition {
  int accumulation;
  Location from;
  std::size_t count;
  bool direct;
  bool adds = false;  // the kernel adds it to the accumulator itself
};

/// Keeps what a unit has computed of a value.
struct StageGathering {
  Location from;
  std::size_t to;          // offset in the stage's block of what is gathered
  std::size_t bytes;       // of a unit
  std::size_t unit_bytes;  // between two units: of the largest one
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

/// Parameters, one behind the other, that one device updates.
struct StageUpdatePiece {
  std::size_t first;  // in Compiled::updates
  std::size_t count = 0;
  double last_seconds = 0;
};

inline std::span<float> floats(std::byte* data, const TensorType& type) {
  return {reinterpret_cast<float*>(data), static_cast<std::size_t>(type.count())};
}

struct Stage::Compiled {
  const TrainingGraph* training = nullptr;
  const Slices* slices = nullptr;
  const StageSlice* slice = nullptr;
  StageLayout layout;
  std::vector<StageStep> prepare, forward, backward, input_gradient, weight_gradient,
      batch_gradient, finish;
  std::vector<StageGathering> gatherings;
  std::vector<StageStepAddition> late_additions;  // contributions that no W node computes
  std::vector<std::byte*> constants;  // by value: address of constants and running statistics
  std::vector<std::byte*> prepared;   // by version copy
  std::vector<std::uint64_t> prepared_generation;  // weights that each copy was prepared from
  std::vector<ParameterState*> parameter_states;   // as slice->parameters
  std::vector<StatisticState*> statistic_states;   // as slice->statistics
  std::vector<Location> gradient_at;               // as slice->parameters
  std::size_t table_size = 0;
  std::vector<ParameterUpdate> updates;  // of the last update: room for the next
  std::vector<float*> averages;          // of the same parameters; null: none is kept
  std::vector<StageUpdatePiece> update_pieces;
  bool has_loss = false;
  bool reads_loss_scale = false;
  bool reads_running = false;  // running statistics
  PageBlock activations;       // slots, edges and temporaries of all variants: the first holds them
  std::int64_t units = 0;      // forwards since the times of kernels were taken
};

struct Stage::ParameterState {
  std::string name;
  TensorType type;
  std::size_t offset = 0;  // in the block of a weight version
  float* state0 = nullptr;
  float* state1 = nullptr;
  float* average = nullptr;  // moving average; null: none is kept
  SettingsOfParameter optimizer = {};
};

/// Running mean and variance of one BatchNorm, and the moments merged since the last update (Chan
/// et al. 1983).
struct Stage::StatisticState {
  std::string mean_name, variance_name;
  float* mean = nullptr;
  float* variance = nullptr;
  std::size_t channels = 0;
  double momentum = 0.9;
  bool of_weights = false;  // of a BatchNorm in Part::kPrepare
  Moments moments;
};

/// Compiles every variant of a stage: memory, kernels, operands. A stage on a device has its
/// StageDevice already.
void compile_stage(Stage& stage, int index, const std::vector<StageVariant>& variants,
                   Backend backend);

}  // namespace pipetrain
