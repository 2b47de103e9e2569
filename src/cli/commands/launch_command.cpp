// pipetrain launch: training in several processes, started by mpirun or srun, which goes on when a
// process, a host or the launcher fails. processes/launch_policy.h decides; this acts.
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <thread>

#include "base/clock.h"
#include "base/document.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/log.h"
#include "cli/commands/commands.h"
#include "cli/commands/launched_training.h"
#include "cli/commands/replica_mode.h"
#include "cli/commands/run_folder.h"
#include "cli/options/option_table.h"
#include "cli/options/other_names.h"
#include "cli/options/resume_command_line.h"
#include "processes/child_process.h"
#include "processes/launch_policy.h"
#include "train/commits.h"

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

/// Where TF_CONFIG has the same command started on every host, all but one wait for that one.
int wait_for_starter(const TensorFlowCluster& cluster, const fs::path& record) {
  const auto ended = [&]() -> std::optional<int> {
    try {
      const Document document = Document::read(record, "pipetrain.launch/1");
      if (document.root().at("state").text() != "ended") return {};
      return static_cast<int>(document.root().at("exit_code").integer(0, 255));
    } catch (const Error&) {
      return {};  // not there yet
    }
  };
  log_info("launch", "launch   {} starts the processes of {}; waiting for their end in {}",
           cluster.hosts.front().name, cluster.task, printable(record.string()));
  // An earlier launch may have left its own.
  std::error_code ignored;
  const auto before = fs::last_write_time(record, ignored);
  for (;; std::this_thread::sleep_for(std::chrono::seconds(1))) {
    const auto now = fs::last_write_time(record, ignored);
    if (const std::optional<int> code = ended(); code && now != before) return *code;
  }
}

/// What TF_CONFIG calls an evaluator: it evaluates the checkpoints of the run as they appear.
int evaluate_run(const Options& train) {
  PT_CHECK(!train.run.data.validation_path.empty(), kUsage,
           "TF_CONFIG makes this task an evaluator, which needs --val-data");
  Options evaluation =
      parse_options("eval", {"--follow", train.run_dir, "--data", train.run.data.validation_path,
                             "--device", train.device});
  return eval_command(evaluation);
}

/// Where the processes keep the state of a run for each other. The number is all that is kept of
/// it, so that no file decides what is deleted.
class CommitPlace {
 public:
  /// The place that an earlier launch of the same run has left, or a new one. `every`:
  /// --commit-every.
  CommitPlace(const std::string& every, const fs::path& record, bool goes_on) {
    if (every == "never") return;
    if (every != "auto") parse_integer("--commit-every", every, 1);
    if (goes_on) number_ = left_in(record);
    std::random_device device;
    while (number_.size() < kDigits) number_ += fmt::format("{:x}", device() % 16);
    ::setenv(CommitSettings::kVariable, (every + ":" + folder().string()).c_str(), 1);
  }
  bool exists() const { return !number_.empty(); }
  const std::string& number() const { return number_; }
  fs::path folder() const { return "/dev/shm/pipetrain-" + number_; }

 private:
  static constexpr std::size_t kDigits = 32;
  static std::string left_in(const fs::path& record) {
    try {
      const Document document = Document::read(record, "pipetrain.launch/1");
      const std::string number = document.root().at("commits").text();
      const bool is_one = number.size() == kDigits &&
                          number.find_first_not_of("0123456789abcdef") == std::string::npos;
      return is_one ? number : std::string();
    } catch (const Error&) {
      return {};
    }
  }
  std::string number_;  // empty: nothing is kept
};

/// Whether another launch of the same run may need what this one has left in memory.
bool may_be_launched_again(int code) {
  return code > 128 || code == static_cast<int>(ErrorKind::kInternal) ||
         code == static_cast<int>(ErrorKind::kResource) ||
         code == static_cast<int>(ErrorKind::kDevice);
}

/// `commits`: null where there are none, or no longer.
void write_record(const fs::path& path, const HostSource& source, std::optional<int> code,
                  const CommitPlace* commits) {
  nlohmann::ordered_json body;
  body["state"] = code ? "ended" : "running";
  if (code) body["exit_code"] = *code;
  body["pid"] = ::getpid();
  body["launcher"] = name_of(source.launcher);
  if (commits && commits->exists()) body["commits"] = commits->number();
  write_document(path, "pipetrain.launch/1", body);
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
    if (!cluster.starts) return wait_for_starter(cluster, fs::path(train.run_dir) / "launch.json");
  }
  PT_CHECK(is_installed(name_of(source.launcher)), kResource, "{} is not installed{}",
           name_of(source.launcher),
           source.launcher == Launcher::kMpirun ? " (Debian: openmpi-bin)" : "");
  const std::vector<LaunchHost> hosts = source.list();
  PT_CHECK(static_cast<int>(hosts.size()) >= options.least_hosts, kResource,
           "there {} {} host{} where --min is {}", hosts.size() == 1 ? "is" : "are", hosts.size(),
           hosts.size() == 1 ? "" : "s", options.least_hosts);
  const fs::path folder = folder_of(train);
  const NeededProcesses needed = needed_processes(train, folder);
  const LaunchLimits limits{options.least_hosts,  options.most_hosts, devices_of(train),
                            options.max_restarts, needed.least,       needed.spare};
  std::error_code failed;
  fs::create_directories(folder / "logs", failed);
  PT_CHECK(!failed, kResource, "--run-dir: cannot create \"{}\": {}",
           printable((folder / "logs").string()), failed.message());
  const FolderLock lock(folder / "logs");  // whoever follows the run sees that it goes on
  const fs::path record = folder / "launch.json";
  const CommitPlace commits(options.commit_every, record, train.resume == "auto");
  write_record(record, source, {}, &commits);
  LaunchedTraining training(source, hosts,
                            {words, folder, train.status_file, train.resume_weights_only});
  try {
    const int code = run_launch(limits, training);
    const bool may_go_on = may_be_launched_again(code) && !training.has_saved();
    if (!may_go_on && commits.exists()) training.delete_on_hosts(commits.folder());
    write_record(record, source, code, may_go_on ? &commits : nullptr);
    return code;
  } catch (const Error& error) {
    write_record(record, source, static_cast<int>(error.kind()), &commits);
    throw;
  }
}

}  // namespace pipetrain
