#include "cli/options/resume_command_line.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/options/option_table.h"
#include "cli/options/other_names.h"
#include "data/rows/readers.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

/// Whether an option affects what is trained and how, and not where results go.
bool is_kept(const OptionSpec& spec) {
  if (spec.path == PathUse::kWrite) return false;
  // Initialization is not repeated on resume.
  if (spec.name == "--init" || spec.name == "--num-classes") return false;
  static const std::set<std::string> groups = {"Model", "Data", "Pipeline", "Optimization"};
  static const std::set<std::string> names = {"--save-every", "--keep", "--on-error"};
  return groups.contains(spec.group) || names.contains(spec.name);
}

/// Whether an option affects where results go. Taken only from the user's own checkpoints.
bool is_output(const std::string& name) {
  static const std::set<std::string> names = {
      "--output", "--metrics", "--log-to", "--status-file", "--log-every", "--on-checkpoint-error"};
  return names.contains(name);
}

/// Whether an option is set as a whole.
bool has(const std::vector<Setting>& settings, const std::string& name) {
  return std::ranges::any_of(
      settings, [&](const Setting& s) { return s.first == name && sets_whole(s.second); });
}

/// Whether settings set the part of an option that ":KEY=VALUE" sets.
bool sets_same_part(const std::vector<Setting>& settings, const std::string& name,
                    const std::string& value) {
  const std::string part = value.substr(0, value.find('=') + 1);
  return part.starts_with(':') && std::ranges::any_of(settings, [&](const Setting& s) {
           return s.first == name && s.second.starts_with(part);
         });
}

/// Whether options given now put one of a checkpoint out of force, besides those that exclude each
/// other: replicas and plans hold for the devices and the schedule that they were made for.
bool is_overruled(const std::string& name, const std::vector<Setting>& given) {
  static const std::map<std::string, std::vector<std::string>> rivals = {
      {"--plan", {"--schedule"}},
      {"--split", {"--replicas"}},
      {"--gpus", {"--gpu-ids"}},
      {"--gpu-ids", {"--gpus"}},
      {"--replicas", {"--gpus", "--split", "--schedule"}}};
  const auto found = rivals.find(name);
  if (found != rivals.end() && std::ranges::any_of(found->second, [&](const std::string& rival) {
        return has(given, rival);
      }))
    return true;
  // Replicas say how many devices there are, unless the planner chooses them for that many.
  return name == "--gpus" && std::ranges::any_of(given, [](const Setting& s) {
           return s.first == "--replicas" && sets_whole(s.second) && !s.second.starts_with("auto");
         });
}

using Specs = std::map<std::string, OptionSpec>;

/// The options of a training run by their names.
Specs train_options() {
  Options unused;
  Specs specs;
  for (OptionSpec& spec : describe_options(unused)) {
    if (spec.applies_to("train")) specs.emplace(spec.name, std::move(spec));
  }
  return specs;
}

/// Whether a value of an option is a path, and not one of its keywords.
bool names_file(const OptionSpec& spec, const std::string& value) {
  const std::vector<std::string> keywords = spec.keywords();
  if (spec.path == PathUse::kNone || value.empty() || value == "-" ||
      std::find(keywords.begin(), keywords.end(), value) != keywords.end())
    return false;
  if (spec.names_file) return spec.names_file(value);
  std::error_code error;
  const bool may_be_name = spec.value.find("NAME") != std::string::npos;
  return !may_be_name || value.find_first_of("./\\") != std::string::npos ||
         fs::exists(value, error);
}

/// Whether a path is a glob in a folder that is there.
bool is_glob_in_folder(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code error;
  return is_glob(path.string()) && fs::is_directory(folder, error);
}

/// Paths are recorded as absolute ones.
std::string followable(const OptionSpec& spec, const std::string& value) {
  const auto [path, rest] = spec.split_value(value);
  std::error_code error;
  if (!names_file(spec, path) || (!fs::exists(path, error) && !is_glob_in_folder(path)))
    return value;
  const fs::path absolute = fs::absolute(path, error);
  return error ? value : absolute.lexically_normal().string() + rest;
}

/// Whether a path, with symbolic links resolved, leads to a regular file inside a folder. Globs are
/// refused, as they may match links.
bool lies_in(const fs::path& path, const fs::path& folder) {
  std::error_code error;
  const fs::path inner = fs::weakly_canonical(path, error);
  const fs::path outer = error ? fs::path() : fs::canonical(folder, error);
  if (error || is_glob(path.string())) return false;
  if (is_special(inner) ||
      std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first != outer.end())
    return false;
  for (fs::recursive_directory_iterator i(inner, error), end; !error && i != end;
       i.increment(error)) {
    std::error_code ignored;
    if (i->is_symlink(ignored) || is_special(i->path())) return false;
  }
  return true;
}

