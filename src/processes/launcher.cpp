#include "processes/launcher.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace pipetrain {
namespace {

/// The number that `text` begins with, which moves behind it.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return {};
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, std::string_view begin) {
  if (!text.starts_with(begin)) return false;
  text.remove_prefix(begin.size());
  return true;
}

/// What stands behind `mark`; empty: it is not there.
std::string_view behind(std::string_view text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  return at == std::string_view::npos ? std::string_view() : text.substr(at + mark.size());
}

/// The process whose mark `text` begins with, which moves behind it; empty: there is none.
std::optional<int> take_mark(Launcher launcher, std::string_view& text) {
  std::string_view left = text;
  std::optional<int> process;
  if (launcher == Launcher::kMpirun) {  // [1,3]<stderr>:text
    if (!take(left, "[") || !take_number(left) || !take(left, ",")) return {};
    process = take_number(left);
    if (!process || !take(left, "]<std")) return {};
    if (!take(left, "out>:") && !take(left, "err>:")) return {};
  } else {  // " 3: text"
    left.remove_prefix(std::min(left.find_first_not_of(' '), left.size()));
    process = take_number(left);
    if (!process || !take(left, ":")) return {};
    take(left, " ");
  }
  text = left;
  return process;
}

std::vector<std::string> mpirun_command(const std::vector<LaunchHost>& hosts) {
  // mpirun notices a lost host within seconds and, where a process has failed, does not wait before
  // it ends the others. Processes choose their cores themselves.
  std::vector<std::string> command = {"mpirun"};
  for (const auto& [name, value] :
       {std::pair("oob_tcp_keepalive_time", "5"), std::pair("oob_tcp_keepalive_intvl", "1"),
        std::pair("oob_tcp_keepalive_probes", "3"), std::pair("odls_base_sigkill_timeout", "0")})
    command.insert(command.end(), {"-mca", name, value});
  std::string places;
  for (const LaunchHost& host : hosts)
    places += fmt::format("{}{}:{}", places.empty() ? "" : ",", host.name, host.slots);
  command.insert(command.end(), {"-tag-output", "-bind-to", "none", "-map-by", "slot", "-host",
                                 places, "-n", fmt::format("{}", slots_of(hosts))});
  return command;
}

std::vector<std::string> srun_command(const std::vector<LaunchHost>& hosts) {
  std::string names;
  for (const LaunchHost& host : hosts) names += (names.empty() ? "" : ",") + host.name;
  // -l: lines are marked. -K1: the step ends when one process fails.
  std::vector<std::string> command = {"srun", "-l", "-K1", "-w", names};
  command.insert(command.end(),
                 {"-N", fmt::format("{}", hosts.size()), "-n", fmt::format("{}", slots_of(hosts))});
  const bool even = std::ranges::all_of(
      hosts, [&](const LaunchHost& host) { return host.slots == hosts.front().slots; });
  if (even) command.push_back(fmt::format("--ntasks-per-node={}", hosts.front().slots));
  // With the environment of this process, also in a job that sbatch gave none.
  command.insert(command.end(), {"--mpi=pmix", "-m", "block", "--export=ALL"});
  // Since Slurm 22.05, srun no longer reads this variable of the job, only the other one.
  const char* cores = std::getenv("SLURM_CPUS_PER_TASK");
  if (cores && *cores && !std::getenv("SRUN_CPUS_PER_TASK"))
    command.push_back(fmt::format("--cpus-per-task={}", cores));
  return command;
}

}  // namespace

const char* name_of(Launcher launcher) { return launcher == Launcher::kMpirun ? "mpirun" : "srun"; }

std::vector<LaunchHost> in_launcher_order(
    Launcher launcher, std::vector<LaunchHost> hosts,
    const std::function<bool(const std::string&)>& is_this_host) {
  if (launcher == Launcher::kMpirun)
    std::ranges::stable_partition(hosts, is_this_host, &LaunchHost::name);
  return hosts;
}

std::vector<std::string> launcher_command(Launcher launcher, const std::vector<LaunchHost>& hosts,
                                          const std::vector<std::string>& program,
                                          const std::vector<std::string>& exported) {
  std::vector<std::string> command =
      launcher == Launcher::kMpirun ? mpirun_command(hosts) : srun_command(hosts);
  if (launcher == Launcher::kMpirun) {  // srun exports the whole environment
    for (const std::string& name : exported) command.insert(command.end(), {"-x", name});
  }
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

std::optional<std::pair<int, std::string>> ProcessLines::take(const std::string& line) {
  std::string_view left = line;
  const std::optional<int> first = take_mark(launcher_, left);
  if (!first) return {};
  int process = *first;
  std::size_t at = 0;
  while (launcher_ == Launcher::kMpirun && (at = left.find('[', at)) != std::string_view::npos) {
    std::string_view next_piece = left.substr(at);
    if (const std::optional<int> next = take_mark(launcher_, next_piece)) {
      begun_[process].append(left.substr(0, at));
      process = *next;
      left = next_piece;
      at = 0;
    } else {
      ++at;
    }
  }
  std::pair<int, std::string> whole(process, begun_[process].append(left));
  begun_.erase(process);
  return whole;
}

std::map<int, std::string> ProcessLines::take_begun() { return std::exchange(begun_, {}); }

int killed_process_in(Launcher launcher, const std::string& line) {
  if (launcher == Launcher::kMpirun) {
    // "mpirun noticed that process rank 1 with PID 0 on node a exited on signal 9 (Killed)."
    std::string_view text = behind(line, "noticed that process rank ");
    const std::optional<int> process = take_number(text);
    return process && !behind(text, "exited on signal ").empty() ? *process : -1;
  }
  // "srun: error: a: task 1: Killed"
  std::string_view text = behind(line, ": task ");
  const std::optional<int> process = take_number(text);
  return process && line.starts_with("srun: error: ") && text.starts_with(": ") &&
                 !text.starts_with(": Exited")
             ? *process
             : -1;
}

std::string host_of_process(const std::vector<LaunchHost>& hosts, int process) {
  for (const LaunchHost& host : hosts) {
    if (process < host.slots) return process < 0 ? std::string() : host.name;
    process -= host.slots;
  }
  return {};
}

ProcessEnd end_of_launcher(int status, const ReportedEnd& reported) {
  constexpr int kSignals = 64;
  ProcessEnd end;
  end.steps = reported.steps;
  end.from_step = reported.from_step;
  end.trained = reported.has_begun;
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code == 0) return end;
  if (reported.code >= 0) {
    // Nobody has asked for it here: somebody else takes the machine.
    end.from_outside = reported.is_interrupted;
    end.code = reported.code;
  } else if (code < 0) {
    end.from_outside = true;
    end.signal = WTERMSIG(status);
  } else if (code > 128 && code <= 128 + kSignals) {
    end.signal = code - 128;
    end.from_outside = end.signal == SIGTERM || end.signal == SIGINT || end.signal == SIGHUP;
  } else {
    end.code = code;
    // The exit codes of training, but 1 is also that of a launcher that was asked to end.
    end.from_outside = code < static_cast<int>(ErrorKind::kUsage) ||
                       code > static_cast<int>(ErrorKind::kAssertion);
  }
  return end;
}

}  // namespace pipetrain
