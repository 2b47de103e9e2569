// From files to a run in four types, each made from the one before:
//
//   RunConfig → Network          the model is read and differentiated, the data bound
//             → ProfiledNetwork  what its kernels take, and the order of its nodes
//             → PlannedNetwork   the stages, their program, what a step will take
//             → PipelineRun      the stages compiled; it trains or evaluates
//
// Each is complete when it is made. The first three are plain data and contain the one before; a
// PipelineRun refers to its PlannedNetwork, which outlives it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/loading/batch_memory.h"
#include "data/loading/open_data.h"
#include "optim/loss_scale.h"
#include "passes/build.h"
#include "train/config.h"
#include "train/loaded_model.h"
#include "train/process_agreement.h"
#include "train/program_maker.h"

namespace pipetrain {

class ProcessGroup;

enum class RunMode : std::uint8_t {
  kTrain,
  kEvaluate,  // forward only; all data are evaluated
};

/// A model with its data, ready to be measured: the graph of the full micro-batch, and how many
/// samples, micro-batches and steps there are.
class Network {
 public:
  /// Reads the model, builds its graph and binds the data. `processes`: those that make the same
  /// network and train together, each some of the devices; null: this one alone. They outlive it,
  /// and all of them make what follows from it in the same order. `same_data`: a network of the
  /// same model and data, of which is taken what would be read; null: none. Errors: kUsage, kModel,
  /// kData, and kResource where a micro-batch is too large for any memory.
  explicit Network(const RunConfig& config, RunMode mode = RunMode::kTrain,
                   ProcessGroup* processes = nullptr, const Network* same_data = nullptr);

  /// As given, and what the model decides: whether a last short batch is left out, the rates of
  /// each tensor, the seed of the data.
  const RunConfig& config() const { return config_; }
  RunMode mode() const { return mode_; }
  /// Those that have the devices of this network; null: this one has all.
  ProcessGroup* processes() const { return processes_; }
  /// Those that have replicas of it which do not wait for each other; null: this one has all.
  ProcessGroup* replica_processes() const { return replica_processes_; }
  /// All that train together; null: this one alone.
  ProcessGroup* all_processes() const { return processes_ ? processes_ : replica_processes_; }
  const ReplicaUpdates& replica_updates() const { return config_.pipeline.replica_updates; }
  /// Whether this is process 0, which writes files and logs.
  bool leads() const;
  /// The process that has a device.
  int process_of(int device) const;
  /// Whether this process has a device.
  bool is_here(int device) const;
  const RunSchedule& schedule() const { return schedule_; }
  const LoadedModel& model() const { return model_; }
  const OpenedData& data() const { return data_; }
  /// What is trained on, as batches have it: mixed where --augment says so.
  std::shared_ptr<const Dataset> training_data() const;
  /// What is evaluated; null when nothing is.
  const Dataset* evaluation_data() const;
  /// The graph of the full micro-batch.
  const TrainingGraph& graph() const { return *graph_; }
  /// The graph of micro-batches of another size, with gradients or for an evaluation. Its nodes are
  /// those of graph() if both are trained.
  std::unique_ptr<TrainingGraph> graph_of(std::int64_t samples, bool evaluation) const;
  /// Where the file's weights are, by name; what an export needs is left out. Once the stages of a
  /// run have copies, they may be released. Graphs that are used or built later then lack them.
  std::multimap<std::string, HostTensor*> initial_weights();

  std::int64_t micro_batch() const { return micro_batch_; }      // samples
  std::int64_t micro_batches() const { return micro_batches_; }  // of a mini-batch
  /// Micro-batches of a mini-batch that one replica of a stage computes at most, where that decides
  /// which kernels pay off.
  std::int64_t most_micro_batches_of_replica() const;
  std::int64_t batches_per_epoch() const { return batches_per_epoch_; }
  std::int64_t total_steps() const { return total_steps_; }
  /// Whether stages update while micro-batches are in flight.
  bool asynchronous() const { return is_asynchronous(schedule_.rule()); }
  /// Micro-batches of one mini-batch of that many samples; 1 for schedules that do not split.
  int units_of(std::int64_t samples) const;
  /// Sizes in samples of the mini-batches of an epoch: the full one, and the last if it is shorter.
  std::vector<std::int64_t> batch_sizes() const;
  /// Samples that an epoch may take: all, or what the shards of all replicas have.
  std::int64_t epoch_samples() const;
  /// Samples of a step's mini-batch.
  std::int64_t samples_of_step(std::int64_t step) const;
  /// Mini-batches of the asynchronous round that begins at a step: to the end of the epoch or run.
  std::int64_t round_batches(std::int64_t first_step) const;
  /// Units of that round.
  int round_units(std::int64_t first_step) const;

  /// Threads of each stage.
  int threads() const { return cores_.threads; }
  /// The cores of all processes, and which processes share them.
  const CoreShare& cores() const { return cores_; }
  /// The memory for mini-batches: page-locked, if there are GPUs.
  TakeMemory batch_memory() const;
  /// What float16 needs, and nothing else.
  LossScaling loss_scaling() const;

 private:
  void choose_micro_batch();
  std::string first_file_here(const std::vector<std::vector<std::string>>& files) const;
  void open_data_and_graph(const Network* same_data);
  void count_steps();
  BuildOptions build_options(std::int64_t samples, bool evaluation) const;

  RunConfig config_;
  RunMode mode_;
  ProcessGroup* processes_;
  ProcessGroup* replica_processes_;
  RunSchedule schedule_;
  CoreShare cores_;
  LoadedModel model_;
  std::map<std::string, Shape> sample_shapes_;  // of inputs, as --shape and the data give them
  LossOptions loss_;                            // never "auto" when the graph is built
  OpenedData data_;
  std::int64_t micro_batch_ = 0, micro_batches_ = 0, batches_per_epoch_ = 0, total_steps_ = 0;
  std::unique_ptr<TrainingGraph> graph_;
};

/// Micro-batches of a whole evaluation; 0: there are no data for one. Error (kData) for fewer
/// samples than the fixed batch of the model.
std::int64_t evaluation_units(const Network& network);
/// An evaluation runs in rounds of at most this many, so that only the samples of one round are in
/// memory.
constexpr std::int64_t kEvaluationRound = 64;

}  // namespace pipetrain
