// pipetrain launch: training in several processes, started by mpirun or srun, which goes on when a
// process, a host or the launcher fails. processes/launch_policy.h decides; this acts.
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/log.h"
#include "cli/commands/choose_for_processes.h"
#include "cli/commands/commands.h"
#include "cli/commands/launch_record.h"
#include "cli/commands/launched_training.h"
#include "cli/commands/replica_mode.h"
#include "cli/commands/run_folder.h"
#include "cli/options/option_table.h"
#include "cli/options/other_names.h"
#include "cli/options/resume_command_line.h"
#include "pipeline/schedule/generate.h"
#include "processes/child_process.h"
#include "processes/launch_policy.h"
#include "train/checkpoint.h"
#include "train/commits.h"
#include "train/folder_lock.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

constexpr double kDiscoverySeconds = 10;
constexpr std::size_t kMostHostBytes = std::size_t{1} << 20;

/// Whether a program of this name is in PATH.
bool is_installed(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::string_view left = path ? path : "";
  while (!left.empty()) {
    const std::size_t end = std::min(left.find(':'), left.size());
    const fs::path file = fs::path(left.substr(0, end)) / program;
    if (::access(file.c_str(), X_OK) == 0) return true;
    left.remove_prefix(std::min(end + 1, left.size()));
  }
  return false;
}

