#include "cli/commands/run_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/stale_files.h"
#include "cli/commands/commands.h"
#include "cli/options/config_file.h"
#include "cli/options/resume_command_line.h"
#include "cli/output/events.h"
#include "data/rows/text_options.h"
#include "partition/plan_file.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

/// Points the link "latest" of a folder of runs to its newest run.
void call_latest(const fs::path& folder) {
  std::error_code ignored;
  const fs::path latest = folder.parent_path() / "latest";
  if (!fs::is_symlink(latest, ignored) && fs::exists(latest, ignored)) return;
  fs::remove(latest, ignored);
  fs::create_directory_symlink(folder.filename(), latest, ignored);
}

/// What the folder of a run may have before the run has begun: the lock, and what `launch` keeps.
const std::set<std::string>& names_before_a_run() {
  static const std::set<std::string> names = {kLockFile, "logs", "launch.json", "status.json"};
  return names;
}

/// What `launch` starts may go on where a host was lost.
LockPatience lock_patience() {
  return std::getenv(kLaunchedVariable) ? kPatienceForLost : LockPatience();
}

/// Whether a folder has nothing of a run yet.
bool is_unused(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    if (!names_before_a_run().contains(i->path().filename().string())) return false;
  }
  return !error;
}

/// The name of the tokenizer that a run keeps in its folder; empty: it keeps none.
std::string tokenizer_in(const fs::path& folder) {
  try {
    const auto texts = read_if_file(folder / "texts.txt", std::size_t{1} << 20);
    return texts ? TextOptions::parse(*texts).name : "";
  } catch (const Error&) {
    return {};
  }
}

/// The files of the model with a new head.
constexpr const char* kHeadFiles[] = {"model.onnx", "model.onnx.data"};

/// Where such a file of an earlier run stays until a new run has replaced that one.
fs::path place_of_earlier(const fs::path& folder, const std::string& name) {
  return folder / ("." + name + ".before");
}

/// Whether a folder has nothing but what a run has left that failed before its first checkpoint.
bool has_only_a_failed_run(const fs::path& folder) {
  static const std::set<std::string> left = {
      "config.toml",  "plan.json",       "profile.json",     "stderr.log",      "classes.txt",
      "columns.json", "texts.txt",       "first-index.txt",  "masks.txt",       "tokenizer.json",
      "vocab.txt",    "tokenizer.model", "model.onnx",       "model.onnx.data", "tb",
      "checkpoints",  "journal.txt",     "instructions.txt", "mlflow-run.txt"};
  std::error_code error;
  if (!fs::exists(folder / "config.toml", error)) return false;
  std::set<fs::path> own = {fs::path(tokenizer_in(folder))};
  for (const char* name : kHeadFiles) own.insert(place_of_earlier(folder, name).filename());
  for (const fs::path& file : event_files(folder / "events.jsonl")) own.insert(file.filename());
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    const std::string name = i->path().filename().string();
    if ((!left.contains(name) && !own.contains(name) && !names_before_a_run().contains(name) &&
         !name.starts_with("crash-") && !name.starts_with("instructions-")) ||
        (name == "checkpoints" && !fs::is_empty(i->path(), error)))
      return false;
  }
  // A run that has ended well may keep its model elsewhere.
  std::string last = read_if_file(folder / "events.jsonl", std::size_t{1} << 30).value_or("");
  if (last.ends_with('\n')) last.pop_back();
  last = last.substr(last.rfind('\n') + 1);
  const bool ended = last.find("\"event\":\"run_end\"") != std::string::npos;
  const bool failed = last.find("\"status\":\"error\"") != std::string::npos ||
                      last.find("\"status\":\"diverged\"") != std::string::npos;
  return !error && !last.empty() && (!ended || failed);
}

/// Whether a path for --resume names this run, its checkpoints or one of them.
bool is_of_run(const std::string& resume, const fs::path& run) {
  fs::path named = fs::absolute(resume).lexically_normal();
  if (!named.has_filename()) named = named.parent_path();
  const fs::path checkpoints = run / "checkpoints";
  std::error_code ignored;
  return fs::equivalent(named, run, ignored) || fs::equivalent(named, checkpoints, ignored) ||
         fs::equivalent(named.parent_path(), checkpoints, ignored);
}

/// Creates the run folder. A generated name is always new. `resumed`: the folder of the resumed
/// run; empty: none.
fs::path make_run_folder(const Options& options, const fs::path& resumed, bool is_checked) {
  std::error_code error;
  if (!options.run_dir.empty() && !is_checked) check_run_folder(options);
  if (!resumed.empty()) return resumed;
  if (!options.run_dir.empty()) {
    const fs::path folder = options.run_dir;
    error = make_directories(folder);
    PT_CHECK(!error, kResource, "--run-dir: cannot create \"{}\": {}", printable(options.run_dir),
             error.message());
    return folder;
  }
  return new_run_folder(options.run.model.path);
}

