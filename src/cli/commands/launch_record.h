// RUN/launch.json: what a launch writes down for other hosts and for the next launch of the run.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "processes/host_list.h"
#include "processes/launcher.h"

namespace pipetrain {

inline constexpr const char* kLaunchRecord = "launch.json";

class LaunchRecord {
 public:
  /// Reads which commits an earlier launch of the run has left.
  LaunchRecord(std::filesystem::path path, Launcher launcher);

  /// Whether the processes keep the state of the run for each other, in the memory of the hosts.
  bool has_commits() const { return !commits_id_.empty(); }
  /// The folder of that state. The record has only a random ID of it, so that no file decides what
  /// is deleted.
  std::filesystem::path commits_folder() const { return "/dev/shm/pipetrain-" + commits_id_; }
  /// The hosts that may have commits; empty: unknown.
  const std::vector<LaunchHost>& hosts() const { return hosts_; }
  void choose_new_commits();
  void forget_commits();

  /// Error (kResource) if it cannot be written; later on that is a warning.
  void begin();
  /// Shows other hosts that this launch is still running.
  void renew() const;
  void add_hosts(const std::vector<LaunchHost>& hosts);
  void end(int code);

 private:
  void write(int code) const;
  void write_if_possible(int code) const;

  std::filesystem::path path_;
  Launcher launcher_;
  std::string commits_id_;  // empty: there are none
  std::vector<LaunchHost> hosts_;
};

/// Deletes the record of an earlier launch in the folder of a run that goes on, or begins, without
/// `launch`: what that one has left in memory is no longer part of the run. Error (kResource) if it
/// cannot.
void leave_earlier_launch(const std::filesystem::path& folder);

/// Waits for the launch that `starter` runs, whose record this is; returns its exit code. Error
/// (kDevice) when it has died, kResource when it does not begin.
int wait_for_launch(const std::filesystem::path& record, const std::string& starter);

}  // namespace pipetrain
