// The stages of a planned network compiled, and the programs of its rounds: what trains and
// evaluates.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pipeline/runtime/runtime.h"
#include "tensor/tensor.h"
#include "train/planned_network.h"
#include "train/safetensors.h"

namespace pipetrain {

/// What happens to the file's weights when the stages have copies: kRelease frees each as soon as
/// it is copied, so that hardly more than one copy takes memory. What is built from the graphs
/// later (a replay, another runtime) then lacks them.
enum class FileWeights : std::uint8_t { kStay, kRelease };

class PipelineRun {
 public:
  /// Makes and checks the programs and compiles the stages of `network`, which outlives the run.
  /// `first_step`: where training begins; asynchronous rounds begin there, at the starts of epochs
  /// and nowhere else. Errors: kData where there is nothing to run, kModel for a model without
  /// weights, kUsage where several processes do not agree, kResource for memory.
  explicit PipelineRun(PlannedNetwork& network, std::int64_t first_step = 0,
                       FileWeights weights = FileWeights::kStay);
  ~PipelineRun();
  PipelineRun(const PipelineRun&) = delete;
  PipelineRun& operator=(const PipelineRun&) = delete;

  PlannedNetwork& network() { return network_; }
  const PlannedNetwork& network() const { return network_; }
  Runtime& runtime() { return *runtime_; }
  const Runtime& runtime() const { return *runtime_; }
  /// What the runtime was made from, for a replay.
  std::vector<RuntimeVariant> runtime_variants() const;
  RuntimeOptions runtime_options() const;

  /// The program of a round of that many micro-batches: a mini-batch, or in an asynchronous run all
  /// up to the end of an epoch.
  const Program& program(int units) const;
  /// One of another length.
  Program training_program(int units) const;
  /// What a user should know about smaller micro-batches at the ends of batches alone.
  std::vector<std::string> notes_on_remainders() const;
  /// Of all rounds of training.
  std::vector<const Program*> training_programs() const;
  /// Mini-batches between their first and their last use in an asynchronous round.
  int batches_in_flight() const;
  /// The program of the next round of an evaluation that has `remaining` samples to go.
  const Program& evaluation_program(std::int64_t remaining) const;
  /// Samples that an evaluation covers: all, unless the model's fixed batch leaves some over.
  std::int64_t evaluated_samples() const { return evaluated_samples_; }
  /// Index of the runtime variant for a (training or evaluation) micro-batch of `samples`.
  int variant(std::int64_t samples, bool evaluation) const;

  /// Brings the trained weights of other processes to process 0, for export_model(). Alone there is
  /// nothing to do.
  void collect_weights();
  /// The final state of the stages, at process 0 after collect_weights(): of other processes'
  /// stages only the weights.
  std::vector<StageContent> trained_contents() const;
  /// After collect_weights(), at process 0: the name of a trained weight that is not finite; empty:
  /// all are.
  std::string nonfinite_weight() const;
  /// Writes the trained weights, or others of the model by name, into a copy of the user's file,
  /// and low-rank adapters alone to `adapters`; returns what was changed besides bytes.
  std::vector<std::string> export_model(const std::string& path, bool overwrite_input = false,
                                        const NamedTensors* weights = nullptr,
                                        const std::string& adapters = {});

 private:
  /// The network at one size of micro-batch.
  struct Variant {
    std::int64_t samples = 0;
    bool evaluation = false;
    const TrainingGraph* graph = nullptr;
    std::unique_ptr<TrainingGraph> own;  // null: the network's
  };
  std::multimap<std::string, HostTensor*> initial_weights();
  void release_initial_weights();
  void add_variant(std::int64_t samples, bool evaluation);
  void add_training_programs(std::int64_t first_step);
  void add_evaluation_programs();
  /// Those of any of the variants.
  std::vector<Edge> edges_of(const std::vector<Variant>& variants) const;
  /// A weight or running statistic, of whatever process.
  HostTensor trained_tensor(const std::string& name) const;

  PlannedNetwork& network_;
  std::vector<Variant> training_;  // the full micro-batch first
  std::vector<Variant> evaluations_;
  std::vector<Edge> training_edges_;  // empty: there are none beside those of the network
  std::vector<std::unique_ptr<Program>> programs_;
  std::vector<std::unique_ptr<Program>> evaluation_programs_;  // a whole round, the last one
  std::int64_t evaluated_samples_ = 0;
  std::map<std::string, HostTensor> collected_;  // of stages of other processes
  std::unique_ptr<Runtime> runtime_;
};

/// While it lives, the weights of the stages here are their moving averages, if a run has any.
class AveragedWeights {
 public:
  AveragedWeights(const PlannedNetwork& network, Runtime& runtime);
  ~AveragedWeights();
  AveragedWeights(const AveragedWeights&) = delete;
  AveragedWeights& operator=(const AveragedWeights&) = delete;

 private:
  Runtime* runtime_;  // null: there are none
};

}  // namespace pipetrain
