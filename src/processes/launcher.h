// What mpirun and srun are told, and what they say: command lines, output by process, exit codes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "processes/host_list.h"
#include "processes/restart_policy.h"

namespace pipetrain {

enum class Launcher { kMpirun, kSrun };

const char* name_of(Launcher launcher);

/// The hosts in the order in which the launcher numbers their processes: mpirun begins with those
/// of the host that it runs on, whatever the order of -host.
std::vector<LaunchHost> in_launcher_order(
    Launcher launcher, std::vector<LaunchHost> hosts,
    const std::function<bool(const std::string&)>& is_this_host);

/// The command that starts `program` once per slot of the hosts, with its output marked by process.
/// `exported`: names of variables that all of them get.
std::vector<std::string> launcher_command(Launcher launcher, const std::vector<LaunchHost>& hosts,
                                          const std::vector<std::string>& program,
                                          const std::vector<std::string>& exported);

/// The lines of training processes among those of one stream of a launcher. mpirun marks each block
/// of output that it reads, also within a line, so that a line may come in pieces, with those of
/// other processes between them.
class ProcessLines {
 public:
  explicit ProcessLines(Launcher launcher) : launcher_(launcher) {}

  /// Takes a line of the launcher. The process whose line ends with it, and that line; empty: it is
  /// the launcher's own.
  std::optional<std::pair<int, std::string>> take(const std::string& line);
  /// What is left of lines that have not ended, by process.
  std::map<int, std::string> take_begun();

 private:
  Launcher launcher_;
  std::map<int, std::string> begun_;
};

/// The process that a line of the launcher says was killed by a signal; -1: none.
int killed_process_in(Launcher launcher, const std::string& line);

/// The host of a process. `hosts`: in the order of the launcher.
std::string host_of_process(const std::vector<LaunchHost>& hosts, int process);

/// How training ended, as reported in its status file.
struct ReportedEnd {
  int code = -1;  // -1: it had no time to
  bool is_interrupted = false;
  bool has_begun = false;  // its first step
  std::int64_t steps = 0;
  std::int64_t from_step = 0;  // completed in the state that it went on from
  int failed_process = -1;     // -1: not known
};

/// What the end of a launcher says of training. `status`: of waitpid.
ProcessEnd end_of_launcher(int status, const ReportedEnd& reported);

}  // namespace pipetrain