std::string manifest_of(const FoundCheckpoint& found) {
  return printable((found.path / "manifest.json").string());
}

std::string as_option(const Setting& setting) {
  return printable(setting.first + "=" + setting.second);
}

/// A setting of an earlier version under its name today: some options have become parts of others.
Setting under_todays_name(const Setting& setting, const Specs& specs) {
  if (specs.contains(setting.first)) return setting;
  for (const auto& [name, spec] : specs) {
    for (const OptionSpec& part : spec.parts) {
      if (part.name == setting.first) return setting_of(spec, &part, setting.second);
    }
  }
  return setting;
}

/// The settings of a checkpoint. Refuses those that no run saves: unknown ones, and those that set
/// where the run writes.
std::vector<Setting> kept_settings(const FoundCheckpoint& found, const Specs& specs) {
  static const std::set<std::string> renamed = {"--keep", "--on-bad-sample", "--on-nan",
                                                "--patience"};
  std::vector<Setting> settings = found.checkpoint.run.settings;
  for (Setting& setting : settings) {
    if (renamed.contains(setting.first)) setting = under_todays_name(setting, specs);
    const std::string& name = setting.first;
    const auto spec = specs.find(name);
    PT_CHECK(spec != specs.end(), kData,
             "{}: settings: unknown setting \"{}\"; was the file written by another version of "
             "pipetrain?",
             manifest_of(found), printable(name));
    PT_CHECK(is_kept(spec->second), kData,
             "{}: settings: {} is not taken from a checkpoint; give it on the command line if you "
             "want it, and remove it from the file",
             manifest_of(found), name);
  }
  return settings;
}

/// Refuses to read files outside the run folder that another user's checkpoint names.
void check_paths(const FoundCheckpoint& found, const Specs& specs,
                 const std::vector<Setting>& taken, const std::string& command) {
  if (found.checkpoint.is_own) return;
  std::string outside;
  for (const auto& [name, value] : taken) {
    const OptionSpec& spec = specs.at(name);
    const std::string path = spec.split_value(value).first;
    if (spec.applies_to(command) && names_file(spec, path) && !lies_in(path, run_of(found.path)))
      outside += " " + as_option({name, value});
  }
  PT_CHECK(outside.empty(), kUsage,
           "{} was not written by you on this machine, and refers to files outside its run folder; "
           "to read them, give these options again:{}",
           manifest_of(found), outside);
}

/// How a write to an entry of a folder could end up outside of the folder; empty: it cannot.
std::string_view way_out(const fs::directory_entry& entry) {
  std::error_code ignored;
  if (entry.is_symlink(ignored)) return "a symbolic link";
  if (is_special(entry.path())) return "a pipe or a device";
  if (entry.is_regular_file(ignored) && entry.hard_link_count(ignored) > 1) return "a hard link";
  return {};
}

/// Refuses to resume in a checkpoint's own folder if writes there would end up elsewhere.
void check_ways_out(const FoundCheckpoint& found, const fs::path& run) {
  std::error_code error;
  if (!fs::equivalent(run, run_of(found.path), error)) return;
  for (const fs::path& folder : {run, run / "checkpoints"}) {
    for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
      const std::string_view way = way_out(*i);
      // One's own checkpoints may lie on another disk, and copies of a run may share its files.
      const bool is_checkpoint =
          i->is_directory(error) && (folder != run || i->path().filename() == "checkpoints");
      if (way.empty() || (found.checkpoint.is_own && (is_checkpoint || way == "a hard link")))
        continue;
      PT_FAIL(kUsage,
              "{} is {}, so the run would write outside its folder; replace it by a regular file, "
              "or give another --run-dir",
              printable(i->path().string()), way);
    }
  }
}

/// The parts of --replicas that also hold for another number of them; empty: there are none.
std::string sums_in(const Specs& specs, const std::string& name, const std::string& value) {
  if (name != "--replicas") return {};
  const std::string parts = specs.at(name).split_value(value).second;
  std::string kept;
  for (const std::string& part : split_list_of(parts.empty() ? parts : parts.substr(1))) {
    if (part.starts_with("accumulators=") || part.starts_with("compress="))
      kept += (kept.empty() ? ":" : ",") + part;
  }
  return kept;
}

/// The settings of a checkpoint that the command line and the environment leave open.
std::vector<Setting> open_settings(const FoundCheckpoint& found, const Specs& specs,
                                   const Options& options) {
  const std::vector<Setting> kept =
      without_replaced_lists(kept_settings(found, specs), options.given);
  std::vector<Setting> open = overlay(kept, options.given);
  open.resize(open.size() - options.given.size());
  std::vector<Setting> taken;
  for (const Setting& setting : kept) {
    const auto& [name, value] = setting;
    // The model may have been named without its option.
    const bool is_given = std::ranges::count(open, setting) == 0 ||
                          is_overruled(name, options.given) ||
                          (name == "--model" && !options.arguments.empty());
    const std::string tree = is_given ? sums_in(specs, name, value) : "";
    if (!is_given) taken.push_back(setting);
    if (!tree.empty()) taken.emplace_back(name, tree);  // what is given comes after it
  }
  return taken;
}