/// Keeps the model of an earlier run beside the new one. A process that was killed before its run
/// began may have done so already.
void keep_earlier_model(const fs::path& folder) {
  for (const char* name : kHeadFiles) {
    const fs::path model = folder / name, kept = place_of_earlier(folder, name);
    std::error_code failed;
    if (!fs::exists(model, failed) || fs::exists(kept, failed)) continue;
    fs::create_hard_link(model, kept, failed);
    if (failed) fs::copy_file(model, kept, failed);  // not all file systems have hard links
    PT_CHECK(!failed, kResource,
             "--num-classes: cannot copy \"{}\" of the earlier run to \"{}\": {}; give another "
             "--run-dir",
             printable(model.string()), printable(kept.string()), failed.message());
  }
}

/// What the configuration of a checkpoint's run says of --init; empty: nothing. None: it is not
/// known.
std::optional<std::string> init_before(const fs::path& checkpoint) {
  if (checkpoint.empty()) return {};
  fs::path path = fs::absolute(checkpoint).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (path.parent_path().filename() != "checkpoints") return {};
  constexpr std::size_t kMostBytes = std::size_t{16} << 20;
  const fs::path file = path.parent_path().parent_path() / "config.toml";
  const std::optional<std::string> text = read_if_file(file, kMostBytes);
  if (!text) return {};
  Options unused;
  std::string init;
  try {
    for (const auto& [name, value] :
         parse_config(*text, file.string(), "train", describe_options(unused))) {
      if (name == "--init") init = value;
    }
  } catch (const Error&) {
    return {};  // nobody needs the file for the run to go on
  }
  return init;
}

/// A configuration file that starts the run again. `goes_on_from`: as write_configuration().
std::string config_of_run(const Options& options, const PlannedNetwork& network,
                          const fs::path& goes_on_from) {
  Options copy = options;
  copy.settings = overlay(options.settings, {settings_to_keep(options, network).front()});
  // The model in the folder has its new head already.
  std::erase_if(copy.settings, [](const Assignment& s) { return s.first == "--num-classes"; });
  // Initialization is not repeated on resume, so the checkpoint does not have it.
  if (const std::optional<std::string> init = init_before(goes_on_from)) {
    std::erase_if(copy.settings, [](const Assignment& s) { return s.first == "--init"; });
    if (!init->empty()) copy.settings.emplace_back("--init", *init);
  }
  return config_text(copy, "train", /*all=*/true);
}

}  // namespace

void check_run_folder(const Options& options) {
  const fs::path folder = options.run_dir;
  if (folder.empty() || !fs::exists(folder)) return;
  PT_CHECK(fs::is_directory(folder), kUsage, "--run-dir: \"{}\" is not a folder",
           printable(options.run_dir));
  // An earlier run with --resume=auto may have left everything but a checkpoint. A checkpoint of
  // another run begins a new one here.
  const std::string& resume = options.resume;
  const bool is_named =
      resume == "auto" || resume == "latest" || (!resume.empty() && is_of_run(resume, folder));
  const bool resumes = is_named && !options.resume_weights_only;
  const bool is_free =
      options.overwrite || resumes || is_unused(folder) || has_only_a_failed_run(folder);
  std::error_code unknown;
  const bool has_run = is_named && fs::exists(folder / "config.toml", unknown);
  PT_CHECK(is_free || !has_run, kUsage,
           "--resume-weights-only begins a new run, but --run-dir \"{}\" has an earlier one; give "
           "another --run-dir, with --resume={} for the weights",
           printable(options.run_dir),
           printable(resume == "auto" || resume == "latest" ? options.run_dir : resume));
  PT_CHECK(is_free, kUsage,
           "--run-dir: \"{}\" is not empty; give --resume, --overwrite or another folder",
           printable(options.run_dir));
}

fs::path new_run_folder(const std::string& model) {
  const fs::path runs = folder_of_runs();
  const std::time_t time = std::time(nullptr);
  std::tm local{};
  localtime_r(&time, &local);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
  const std::string base = fs::path(model).stem().string() + "-" + stamp;
  std::error_code error = make_directories(runs);
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const fs::path folder = runs / (attempt ? fmt::format("{}-{}", base, attempt + 1) : base);
    const bool is_new = fs::create_directory(folder, error);
    if (is_new) error = sync_directory(runs);
    if (error) break;
    if (is_new) return folder;
  }
  PT_FAIL(kResource,
          "cannot create a run folder in \"{}\": {}; choose another place with --run-dir",
          runs.string(), error.message());
}

RunFolder::~RunFolder() {
  if (!is_early_) return;
  std::error_code ignored;
  for (const char* name : kHeadFiles) {
    fs::remove(path_ / name, ignored);
    fs::rename(place_of_earlier(path_, name), path_ / name, ignored);  // if there was one
  }
  lock_.reset();
  fs::remove(path_, ignored);  // if that was all
  if (is_named_) fs::remove(path_.parent_path(), ignored);
}

fs::path without_links(const fs::path& folder) {
  std::error_code error;
  const fs::path resolved = fs::canonical(folder, error);
  const fs::path absolute = (fs::absolute(folder) / "").lexically_normal();
  if (error || resolved / "" == absolute)
    return folder.has_filename() ? folder : folder.parent_path();
  return folder.is_relative() ? fs::proximate(resolved) : resolved;
}

