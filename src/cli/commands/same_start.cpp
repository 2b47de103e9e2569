#include "cli/commands/same_start.h"

#include <filesystem>
#include <map>
#include <sstream>

#include "base/error.h"
#include "base/vectors.h"
#include "cli/commands/run_folder.h"
#include "cli/options/config_file.h"
#include "processes/process_group.h"
#include "train/replica_record.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

/// A line of a configuration, in which options at their defaults are comments.
std::string told_of(const std::string& line) {
  return line.starts_with("# ") ? line.substr(2) : line;
}

/// The lines of a configuration by the names of their options, which several lines may have.
std::map<std::string, std::string> told_by_name(const std::string& text) {
  std::map<std::string, std::string> told;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line = told_of(line);
    if (line.find(" = ") == std::string::npos) continue;
    std::string& all = told[line.substr(0, line.find(" = "))];
    all += (all.empty() ? "" : ", ") + line;
  }
  return told;
}

}  // namespace

void check_same_options(const Options& options, ProcessGroup* processes) {
  if (!processes) return;
  Options told = options;
  told.quiet = false;  // which process logs is decided elsewhere
  const std::string mine = config_text(told, "train", /*all=*/true) +
                           fmt::format("resume = {}\ndry-run = {}\n", told.resume, told.dry_run);
  const std::string first = processes->broadcast(mine);
  const auto here = told_by_name(mine), there = told_by_name(first);
  const auto value = [](const auto& told, const std::string& name) {
    const auto found = told.find(name);
    return printable(found == told.end() ? name + " not given" : found->second);
  };
  for (const auto* told : {&here, &there}) {
    for (const auto& [name, line] : *told) {
      PT_CHECK(value(here, name) == value(there, name), kUsage,
               "{} was started with {} where process 0 has {}; all must be started with the same "
               "options",
               processes->name_of(processes->rank()), value(here, name), value(there, name));
    }
  }
  PT_CHECK(mine == first, kUsage, "{} was started with other options than process 0",
           processes->name_of(processes->rank()));
}

void check_same_vectors(ProcessGroup* processes) {
  if (!processes) return;
  const std::string mine = vector_instructions(), first = processes->broadcast(mine);
  PT_CHECK(mine == first, kResource,
           "{} uses {}, but process 0 uses {}; use machines with the same CPU type, or set "
           "PIPETRAIN_VECTORS=AVX2 on all",
           processes->name_of(processes->rank()), mine, first);
}

std::optional<FoundCheckpoint> same_checkpoint(const Options& options, ProcessGroup* processes) {
  std::optional<FoundCheckpoint> found;
  if (!processes || processes->leads()) found = checkpoint_to_resume(options);
  // Before the others read the model.
  if (found && !options.resume_weights_only) put_back_earlier_model(*found);
  if (!processes || options.resume.empty()) return found;
  const std::string path = processes->broadcast(found ? fs::absolute(found->path).string() : "");
  // Process 0 decides whose it is: the others may have another home directory.
  const bool is_own = processes->broadcast(found && found->checkpoint.is_own ? "own" : "") == "own";
  if (!processes->leads() && !path.empty()) found = find_checkpoint(path);
  if (found) found->checkpoint.is_own = is_own;
  return found;
}

std::optional<FoundCommit> commit_to_resume(const Options& options, ProcessGroup* processes) {
  const std::optional<CommitSettings> commits = CommitSettings::of_environment();
  if (!commits || options.run_dir.empty()) return {};
  const fs::path checkpoints = fs::path(options.run_dir) / "checkpoints";
  // A host that returns may have one of steps that the run has taken otherwise since.
  const auto goes_on = [&](const Checkpoint& state) {
    if (!state.replicas) return true;
    const std::optional<Checkpoint> newest = newest_record(options.run_dir);
    return !newest || !newest->replicas || goes_on_from(*state.replicas, *newest->replicas);
  };
  return newest_commit(processes, commits->folder, newest_step(checkpoints), goes_on);
}

}  // namespace pipetrain