/// How many devices options ask for.
int devices_asked_for(const Options& options) {
  const auto ids = static_cast<int>(options.run.pipeline.gpu_ids.size());
  return ids > 0 ? ids : options.gpus;
}

/// What options say of the stages and their devices.
auto layout_of(const Options& options, const Specs& specs) {
  const PipelineConfig& pipeline = options.run.pipeline;
  return std::tuple(devices_asked_for(options),
                    followable(specs.at("--schedule"), pipeline.schedule), pipeline.chunks,
                    pipeline.replicas, pipeline.plan_replicas, pipeline.split,
                    pipeline.plan_path.empty());
}

/// Takes the stages of a checkpoint where the options, as a whole, say the same of them as then:
/// results of asynchronous schedules depend on the cuts, and sums of gradients on the replicas,
/// also those that the planner has chosen.
void keep_stages(const FoundCheckpoint& found, Options& options) {
  const Checkpoint& checkpoint = found.checkpoint;
  PipelineConfig& pipeline = options.run.pipeline;
  const bool is_asynchronous = checkpoint.run.value("updates") == "asynchronous";
  if (!(is_asynchronous || pipeline.plan_replicas) || !pipeline.plan_path.empty() ||
      !pipeline.split.empty())
    return;
  const Specs specs = train_options();
  const Options before =
      with_context([&] { return fmt::format("reading the settings of {}", manifest_of(found)); },
                   [&] { return options_of("train", kept_settings(found, specs)); });
  if (layout_of(before, specs) != layout_of(options, specs)) return;
  const std::vector<int> replicas = devices_of_stages(checkpoint);
  const std::int64_t devices = std::accumulate(replicas.begin(), replicas.end(), std::int64_t{0});
  if (pipeline.plan_replicas && devices > 0 && devices <= devices_asked_for(options)) {
    pipeline.replicas = replicas;
    pipeline.plan_replicas = false;
    // The planner may have left the last ones idle.
    if (options.gpus > 0) options.gpus = static_cast<int>(devices);
    if (!pipeline.gpu_ids.empty()) pipeline.gpu_ids.resize(static_cast<std::size_t>(devices));
  }
  if (!is_asynchronous) return;
  pipeline.cuts = checkpoint.cuts;
  pipeline.order = checkpoint.order;
}

/// Applies settings of a checkpoint that options leave open.
void complete_by(const FoundCheckpoint& found, std::vector<Setting> settings, Options& options) {
  const std::vector<std::string> arguments = options.arguments;
  const std::vector<Setting> given = options.given;
  settings.insert(settings.end(), given.begin(), given.end());
  options =
      with_context([&] { return fmt::format("applying the settings of {}", manifest_of(found)); },
                   [&] { return options_of("train", settings); });
  options.given = given;
  options.arguments = arguments;
  keep_stages(found, options);
}

}  // namespace

fs::path run_of(const fs::path& checkpoint) {
  std::error_code error;
  fs::path path = fs::absolute(checkpoint, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.parent_path().filename() == "checkpoints" ? path.parent_path().parent_path() : path;
}

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
             "start a new run",
             printable(run.string()));
  }
  if (!found) return {};
  for (const std::string& reason : found->refused) log_warning("resume", "{}", reason);
  if (!found->refused.empty())
    log_warning("resume", "falling back to the previous checkpoint: {}",
                printable(found->path.string()));
  return found;
}

fs::path folder_to_resume(const Options& options, const FoundCheckpoint& found) {
  fs::path folder = options.run_dir;
  if (folder.empty()) {
    const fs::path checkpoints = fs::absolute(found.path).lexically_normal().parent_path();
    const std::vector<fs::path> all = list_checkpoints(checkpoints);
    const bool newest = checkpoints.filename() == "checkpoints" &&
                        all.size() > found.refused.size() &&
                        all[found.refused.size()].filename() == found.path.filename();
    // A new run inside the folder of an old one would delete its later checkpoints.
    if (!newest) return {};
    folder = fs::proximate(checkpoints.parent_path());
  }
  check_ways_out(found, folder);
  return folder;
}

void take_over(const FoundCheckpoint& found, const std::string& command, Options& options) {
  const Specs specs = train_options();
  const std::vector<Setting> settings = open_settings(found, specs, options);
  check_paths(found, specs, settings, command);
  std::string list;
  for (const Setting& setting : settings) list += " " + as_option(setting);
  if (!list.empty()) log_info(command, "settings{} · from the checkpoint", list);
  complete_by(found, settings, options);
}

