#include "train/replica_updates.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/setting.h"
#include "pipeline/program/program.h"
#include "processes/process_group.h"
#include "train/network.h"
#include "train/process_agreement.h"
#include "train/program_maker.h"
#include "train/sample_weights.h"

namespace pipetrain {
namespace {

/// What replicas that do not wait cannot do.
void check_other_settings(const RunConfig& config) {
  const PipelineConfig& pipeline = config.pipeline;
  const std::string mode = setting("replica-mode");
  const auto refuse = [&](bool given, const std::string& what) {
    PT_CHECK(!given, kUsage, "{} other than sync does not work with {}; leave out one of them",
             mode, what);
  };
  PT_CHECK(pipeline.replicas.size() == 1 && !pipeline.plan_replicas, kUsage,
           "{} other than sync is for networks in one stage; give {} N", mode, setting("replicas"));
  refuse(!pipeline.split.empty(), setting("split"));
  refuse(!pipeline.plan_path.empty(), setting("plan"));
  PT_CHECK(pipeline.gpu_ids.empty(), kUsage, "{} other than sync is for CPUs; add {} cpu", mode,
           setting("device"));
  PT_CHECK(RunSchedule(pipeline).rule() == UpdateRule::kSync, kUsage,
           "{} other than sync needs a synchronous {}", mode, setting("schedule"));
  refuse(pipeline.shard_optimizer, setting("shard-optimizer"));
  refuse(pipeline.accumulators > 0, setting("accumulators"));
  refuse(pipeline.bfloat16_sums, setting("compress"));
  refuse(config.data.shard_files, setting("data-sharding"));
  refuse(config.model.precision == DType::kFloat16, setting("precision") + " fp16");
  refuse(config.optimization.on_nonfinite == OnNonfinite::kSkip, setting("on-nan") + " skip");
  refuse(config.optimization.rate_by_time, "a learning rate that goes by time");
}

}  // namespace

RunConfig config_of_replica(const RunConfig& config, RunMode mode) {
  RunConfig one = config;
  if (mode == RunMode::kEvaluate) one.pipeline.replica_updates = {};
  if (one.pipeline.replica_updates.waits()) return one;
  check_other_settings(config);
  PipelineConfig& pipeline = one.pipeline;
  ReplicaUpdates& updates = pipeline.replica_updates;
  updates.replicas = pipeline.replicas[0];
  const int others = updates.replicas - 1;
  if (updates.mode == ReplicaMode::kAsync) {
    constexpr int kRounds = 4;  // of updates that a slow replica may miss
    if (updates.staleness < 0) updates.staleness = kRounds * others;
    PT_CHECK(updates.staleness >= others, kUsage,
             "{} {} is too small: while a replica computes, the {} other{} make{} an update each; "
             "give {} or more",
             setting("staleness"), updates.staleness, others, others == 1 ? "" : "s",
             others == 1 ? "s" : "", others);
  } else {
    PT_CHECK(updates.backup < updates.replicas, kUsage,
             "of {} replica{} {} cannot be backup workers; give {} backup:{} or fewer",
             updates.replicas, updates.replicas == 1 ? "" : "s", updates.backup,
             setting("replica-mode"), others);
    PT_CHECK(config.optimization.batch_size % updates.gradients() == 0, kUsage,
             "{} {} cannot be divided among the {} replicas of an update; use a multiple of {}",
             setting("batch-size"), config.optimization.batch_size, updates.gradients(),
             updates.gradients());
  }
  pipeline.replicas.clear();
  pipeline.devices = 1;
  return one;
}

ReplicaRange replicas_here(const Network& network) {
  const int replicas = network.replica_updates().replicas;
  const ProcessGroup* processes = network.replica_processes();
  ReplicaRange range;
  for (int r = 0; r < replicas; ++r) {
    const int process = process_of(r, replicas, processes);
    if (!processes || process == processes->rank()) ++range.count;
    if (processes && process < processes->rank()) ++range.first;
  }
  return range;
}

std::int64_t samples_of_part(const RunConfig& config) {
  return config.optimization.batch_size / config.pipeline.replica_updates.gradients();
}

Sampler training_sampler(const Network& network) {
  const OptimizationConfig& settings = network.config().optimization;
  return {network.data().train->size(),
          {static_cast<std::size_t>(samples_of_part(network.config())), settings.seed,
           settings.shuffle, settings.drop_last,
           settings.sample_weights.empty()
               ? std::vector<double>()
               : sample_weights(settings.sample_weights, *network.data().train, network.data().rows,
                                network.graph().loss.classes, network.graph().loss.ignore_index),
           network.data().shard_samples, static_cast<std::size_t>(network.micro_batch())}};
}

std::string words_on(const ReplicaUpdates& updates) {
  if (updates.waits()) return "sync";
  if (updates.mode == ReplicaMode::kAsync) {
    return fmt::format("async, gradients of weights at most {} update{} old", updates.staleness,
                       updates.staleness == 1 ? "" : "s");
  }
  return fmt::format("{} backup worker{}, an update adds the first {} of {} gradients",
                     updates.backup, updates.backup == 1 ? "" : "s", updates.gradients(),
                     updates.replicas);
}

}  // namespace pipetrain
