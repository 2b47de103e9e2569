#include "cli/resume_command_line.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "base/error.h"
#include "base/log.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

/// Whether an option belongs to what is trained and how, and not to where results go.
bool is_kept(const OptionSpec& spec) {
  // What a run begins with has been done when it goes on.
  if (spec.name == "--init" || spec.name == "--num-classes") return false;
  static const std::set<std::string> groups = {"Model", "Data", "Pipeline", "Optimise"};
  return groups.contains(spec.group) || spec.name == "--save-every" || spec.name == "--keep";
}

/// Whether an option is set as a whole; ":KEY=VALUE" sets a part of it.
bool has(const std::vector<Setting>& settings, const std::string& name) {
  return std::any_of(settings.begin(), settings.end(), [&](const Setting& s) {
    return s.first == name && s.second.rfind(':', 0) != 0;
  });
}

/// An option given now puts others of a checkpoint out of force.
bool is_overruled(const std::string& name, const std::vector<Setting>& given) {
  static const std::map<std::string, std::vector<std::string>> rivals = {
      {"--max-steps", {"--epochs"}},
      {"--epochs", {"--max-steps"}},
      {"--micro-batches", {"--micro-batch-size"}},
      {"--micro-batch-size", {"--micro-batches"}},
      {"--val-split", {"--val-data"}},
      {"--val-data", {"--val-split"}},
      {"--gpus", {"--plan", "--split"}},
      {"--plan", {"--gpus", "--split", "--replicas", "--schedule"}},
      {"--split", {"--gpus", "--plan", "--replicas"}},
      {"--replicas", {"--gpus", "--plan", "--split", "--schedule"}}};
  const auto found = rivals.find(name);
  return has(given, name) ||
         (found != rivals.end() && std::any_of(found->second.begin(), found->second.end(),
                                               [&](const auto& r) { return has(given, r); }));
}

/// Paths are kept so that they can be followed from elsewhere.
std::string followable(const std::string& option, const std::string& value) {
  static const std::set<std::string> paths = {"--model",   "--data",     "--val-data", "--plan",
                                              "--profile", "--topology", "--schedule"};
  std::error_code error;
  if (!paths.contains(option) || !fs::exists(value, error)) return value;
  const fs::path absolute = fs::absolute(value, error);
  return error ? value : absolute.lexically_normal().string();
}

}  // namespace

fs::path folder_of_runs() {
  const char* root = std::getenv("PIPETRAIN_RUNS_DIR");
  return root && *root ? root : "runs";
}

std::optional<FoundCheckpoint> checkpoint_to_resume(const Options& options) {
  if (options.resume.empty()) return {};
  std::optional<FoundCheckpoint> found;
  if (options.resume != "auto" && options.resume != "latest") {
    found = find_checkpoint(options.resume);
  } else {
    const fs::path run =
        options.run_dir.empty() ? folder_of_runs() / "latest" : fs::path(options.run_dir);
    found = newest_checkpoint(run / "checkpoints");
    PT_CHECK(found || options.resume == "auto", kUsage,
             "--resume: there is no checkpoint in \"{}\"; give --resume=PATH, or --resume=auto to "
             "start afresh where there "
             "is none",
             printable(run.string()));
  }
  if (!found) return {};
  for (const std::string& reason : found->refused) log_warning("resume", "{}", reason);
  if (!found->refused.empty())
    log_warning("resume", "going back to the checkpoint before: {}",
                printable(found->path.string()));
  return found;
}

fs::path folder_to_resume(const Options& options, const FoundCheckpoint& found) {
  if (!options.run_dir.empty()) return options.run_dir;
  const fs::path checkpoints = fs::absolute(found.path).lexically_normal().parent_path();
  const std::vector<fs::path> all = list_checkpoints(checkpoints);
  const bool newest = checkpoints.filename() == "checkpoints" &&
                      all.size() > found.refused.size() &&
                      all[found.refused.size()].filename() == found.path.filename();
  // A run that begins anew inside another one would delete what came after.
  return newest ? fs::proximate(checkpoints.parent_path()) : fs::path();
}

void take_over(const Checkpoint& checkpoint, Options& options) {
  std::vector<Setting> settings;
  for (const auto& [name, value] : checkpoint.run.settings) {
    if (!is_overruled(name, options.given)) settings.emplace_back(name, value);
  }
  // The model may have been named without its option.
  const std::vector<std::string> arguments = options.arguments;
  if (!arguments.empty())
    std::erase_if(settings, [](const Setting& s) { return s.first == "--model"; });
  const std::vector<Setting> given = options.given;
  settings.insert(settings.end(), given.begin(), given.end());
  options = options_of("train", settings);
  options.given = given;
  options.arguments = arguments;
  // Numbers of asynchronous schedules depend on where the model is cut, so it is cut there again.
  const bool same_layout = !has(given, "--gpus") && !has(given, "--schedule") &&
                           !has(given, "--replicas") && !has(given, "--split") &&
                           !has(given, "--plan");
  if (checkpoint.run.value("updates") == "asynchronous" && same_layout &&
      options.run.pipeline.plan_path.empty() && options.run.pipeline.split.empty())
    options.run.pipeline.cuts = checkpoint.cuts;
}

std::vector<Setting> settings_to_keep(const Options& options, const Session& session) {
  Options copy;
  std::set<std::string> kept;
  for (const OptionSpec& spec : describe_options(copy)) {
    if (is_kept(spec)) kept.insert(spec.name);
  }
  // What was left to the program is kept as it was decided.
  std::vector<Setting> settings = {
      {"--model", followable("--model", options.run.model.path)},
      {"--schedule", followable("--schedule", options.run.pipeline.schedule)},
      {"--threads", fmt::format("{}", session.threads())}};
  for (const auto& [name, value] : options.settings) {
    if (kept.contains(name) && name != "--model" && name != "--schedule" && name != "--threads")
      settings.emplace_back(name, followable(name, value));
  }
  return settings;
}

std::string checkpoint_setting(const Checkpoint& checkpoint, const std::string& option) {
  std::string value;
  for (const auto& [name, set] : checkpoint.run.settings) {
    if (name == option) value = set;
  }
  return value;
}

}  // namespace pipetrain