/// What a program prints. Error (kResource) when it fails or takes too long.
std::string output_of(const std::string& program, const std::vector<std::string>& arguments) {
  std::string text;
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  ChildProcess child(words, {}, [&](ChildProcess::Stream stream, const std::string& line) {
    if (stream == ChildProcess::Stream::kOut && text.size() < kMostHostBytes) text += line + "\n";
  });
  PT_CHECK(child.wait(steady_seconds() + kDiscoverySeconds), kResource,
           "{} has not ended after {:.0f} s", printable(program), kDiscoverySeconds);
  const int status = child.status();
  PT_CHECK(!WIFEXITED(status) || WEXITSTATUS(status) != 127, kResource, "{} cannot be run",
           printable(program));
  PT_CHECK(status == 0, kResource, "{} failed ({} {})", printable(program),
           WIFEXITED(status) ? "exit code" : "signal",
           WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
  return text;
}

/// The hosts of this launch, as they are now, and what starts processes there.
HostSource host_source(const Options& options) {
  PT_CHECK(options.hosts.empty() || options.discover.empty(), kUsage,
           "--hosts and --discover both say which hosts there are; give one of them");
  if (!options.hosts.empty()) {
    return {Launcher::kMpirun, [path = options.hosts] {
              return parse_hosts(InputFile(path, ErrorKind::kUsage).read(kMostHostBytes),
                                 "--hosts " + printable(path));
            }};
  }
  if (!options.discover.empty()) {
    // A name without a folder would be looked for in PATH.
    const std::string script = fs::absolute(options.discover).string();
    return {Launcher::kMpirun, [script] {
              return with_context([] { return "looking for hosts with --discover"; },
                                  [&] {
                                    return parse_hosts(output_of(script, {}),
                                                       "the output of " + printable(script));
                                  });
            }};
  }
  if (const char* text = std::getenv("TF_CONFIG")) {
    const TensorFlowCluster cluster = parse_tf_config(text);
    PT_CHECK(!cluster.hosts.empty(), kUsage,
             "TF_CONFIG names no chief and no worker; give --hosts FILE");
    for (const LaunchHost& host : cluster.hosts) {
      PT_CHECK(host.name.find(':') == std::string::npos, kUsage,
               "TF_CONFIG: mpirun takes no IPv6 addresses; give a host name in place of {}",
               host.name);
    }
    return {Launcher::kMpirun, [hosts = cluster.hosts] { return hosts; }};
  }
  if (const char* nodes = std::getenv("SLURM_JOB_NODELIST")) {
    const char* tasks = std::getenv("SLURM_TASKS_PER_NODE");
    std::vector<std::string> names;
    for (const LaunchHost& host :
         parse_hosts(output_of("scontrol", {"show", "hostnames", nodes}), "scontrol"))
      names.push_back(host.name);
    return {Launcher::kSrun, [hosts = hosts_of_slurm(names, tasks ? tasks : "")] { return hosts; }};
  }
  PT_FAIL(kUsage, "launch needs the hosts to train on: give --hosts FILE or --discover SCRIPT");
}

/// The devices that the options of train set, which limit the number of processes; 0: they do not.
int devices_of(const Options& train) {
  const PipelineConfig& pipeline = train.run.pipeline;
  if (train.gpus > 0) return train.gpus;
  int devices = 0;
  for (const int replicas : pipeline.replicas) devices += replicas;
  if (devices > 0) return devices;
  if (const int of_files = devices_of_files(train); of_files > 0) return of_files;
  const ScheduleDescription* schedule = find_schedule(pipeline.schedule);
  if (schedule && !schedule->takes_replicas && !pipeline.split.empty())
    return devices_with_cuts(pipeline, 0);
  // A replica more, and gradients would be of older weights than they may be.
  const ReplicaUpdates& updates = pipeline.replica_updates;
  if (updates.mode == ReplicaMode::kAsync && updates.staleness >= 0) return updates.staleness + 1;
  return static_cast<int>(pipeline.gpu_ids.size());
}

/// The folder of the run that the options of train begin or resume.
fs::path folder_of(const Options& train) {
  if (!train.run_dir.empty()) return train.run_dir;
  if (const std::optional<FoundCheckpoint> found = checkpoint_to_resume(train);
      found && !train.resume_weights_only) {
    if (const fs::path folder = folder_to_resume(train, *found); !folder.empty()) return folder;
  }
  const std::string& model = train.run.model.path;
  return new_run_folder(!model.empty()            ? model
                        : train.arguments.empty() ? "run"
                                                  : train.arguments.front());
}

/// The devices that the options of train set, together with those of the checkpoint that they
/// resume.
int devices_of_run(const Options& train, const fs::path& folder) {
  std::optional<Checkpoint> resumed = record_to_resume(train, folder);
  if (!resumed || !resumed->is_own) return devices_of(train);  // whose files train may not read
  const fs::path checkpoints = folder / "checkpoints";
  const fs::path path = checkpoints / checkpoint_name(resumed->step);
  return devices_of(completed_by({path, *std::move(resumed), {}}, train));
}

/// The options of train behind "--".
Options train_options(std::vector<std::string>& words) {
  if (!words.empty() && words.front() == "train") words.erase(words.begin());
  PT_CHECK(
      !words.empty(), kUsage,
      "launch needs a command to start: pipetrain launch --hosts FILE -- train --model FILE …");
  take_work_folder(words);
  Options train = parse_options("train", words);
  PT_CHECK(train.output != "-", kUsage, "--output - cannot pass through a launcher; give a file");
  PT_CHECK(train.restarts == 0, kUsage,
           "--restarts is for a single process; launch restarts all of them: --max-restarts");
  return train;
}

/// What TF_CONFIG calls an evaluator: it evaluates the checkpoints of the run as they appear.
int evaluate_run(const Options& train) {
  PT_CHECK(!train.run.data.validation_path.empty(), kUsage,
           "TF_CONFIG makes this task an evaluator, which needs --val-data");
  // The checkpoints name the model, and evaluation has its own devices and outputs.
  static const std::set<std::string> others = {"--model",   "--data", "--gpus",
                                               "--gpu-ids", "--edge", "--config"};
  Options unused;
  std::set<std::string> left_out = others;
  for (const OptionSpec& spec : describe_options(unused)) {
    if (spec.path == PathUse::kWrite) left_out.insert(spec.name);
  }
  std::vector<Assignment> settings;
  for (const Assignment& setting : train.given) {
    const bool for_gpus = setting.first == "--precision" && setting.second.starts_with("tf32");
    if (!left_out.contains(setting.first) && !for_gpus) settings.push_back(setting);
  }
  settings.insert(settings.end(), {{"--follow", train.run_dir},
                                   {"--data", train.run.data.validation_path},
                                   {"--device", train.device}});
  Options evaluation = options_of("eval", settings);
  return eval_command(evaluation);
}

/// Whether the options of train resume the run in a folder where it is, not at one of its
/// checkpoints.
bool goes_on_from_newest(const Options& train, const fs::path& folder) {
  if (train.resume.empty() || train.resume == "auto") return !train.resume.empty();
  if (train.resume_weights_only) return false;
  std::error_code ignored;
  return train.resume == "latest" || fs::equivalent(train.resume, folder, ignored) ||
         fs::equivalent(train.resume, folder / "checkpoints", ignored);
}

/// Decides where the processes keep the state of the run for each other. What an earlier launch has
/// left is taken up or deleted. `every`: --commit-every.
void take_commits(const std::string& every, const Options& train, const fs::path& folder,
                  LaunchRecord& record, LaunchedTraining& training) {
  const bool wanted = every != "never";
  const std::string steps = !wanted || every == "auto"
                                ? every
                                : fmt::format("{}", parse_integer("--commit-every", every, 1));
  const bool goes_on = (wanted && goes_on_from_newest(train, folder)) || train.dry_run;
  if (record.has_commits() && !goes_on) {
    training.delete_on_hosts(record.commits_folder(), record.hosts());
    record.forget_commits();
  }
  if (!wanted) return;
  if (!record.has_commits()) record.choose_new_commits();
  ::setenv(CommitSettings::kVariable, (steps + ":" + record.commits_folder().string()).c_str(), 1);
}

/// How long to wait for the lock that a launch holds. A launch that goes on renews its record;
/// where its host was lost, the lock may outlast it.
LockPatience patience_for_launch(const fs::path& folder) {
  constexpr double kMostPause = LaunchPolicy::kLookSeconds + kDiscoverySeconds;
  const auto renewed = [record = folder / kLaunchRecord] {
    std::error_code unknown;
    return fs::last_write_time(record, unknown);
  };
  const auto before = renewed();
  for (const double end = steady_seconds() + kMostPause; is_locked(folder / "logs");) {
    if (renewed() != before) return {};
    if (steady_seconds() > end) return {kPatienceForLost.seconds, ErrorKind::kUsage};
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  return {};
}

/// Whether another launch of the same run may need what is left in memory. `had_commits`: when this
/// one began.
bool may_need_commits(int code, const LaunchedTraining& training, bool had_commits,
                      bool is_dry_run) {
  // Nothing has changed for what was there before.
  if (had_commits && !training.has_trained() && (code != 0 || is_dry_run)) return true;
  const bool may_go_on =
      code > 128 || code == static_cast<int>(ErrorKind::kInternal) ||
      code == static_cast<int>(ErrorKind::kResource) ||
      code == static_cast<int>(ErrorKind::kDevice) ||
      // There are commits of this launch, and they did not lead to the error.
      (code != 0 && training.has_trained() &&
       (code != static_cast<int>(ErrorKind::kDiverged) || !training.has_trained_last()));
  return may_go_on && !training.has_saved();
}

}  // namespace

int launch_command(Options& options) {
  resolve_verbosity(options);
  std::vector<std::string> words = options.arguments;
  const fs::path folder_before = fs::current_path();
  const Options train = train_options(words);
  if (fs::current_path() != folder_before) {  // by --work_dir of the training
    for (std::string* path : {&options.hosts, &options.discover})
      if (!path->empty()) *path = (folder_before / *path).string();
  }
  PT_CHECK(options.most_hosts == 0 || options.most_hosts >= options.least_hosts, kUsage,
           "--max {} is less than --min {}", options.most_hosts, options.least_hosts);
  const HostSource source = host_source(options);
  if (const char* text = std::getenv("TF_CONFIG");
      text && options.hosts.empty() && options.discover.empty()) {
    const TensorFlowCluster cluster = parse_tf_config(text);
    PT_CHECK(cluster.starts || !train.run_dir.empty(), kUsage,
             "TF_CONFIG starts this command on every host; give --run-dir, a folder that all see");
    if (cluster.evaluates) return evaluate_run(train);
    if (!cluster.starts) {
      const fs::path record = fs::path(train.run_dir) / kLaunchRecord;
      const std::string& starter = cluster.hosts.front().name;
      log_info("launch", "launch   {} starts the processes of {}; waiting for their end in {}",
               starter, cluster.task, printable(record.string()));
      return wait_for_launch(record, starter);
    }
  }
  PT_CHECK(is_installed(name_of(source.launcher)), kResource, "{} is not installed{}",
           name_of(source.launcher),
           source.launcher == Launcher::kMpirun ? " (Debian: openmpi-bin)" : "");
  const std::vector<LaunchHost> hosts = source.list();
  PT_CHECK(static_cast<int>(hosts.size()) >= options.least_hosts, kResource,
           "there {} {} host{} where --min is {}", hosts.size() == 1 ? "is" : "are", hosts.size(),
           hosts.size() == 1 ? "" : "s", options.least_hosts);
  fs::path folder = folder_of(train);
  const NeededProcesses needed = needed_processes(train, folder);
  const LaunchLimits limits{options.least_hosts,  options.most_hosts, devices_of_run(train, folder),
                            options.max_restarts, needed.least,       needed.spare};
  // Before what an earlier launch has left is deleted.
  check_run_folder(train);
  ::setenv(kLaunchedVariable, train.run_dir.empty() ? kNamedFolder : "1", 1);
  std::error_code failed;
  fs::create_directories(folder / "logs", failed);
  PT_CHECK(!failed, kResource, "--run-dir: cannot create \"{}\": {}",
           printable((folder / "logs").string()), failed.message());
  folder = without_links(folder);
  // The lock of a host that was lost can only be in a folder of a launch.
  PT_CHECK(train.dry_run || fs::exists(folder / kLaunchRecord, failed) || !is_locked(folder),
           kUsage, "another process is training in {}; wait for it, or give another --run-dir",
           printable(folder.string()));
  // Whoever follows the run sees by it that the run goes on.
  const FolderLock lock(folder / "logs", patience_for_launch(folder));
  LaunchRecord record(folder / kLaunchRecord, source.launcher);
  const bool had_commits = record.has_commits();
  LaunchedTraining training(source, hosts,
                            {words, folder, train.status_file, train.resume_weights_only}, record);
  take_commits(options.commit_every, train, folder, record, training);
  record.begin();
  try {
    const int code = run_launch(limits, training);
    if (record.has_commits() && !may_need_commits(code, training, had_commits, train.dry_run)) {
      training.delete_on_hosts(record.commits_folder(), record.hosts());
      record.forget_commits();
    }
    record.end(code);
    return code;
  } catch (const Error& error) {
    record.end(static_cast<int>(error.kind()));
    throw;
  }
}

}  // namespace pipetrain
