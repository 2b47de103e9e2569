#include "cli/commands/replica_mode.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "cli/commands/begin_training.h"
#include "cli/commands/commands.h"
#include "cli/options/resume_command_line.h"
#include "cli/output/output.h"
#include "processes/process_group.h"
#include "train/replay.h"
#include "train/replica_updates.h"
#include "train/resume.h"

namespace pipetrain {

void check_replica_mode(Options& options, ProcessGroup* processes) {
  PipelineConfig& pipeline = options.run.pipeline;
  if (pipeline.replica_updates.waits()) return;
  const std::pair<bool, const char*> others[] = {
      {options.restarts > 0, "--restarts"},
      {std::getenv(CommitSettings::kVariable) != nullptr, "pipetrain launch"},
      {options.resume_weights_only, "--resume-weights-only"},
      {options.verify_every > 0, "--verify-every"},
      {!options.trace.empty(), "--trace"},
      {options.lr == "find", "--lr find"},
  };
  for (const auto& [given, name] : others)
    PT_CHECK(!given, kUsage, "--replica-mode other than sync does not work with {}", name);
  if (!processes) return;
  if (pipeline.replicas.empty() && options.gpus == 0) pipeline.replicas = {processes->size()};
  PT_CHECK(pipeline.replicas.size() != 1 || pipeline.replicas[0] >= processes->size(), kUsage,
           "{} processes were started for {} replica{}; give --replicas {} or more, or start fewer",
           processes->size(), pipeline.replicas[0], pipeline.replicas[0] == 1 ? "" : "s",
           processes->size());
}

int verify_replay(Options& options) {
  const FoundCheckpoint found = find_checkpoint(options.replay);
  for (const std::string& reason : found.refused) log_warning("verify", "{}", reason);
  const bool json = options.json;
  take_over(found, "verify", options);
  PipelineConfig& pipeline = options.run.pipeline;
  if (const auto& record = found.checkpoint.replicas; record && pipeline.replicas.empty()) {
    // Every process was one.
    const std::size_t updates = std::max<std::size_t>(1, record->rates.size());
    pipeline.replicas = {pipeline.replica_updates.backup +
                         std::max(1, static_cast<int>(record->parts.size() / updates))};
  }
  resolve_model(options, "verify");
  resolve_device(options, "verify");
  PlannedNetwork network = plan_network(options.run);
  compare_run(network, found.checkpoint, recorded_settings(options));
  PipelineRun run(network);
  initialize(options, run);
  const Replay result = replay(run, found.checkpoint);
  if (json) {
    const nlohmann::ordered_json body = {
        {"schema", "pipetrain.replay/1"},    {"equal", result.equal()},
        {"checkpoint", found.path.string()}, {"updates", result.updates},
        {"tensors", result.tensors},         {"versions", result.most_versions},
        {"different", result.different}};
    print(body.dump(2) + "\n");
  } else {
    print(
        fmt::format("{}: {} tensors of {} and {} updates computed again in one thread from its "
                    "record; at most {} version{} of the weights at a time\n",
                    result.equal() ? "bit-identical" : "DIFFERENT", result.tensors,
                    printable(found.path.string()), result.updates, result.most_versions,
                    result.most_versions == 1 ? "" : "s"));
    for (const std::string& name : result.different) print("  " + name + "\n");
  }
  return result.equal() ? 0 : static_cast<int>(ErrorKind::kAssertion);
}

std::string words_on_replicas(const PlannedNetwork& network) {
  const int replicas = network.replica_updates().replicas;
  ProcessGroup* processes = network.replica_processes();
  return fmt::format("{} replica{} x {} thread{}{} · {}", replicas, replicas == 1 ? "" : "s",
                     network.threads(), network.threads() == 1 ? "" : "s",
                     processes ? fmt::format(", in {} processes ({})", processes->size(),
                                             processes->processes().name())
                               : "",
                     words_on(network.replica_updates()));
}

}  // namespace pipetrain