Options completed_by(const FoundCheckpoint& found, Options options) {
  complete_by(found, open_settings(found, train_options(), options), options);
  return options;
}

std::vector<int> devices_of_stages(const Checkpoint& checkpoint) {
  std::vector<int> devices;
  for (const std::string& part : split_list_of(checkpoint.run.value("replicas"))) {
    constexpr int kMost = 4096;  // as --replicas takes
    int count = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), count);
    if (error != std::errc() || end != part.data() + part.size() || count < 1 || count > kMost)
      return {};
    devices.push_back(count);
  }
  return devices.size() == checkpoint.cuts.size() + 1 ? devices : std::vector<int>();
}

fs::path take_outputs(const FoundCheckpoint& found, const fs::path& resumed, Options& options) {
  const std::vector<Setting>& outputs = found.checkpoint.run.outputs;
  std::error_code error;
  if (outputs.empty() || resumed.empty() || !fs::equivalent(resumed, run_of(found.path), error))
    return {};
  fs::path written;
  std::string list;
  std::vector<OptionSpec> specs = describe_options(options);
  const Specs by_name = train_options();
  for (const Setting& saved : outputs) {
    const auto earlier = current_spelling(saved.first, saved.second);
    const auto [name, value] = under_todays_name(earlier ? *earlier : saved, by_name);
    const auto spec = std::ranges::find(specs, name, &OptionSpec::name);
    PT_CHECK(is_output(saved.first) && spec != specs.end(), kData,
             "{}: outputs: {} is not taken from a checkpoint", manifest_of(found),
             printable(saved.first));
    if (name == "--output" && found.checkpoint.is_own) written = value;
    if (has(options.given, name) || sets_same_part(options.given, name, value)) continue;
    list += " " + as_option({name, value});
    if (!found.checkpoint.is_own) continue;
    const bool is_path = spec->path == PathUse::kWrite && value != "-" && name != "--log-to";
    const fs::path near = is_path ? fs::proximate(value) : fs::path(value);
    spec->set(near.string().starts_with("..") ? value : near.string());
    options.settings.emplace_back(name, value);
  }
  if (!list.empty() && found.checkpoint.is_own)
    log_info("train", "outputs {} · from the checkpoint", list);
  if (!list.empty() && !found.checkpoint.is_own)
    log_warning("train",
                "{} was not written by you on this machine, so these are not taken over:{}",
                manifest_of(found), list);
  return written;
}

std::vector<Setting> outputs_to_keep(const Options& options) {
  const Specs specs = train_options();
  std::vector<Setting> outputs;
  for (const auto& [name, value] : options.settings) {
    if (!is_output(name) || value.empty()) continue;
    const bool is_path = specs.at(name).path == PathUse::kWrite && value != "-";
    if (is_path && is_special(value)) continue;  // a pipe of a shell is not there again
    const auto absolute = [](const std::string& path) {
      return fs::absolute(path).lexically_normal().string();
    };
    const std::size_t colon = value.find(':');
    if (name == "--log-to" && colon != value.npos) {
      outputs.emplace_back(name, value.substr(0, colon + 1) + absolute(value.substr(colon + 1)));
    } else {
      outputs.emplace_back(name, is_path && name != "--log-to" ? absolute(value) : value);
    }
  }
  return outputs;
}

std::vector<Setting> settings_to_keep(const Options& options, const PlannedNetwork& network) {
  const Specs specs = train_options();
  const auto kept = [&](const std::string& name, const std::string& value) {
    return Setting(name, followable(specs.at(name), value));
  };
  // Automatic choices are kept.
  std::vector<Setting> settings = {kept("--model", options.run.model.path),
                                   kept("--schedule", options.run.pipeline.schedule),
                                   {"--threads", fmt::format("{}", network.threads())}};
  for (const auto& [name, value] : options.settings) {
    if (!is_kept(specs.at(name)) || name == "--model") continue;
    const bool is_chosen = name == "--schedule" || name == "--threads";
    // What has been chosen replaces the value, not the parts that were given with it.
    const std::string parts = is_chosen ? specs.at(name).split_value(value).second : "";
    if (!is_chosen) settings.push_back(kept(name, value));
    if (!parts.empty()) settings.emplace_back(name, parts);
  }
  return settings;
}

std::string model_of(const FoundCheckpoint& found, const std::string& command) {
  const Specs specs = train_options();
  std::vector<Setting> models;
  for (const Setting& setting : kept_settings(found, specs)) {
    if (setting.first == "--model") models = {setting};
  }
  check_paths(found, specs, models, command);
  return models.empty() ? "" : models.front().second;
}

}  // namespace pipetrain
