#include "cli/commands/replica_mode.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/document.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/commands/begin_training.h"
#include "cli/commands/commands.h"
#include "cli/commands/run_folder.h"
#include "cli/options/resume_command_line.h"
#include "cli/output/output.h"
#include "processes/process_group.h"
#include "processes/processes.h"
#include "train/replay.h"
#include "train/replica_updates.h"
#include "train/replica_weights.h"
#include "train/resume.h"

namespace pipetrain {
namespace {

/// Gradients that each update of a run has added; 0: there was none.
int gradients_of(const ReplicaRecord& record) {
  return record.rates.empty() ? 0 : static_cast<int>(record.parts.size() / record.rates.size());
}

/// The mode in settings, where the last one counts: "--replicas=:mode=backup:1". Empty: there is
/// none.
std::string mode_in(const std::vector<Setting>& settings) {
  constexpr std::string_view kMode = ":mode=";
  std::string mode;
  for (const auto& [name, value] : settings) {
    const std::size_t begin = value.find(kMode);
    if (name != "--replicas" || begin == std::string::npos) continue;
    mode = value.substr(begin, value.find(',', begin) - begin);
  }
  return mode;
}

/// As many gradients for each update as before, of another number of replicas.
void choose_backup_workers(int replicas, const ReplicaRecord& record, ReplicaUpdates& updates) {
  const int gradients = gradients_of(record);
  if (updates.mode != ReplicaMode::kBackup || gradients == 0) return;
  PT_CHECK(gradients <= replicas, kResource,
           "each update of this run adds the gradients of {} replicas, but {} process{} started; "
           "resume it with {} or more",
           gradients, replicas, replicas == 1 ? " was" : "es were", gradients);
  updates.backup = replicas - gradients;
}

}  // namespace

void check_replica_mode(Options& options, const Checkpoint* resumed) {
  PipelineConfig& pipeline = options.run.pipeline;
  if (pipeline.replica_updates.waits()) return;
  const std::pair<bool, const char*> others[] = {
      {options.resume_weights_only, "--resume-weights-only"},
      {options.verify_every > 0, "--verify-every"},
      {!options.trace.empty(), "--trace"},
      {options.lr == "find", "--lr find"},
  };
  for (const auto& [given, name] : others)
    PT_CHECK(!given, kUsage, "--replica-mode other than sync does not work with {}", name);
  const Launch launch = launch_of_environment();
  if (launch.launcher.empty()) return;
  if (pipeline.replicas.empty() && options.gpus == 0) {
    pipeline.replicas = {launch.size};
    const std::string given = mode_in(options.given);
    const bool other = resumed && !given.empty() && given != mode_in(resumed->run.settings);
    if (resumed && resumed->replicas && !other)
      choose_backup_workers(launch.size, *resumed->replicas, pipeline.replica_updates);
  }
  PT_CHECK(pipeline.replicas.size() != 1 || pipeline.replicas[0] >= launch.size, kUsage,
           "{} processes were started for {} replica{}; give --replicas {} or more, or start fewer",
           launch.size, pipeline.replicas[0], pipeline.replicas[0] == 1 ? "" : "s", launch.size);
}

std::optional<Checkpoint> record_to_resume(const Options& train,
                                           const std::filesystem::path& folder) {
  if (train.resume.empty() || train.resume_weights_only) return {};
  std::optional<Checkpoint> resumed = newest_record(folder);
  const bool is_path = train.resume != "auto" && train.resume != "latest";
  if (!resumed && is_path) resumed = newest_record(train.resume);
  return resumed;
}

NeededProcesses needed_processes(const Options& train, const std::filesystem::path& folder) {
  const std::optional<Checkpoint> resumed = record_to_resume(train, folder);
  const auto is_one_each = [](const std::vector<Setting>& settings) {
    return std::ranges::none_of(settings, [](const Setting& each) {
      return each.first == "--gpus" ||
             (each.first == "--replicas" && !each.second.starts_with(":"));
    });
  };
  const bool before = !resumed || is_one_each(resumed->run.settings);
  if (!before || !is_one_each(train.given)) return {};
  NeededProcesses needed;
  const std::string given = mode_in(train.given);
  const std::string mode = given.empty() && resumed ? mode_in(resumed->run.settings) : given;
  if (mode.find("=backup") == std::string::npos) return needed;
  const bool goes_on = resumed && resumed->replicas && mode == mode_in(resumed->run.settings);
  if (const int gradients = goes_on ? gradients_of(*resumed->replicas) : 0; gradients > 0)
    needed.least = gradients;
  else if (!given.empty())
    needed.spare = train.run.pipeline.replica_updates.backup;
  return needed;
}

int verify_replay(Options& options) {
  const FoundCheckpoint found = find_checkpoint(options.replay);
  for (const std::string& reason : found.refused) log_warning("verify", "{}", reason);
  const bool json = options.json;
  put_back_earlier_model(found);
  take_over(found, "verify", options);
  PipelineConfig& pipeline = options.run.pipeline;
  if (const auto& record = found.checkpoint.replicas; record && pipeline.replicas.empty()) {
    // Every process was one.
    pipeline.replicas = {pipeline.replica_updates.backup + std::max(1, gradients_of(*record))};
  }
  resolve_model(options, "verify");
  resolve_device(options, "verify");
  PlannedNetwork network = plan_network(options.run);
  compare_run(network, found.checkpoint, recorded_settings(options));
  PipelineRun run(network);
  // Checkpoints do not have the setting. Where the file's weights are not those that the run began
  // with, these may have been random.
  if (const auto& record = found.checkpoint.replicas;
      record && checksum_of(run.runtime().content(0).weights) != record->start)
    options.init = "random";
  initialize(options, run);
  const Replay result = replay(run, found.checkpoint);
  if (json) {
    const nlohmann::ordered_json body = {
        {"equal", result.equal()},          {"checkpoint", found.path.string()},
        {"updates", result.updates},        {"tensors", result.tensors},
        {"versions", result.most_versions}, {"different", result.different}};
    print(document_text("pipetrain.replay/1", body));
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