bool has_earlier_model(const fs::path& folder) {
  return std::ranges::any_of(kHeadFiles, [&](const char* name) {
    std::error_code unknown;
    return fs::exists(place_of_earlier(folder, name), unknown);
  });
}

void put_back_earlier_model(const FoundCheckpoint& found) {
  const fs::path folder = run_of(found.path);
  if (!has_earlier_model(folder)) return;
  PT_CHECK(found.checkpoint.is_own, kUsage,
           "\"{}\" is of another run, which was interrupted before it began; replace it by \"{}\"",
           printable((folder / kHeadFiles[0]).string()),
           printable(place_of_earlier(folder, kHeadFiles[0]).string()));
  const FolderLock lock(folder, lock_patience());  // nobody else is about to replace the run
  for (const char* name : kHeadFiles) {
    const fs::path kept = place_of_earlier(folder, name);
    std::error_code failed;
    if (!fs::exists(kept, failed)) continue;
    fs::rename(kept, folder / name, failed);
    PT_CHECK(!failed, kResource, "cannot rename \"{}\" to \"{}\", the model of the run: {}",
             printable(kept.string()), name, failed.message());
    fs::remove(kept, failed);  // two links to one file stay as they are
  }
}

const fs::path& RunFolder::make_early(const Options& options) {
  path_ = without_links(make_run_folder(options, {}, is_checked_));
  lock_.emplace(path_, lock_patience());  // before anything of another run there is replaced
  keep_earlier_model(path_);
  is_early_ = true;
  is_named_ = options.run_dir.empty();
  return path_;
}

const fs::path& RunFolder::begin(const Options& options, const fs::path& resumed) {
  if (!is_early_) path_ = without_links(make_run_folder(options, resumed, is_checked_));
  if (!lock_) lock_.emplace(path_, lock_patience());
  may_be_latest_ &= resumed.empty();
  delete_unfinished(path_);
  delete_unfinished(path_ / "checkpoints");
  return path_;
}

std::string RunFolder::name() const {
  std::error_code failed;
  const fs::path resolved = fs::canonical(path_, failed);  // "."
  return (failed ? path_ : resolved).filename().string();
}

void RunFolder::settle() {
  is_early_ = false;
  std::error_code ignored;
  for (const char* name : kHeadFiles) fs::remove(place_of_earlier(path_, name), ignored);
}

void RunFolder::set_latest() {
  if (std::exchange(may_be_latest_, false)) call_latest(path_);
}

void check_output(const Options& options, const std::string& output, bool replaces_own,
                  const char* option) {
  if (is_special(output)) return;
  std::error_code unknown;
  PT_CHECK(!fs::is_directory(output, unknown), kUsage, "{}: \"{}\" is a folder; name a file in it",
           option, printable(output));
  PT_CHECK(options.overwrite || replaces_own || !fs::exists(output), kUsage,
           "\"{}\" exists; give --overwrite or another {}", printable(output), option);
  check_folder_of(output, option);
  if (!options.dry_run) delete_stale_temporaries(output);
}

void write_plan_and_profile(const Options& options, const PlannedNetwork& network,
                            const fs::path& folder) {
  write_plan(folder / "plan.json", network.plan(), network.costs(), network.plan_request(),
             options.run.model.path, network.order());
  write_profile(folder / "profile.json", network.profile(), network.graph(),
                options.run.model.path);
}

bool is_newer(const fs::path& file, const fs::path& other) {
  std::error_code error, other_error;
  const auto time = fs::last_write_time(file, error);
  const auto other_time = fs::last_write_time(other, other_error);
  return !error && !other_error && time >= other_time;
}

void write_configuration(const Options& options, const PlannedNetwork& network,
                         const fs::path& folder, const fs::path& goes_on_from) {
  write_file(folder / "config.toml", config_of_run(options, network, goes_on_from));
  // A run that this one replaces may have left a file.
  std::error_code ignored;
  const auto write_if = [&](bool has, const char* name, const auto& text) {
    if (has) {
      write_file(folder / name, text() + "\n");
    } else {
      fs::remove(folder / name, ignored);
    }
  };
  const OpenedData& data = network.data();
  write_if(!data.class_names.empty(), "classes.txt",
           [&] { return fmt::format("{}", fmt::join(data.class_names, "\n")); });
  write_if(!data.encoding.empty(), "columns.json", [&] { return data.encoding; });
  write_if(data.first_index.has_value(), "first-index.txt",
           [&] { return fmt::format("{}", *data.first_index); });
  write_if(data.masks_are_numbered, "masks.txt", [] { return std::string("numbered"); });
  if (data.texts.empty()) {
    fs::remove(folder / "texts.txt", ignored);
  } else {
    write_file(folder / "texts.txt", data.texts);
    // Beside the trained model, where eval and generate look for it.
    const fs::path tokenizer = network.config().data.text.tokenizer;
    fs::copy_file(tokenizer, folder / tokenizer.filename(), fs::copy_options::overwrite_existing,
                  ignored);
  }
}

}  // namespace pipetrain
