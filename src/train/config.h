// The complete configuration of a run. The command line fills it in; the results depend on it and
// on the files it names alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "data/loading/open_data.h"
#include "graph/op.h"
#include "ops/registry/registry.h"
#include "optim/learning_rate.h"
#include "optim/optimizer.h"
#include "partition/plan.h"
#include "passes/adapters.h"
#include "passes/loss.h"
#include "passes/parameters.h"

namespace pipetrain {

struct ModelConfig {
  std::string path;
  std::map<std::string, std::int64_t> dims;  // --dim
  std::map<std::string, Shape> shapes;  // --shape: whole shapes by input name, sample axis included
  /// Of samples that are images, by input: those of the training, where the model leaves them open.
  std::map<std::string, Shape> image_shapes;
  std::string output_node;
  ParameterOptions parameters;
  AdapterOptions adapters;
  LossOptions loss;
  BatchNormMode batch_norm = BatchNormMode::kTrain;
  bool dropout = true;
  DType precision = DType::kFloat32;  // of activations and matmul inputs: also kBFloat16, kFloat16
  bool tensor_floats = false;         // matmuls of float32 on GPUs may use TF32
};

/// How the gradients of replicas become updates. kSync: all replicas share the micro-batches of a
/// mini-batch and wait for each other. kAsync: a replica computes the gradient of a mini-batch,
/// which is applied when it comes. kBackup: of N replicas, B may be late: an update adds the first
/// N - B gradients (Chen et al. 2016, arXiv:1604.00981).
enum class ReplicaMode : std::uint8_t { kSync, kAsync, kBackup };

struct ReplicaUpdates {
  ReplicaMode mode = ReplicaMode::kSync;
  int staleness = -1;  // of kAsync: maximum age of a gradient's weights, in updates; -1: automatic
  int backup = 0;      // of kBackup: B
  int replicas = 0;    // N; 0: as PipelineConfig::replicas says

  bool waits() const { return mode == ReplicaMode::kSync; }
  /// Gradients that an update adds.
  int gradients() const { return mode == ReplicaMode::kBackup ? replicas - backup : 1; }
};

struct PipelineConfig {
  int devices = 1;                // each has one stage, or several in interleaved schedules
  std::string schedule = "1f1b";  // a name, or the file of a schedule
  int chunks = 2;                 // stages of a device in interleaved schedules
  std::vector<int> replicas;      // devices of each stage; empty: one each
  bool plan_replicas = false;     // the planner chooses the devices per stage
  ReplicaUpdates replica_updates;
  bool shard_optimizer = false;  // replicas share the updates and the optimizer's state
  int accumulators = 0;          // leaves of the tree of sums of gradients; 0: in their order
  bool bfloat16_sums = false;    // gradients of replicas are sent and summed as bfloat16
  bool estimate = false;         // plan for the devices of the topology, which are not present
  std::string topology;          // a topology's file or name; empty: the measured one, if there is
  int memory_units = 0;  // of schedule zb: micro-batches that a device may hold; 0: one per device
  double warm_up_tolerance = 0.02;    // of schedule 1f1b-auto: fraction of the speed to give up
  std::int64_t micro_batches = 0;     // 0: by micro_batch_size, or automatic
  std::int64_t micro_batch_size = 0;  // 0: by micro_batches
  std::string plan_path;              // a plan.json to follow
  std::vector<std::string> split;     // nodes that start stages 1, 2, …
  std::vector<int> cuts;              // the same as positions in the chain, from a search
  std::vector<int>
      order;  // and in which order of nodes (partition/order_text.h); empty: found here
  Recompute recompute = Recompute::kAuto;
  std::size_t memory_limit_bytes = 0;
  std::string profile_path;  // a profile.json to use instead of measuring
  bool profile_cache = true;
  bool brief_profile = false;  // one device: short profiling, rough prediction
  Backend backend = Backend::kCpu;
  std::string edge = "auto";   // transfers between GPUs: auto, copy, nccl
  bool deterministic = false;  // gradients of replicas are summed in a fixed order on GPUs, too
  std::vector<int> gpu_ids;    // by device; may repeat. Empty: stages on the CPU
  int threads = 0;             // of each stage; 0: cores / stages, as far as they pay off
  bool pin = true;
  double timeout_seconds = 60;
};

/// What happens when the loss, or with kSkip a gradient, is not finite: an Error (kDiverged); the
/// step is skipped (synchronous schedules); nothing.
enum class OnNonfinite : std::uint8_t { kStop, kSkip, kIgnore };

struct OptimizationConfig {
  std::int64_t batch_size = 64;
  std::int64_t epochs = 1;
  std::int64_t max_steps = -1;  // -1: by epochs
  OptimizerSettings optimizer;
  /// By patterns of names, the later ones win: factors of the learning rate, and weight decays in
  /// place of the optimizer's (and of none for norms and biases where the decay is decoupled).
  std::vector<std::pair<std::string, double>> rate_scales, decays;
  LearningRateSettings learning_rate;
  bool rate_by_time = false;     // the curve spans the time limit, not the steps
  double rate_every_epochs = 0;  // learning_rate.every_steps in epochs; 0: in steps
  double warmup = 0;             // steps, or a fraction of the run when warmup_is_fraction
  bool warmup_is_fraction = false;
  double clip_norm = 0;
  double loss_scale = 0;             // of kFloat16; 0: adapts
  std::string best_metric = "loss";  // of validation: selects the best checkpoint
  std::int64_t patience = 0;         // validations without improvement that end the run; 0: never
  double evaluate_every = 1;         // epochs, or steps when evaluate_by_steps; 0: never
  bool evaluate_by_steps = false;
  std::uint64_t seed = 1;
  bool shuffle = true;
  std::string sample_weights;  // "balanced" or a file; empty: every sample once an epoch
  bool drop_last = false;
  OnNonfinite on_nonfinite = OnNonfinite::kStop;
};

struct RunConfig {
  ModelConfig model;
  DataOptions data;
  PipelineConfig pipeline;
  OptimizationConfig optimization;
};

}  // namespace pipetrain
