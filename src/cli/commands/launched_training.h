// The hosts, the launcher and the training processes that LaunchPolicy decides on.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands/launch_record.h"
#include "processes/child_process.h"
#include "processes/launch_policy.h"
#include "processes/launcher.h"

namespace pipetrain {

struct HostSource {
  Launcher launcher = Launcher::kMpirun;
  std::function<std::vector<LaunchHost>()> list;
};

/// The run that is started again and again.
struct LaunchedRun {
  std::vector<std::string> options;  // of train
  std::filesystem::path folder;
  std::string status_file;    // as the options say; empty: in the folder
  bool weights_only = false;  // the first start takes only weights from its checkpoint
};

class LaunchedTraining final : public LaunchWorld {
 public:
  LaunchedTraining(HostSource source, std::vector<LaunchHost> hosts, LaunchedRun run,
                   LaunchRecord& record);
  ~LaunchedTraining() override;

  double now() override;
  std::vector<LaunchHost> hosts() override;
  std::vector<bool> answer(const std::vector<LaunchHost>& hosts) override;
  void start(const std::vector<LaunchHost>& hosts) override;
  std::optional<LaunchEnd> wait(double until) override;
  void stop() override;
  int asked_to_stop() override {
    take_signals();
    return asked_;
  }
  void say(const std::string& text) override;
  void say_why_it_ends(const std::string& reason) override;

  /// Whether a step was trained.
  bool has_trained() const { return has_trained_; }
  /// Whether the processes that were started last have trained one.
  bool has_trained_last() const { return has_trained_last_; }
  /// Whether training has written a checkpoint since it was asked to stop, or of its last step.
  bool has_saved() const;
  /// Deletes a folder on hosts; where none are given, on those that are listed. A host where that
  /// fails, as it cannot be reached, is a warning.
  void delete_on_hosts(const std::filesystem::path& folder, const std::vector<LaunchHost>& hosts);

 private:
  /// Runs a command on other hosts; of each whether it has succeeded within seconds. A signal that
  /// asks to stop breaks it off.
  std::vector<bool> run_on(const std::vector<LaunchHost>& hosts,
                           const std::vector<std::string>& command);
  std::vector<std::string> command_of_train() const;
  /// Whether one of them asks to stop.
  bool take_signals();
  void take_line(ChildProcess::Stream stream, const std::string& line);
  void show_line(ChildProcess::Stream stream, int process, const std::string& line);
  /// Adds a line to a log in the run folder. A log that cannot be opened is reported once.
  void keep_line(const std::string& log, const std::string& line);
  /// Lets processes that were asked to stop end once they have saved, and has a launcher end that
  /// does not end with its processes.
  void look_after();
  ReportedEnd reported() const;
  LaunchEnd end_of_attempt();
  std::string newest_checkpoint_name() const;
  /// Whether there is a checkpoint, and another than the one of that name. A run that replaces
  /// another begins by deleting the checkpoints of that.
  bool has_checkpoint_since(const std::string& before) const;
  /// Whether there is a checkpoint of all steps before training was asked to stop.
  bool saved_since_stop() const;

  HostSource source_;
  std::vector<LaunchHost> hosts_;
  double looked_ = 0;  // at the hosts
  std::string host_failure_;
  LaunchedRun run_;
  std::string program_;  // the path of this one, which another version may replace
  std::string status_path_;
  LaunchRecord& record_;
  bool has_trained_ = false, has_trained_last_ = false;
  std::string first_checkpoint_;  // the newest one before the first start
  int signals_ = -1;              // a descriptor
  int asked_ = 0;
  // Of the processes that run now.
  std::unique_ptr<ChildProcess> child_;
  std::vector<LaunchHost> running_;
  std::array<ProcessLines, 2> lines_{ProcessLines(source_.launcher),  // of each stream
                                     ProcessLines(source_.launcher)};
  std::string status_before_;
  std::int64_t journal_before_ = 0;  // the last step in it
  std::string checkpoint_before_stop_;
  std::int64_t step_at_stop_ = 0;  // the last one then; 0: none, or not known
  double stop_began_ = 0;          // 0: they have not been asked to stop
  bool stops_itself_ = false;      // training does, when it has saved
  bool is_killed_ = false;         // the launcher, which did not end
  double end_began_ = 0;           // when the launcher was told to end; 0: it was not
  double ended_seen_ = 0;          // when training had reported its end; 0: it has not
  int killed_process_ = -1;
  bool has_spoken_ = false;                 // one of them
  std::map<std::string, std::FILE*> logs_;  // null: it cannot be opened
};

}  // namespace pipetrain
