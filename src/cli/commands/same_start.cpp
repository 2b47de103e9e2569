#include "cli/commands/same_start.h"

#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/vectors.h"
#include "cli/options/config_file.h"
#include "processes/process_group.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

/// A line of a configuration, in which options at their defaults are comments.
std::string told_of(const std::string& line) {
  return line.starts_with("# ") ? line.substr(2) : line;
}

}  // namespace

void check_same_options(const Options& options, ProcessGroup* processes) {
  if (!processes) return;
  Options told = options;
  told.quiet = false;  // which process logs is decided elsewhere
  const std::string mine = config_text(told, "train", /*all=*/true) +
                           fmt::format("resume = {}\ndry-run = {}\n", told.resume, told.dry_run);
  const std::string first = processes->broadcast(mine);
  std::istringstream here(mine), there(first);
  for (std::string line, other; std::getline(here, line) && std::getline(there, other);) {
    PT_CHECK(line == other, kUsage,
             "{} was started with {} where process 0 has {}; all must be started with the same "
             "options",
             processes->name_of(processes->rank()), printable(told_of(line)),
             printable(told_of(other)));
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
  if (!processes || options.resume.empty()) return found;
  const std::string path = processes->broadcast(found ? fs::absolute(found->path).string() : "");
  // Process 0 decides whose it is: the others may have another home directory.
  const bool is_own = processes->broadcast(found && found->checkpoint.is_own ? "own" : "") == "own";
  if (!processes->leads() && !path.empty()) found = find_checkpoint(path);
  if (found) found->checkpoint.is_own = is_own;
  return found;
}

}  // namespace pipetrain
