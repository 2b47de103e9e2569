#include "cli/commands/launched_training.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/safe_text.h"
#include "cli/commands/supervise.h"
#include "cli/output/journal.h"
#include "cli/output/status_file.h"
#include "train/checkpoint.h"

extern char** environ;

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

constexpr double kProbeSeconds = 10;  // for a host to answer
constexpr double kSaveSeconds = 600;  // for a checkpoint, where training does not end itself then
constexpr double kBeginSeconds = 60;  // the same before its first step
constexpr double kEndSeconds = 10;    // for a launcher to end after its processes, or a signal
constexpr double kPollSeconds = 0.1;

std::string content_of(const fs::path& path) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  return read_if_file(path, kMostBytes).value_or("");
}

/// This program's own variables, which all processes get.
std::vector<std::string> own_variables() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    if (text.starts_with("PIPETRAIN_") && !text.starts_with("PIPETRAIN_RESTARTED="))
      names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

}  // namespace

LaunchedTraining::LaunchedTraining(HostSource source, std::vector<LaunchHost> hosts,
                                   LaunchedRun run, LaunchRecord& record)
    : source_(std::move(source)),
      hosts_(std::move(hosts)),
      looked_(steady_seconds()),
      run_(std::move(run)),
      program_(fs::read_symlink("/proc/self/exe").string()),
      status_path_(run_.status_file.empty() ? (run_.folder / "status.json").string()
                                            : run_.status_file),
      record_(record),
      first_checkpoint_(newest_checkpoint_name()) {
  adopt_orphans();
  sigset_t watched;
  sigemptyset(&watched);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    struct sigaction now {};
    ::sigaction(number, nullptr, &now);
    if (now.sa_handler != SIG_IGN) sigaddset(&watched, number);  // nohup
  }
  ::sigprocmask(SIG_BLOCK, &watched, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // whoever reads our output may go away
  signals_ = ::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
}

LaunchedTraining::~LaunchedTraining() {
  child_.reset();
  for (const auto& [name, file] : logs_) {
    if (file) std::fclose(file);
  }
  ::close(signals_);
}

double LaunchedTraining::now() { return steady_seconds(); }

std::vector<LaunchHost> LaunchedTraining::hosts() {
  if (now() - looked_ < LaunchPolicy::kLookSeconds) return hosts_;
  looked_ = now();
  record_.renew();
  try {
    hosts_ = source_.list();
    host_failure_.clear();
  } catch (const Error& error) {
    // What was known last holds; said once.
    if (host_failure_ != error.message()) log_warning("launch", "{}", error.message());
    host_failure_ = error.message();
  }
  return hosts_;
}

std::vector<bool> LaunchedTraining::answer(const std::vector<LaunchHost>& hosts) {
  return run_on(hosts, {"true"});
}

bool LaunchedTraining::has_saved() const {
  // A step is in the journal before it is committed, so no commit is newer than the journal.
  return saved_since_stop() ||
         (has_checkpoint_since(first_checkpoint_) &&
          newest_step(run_.folder / "checkpoints") >= last_step_in_journal(run_.folder));
}

void LaunchedTraining::delete_on_hosts(const fs::path& folder,
                                       const std::vector<LaunchHost>& hosts) {
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  const std::vector<LaunchHost>& others = hosts.empty() ? hosts_ : hosts;
  const std::vector<bool> deleted = run_on(others, {"rm", "-rf", folder.string()});
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (!deleted[i])
      log_warning("launch", "{} cannot be deleted on {}; delete it there, since it takes memory",
                  folder.string(), others[i].name);
  }
}

std::vector<bool> LaunchedTraining::run_on(const std::vector<LaunchHost>& hosts,
                                           const std::vector<std::string>& command) {
  std::vector<std::unique_ptr<ChildProcess>> probes;
  for (const LaunchHost& host : hosts) {
    probes.push_back(is_this_host(host.name)
                         ? nullptr
                         : std::make_unique<ChildProcess>(
                               launcher_command(source_.launcher, {{host.name, 1}}, command, {}),
                               std::vector<std::string>(),
                               [&](ChildProcess::Stream, const std::string& line) {
                                 keep_line("launcher", line);
                               }));
  }
  const double until = now() + kProbeSeconds;
  bool goes_on = true;
  std::vector<bool> answers;
  for (const auto& probe : probes) {
    while (probe && goes_on && now() < until && !probe->wait(until, signals_))
      goes_on = !take_signals();
    answers.push_back(!probe || (probe->wait(0) && probe->status() == 0));
  }
  return answers;
}

std::string LaunchedTraining::newest_checkpoint_name() const {
  // The name alone may be that of an overwritten run.
  const fs::path latest = run_.folder / "checkpoints" / "latest";
  std::error_code ignored;
  const auto time = fs::last_write_time(latest, ignored).time_since_epoch().count();
  const std::string name = content_of(latest);
  return name.empty() ? name : fmt::format("{} {}", name, time);
}

bool LaunchedTraining::has_checkpoint_since(const std::string& before) const {
  const std::string newest = newest_checkpoint_name();
  return !newest.empty() && newest != before;
}

/// A checkpoint may have been under way when training was asked to stop: it has fewer steps.
bool LaunchedTraining::saved_since_stop() const {
  return stop_began_ > 0 && has_checkpoint_since(checkpoint_before_stop_) &&
         newest_step(run_.folder / "checkpoints") >= step_at_stop_;
}

std::vector<std::string> LaunchedTraining::command_of_train() const {
  std::vector<std::string> command = {program_, "train"};
  command.insert(command.end(), run_.options.begin(), run_.options.end());
  command.insert(command.end(), {"--run-dir", fs::absolute(run_.folder).string(), "--status-file",
                                 fs::absolute(status_path_).string()});
  if (has_checkpoint_since(first_checkpoint_)) {
    command.push_back("--resume=auto");
    if (run_.weights_only) command.push_back("--no-resume-weights-only");
  }
  return command;
}

void LaunchedTraining::start(const std::vector<LaunchHost>& hosts) {
  running_ = in_launcher_order(source_.launcher, hosts, is_this_host);
  record_.add_hosts(hosts);
  status_before_ = content_of(status_path_);
  journal_before_ = last_step_in_journal(run_.folder);
  stop_began_ = end_began_ = ended_seen_ = 0;
  stops_itself_ = is_killed_ = has_spoken_ = false;
  killed_process_ = -1;
  log_info("launch", "launch   {} process{} on {}: {} · logs: {}", slots_of(hosts),
           slots_of(hosts) == 1 ? "" : "es", hosts.size() == 1 ? "one host" : "hosts",
           printable(names_of(running_)), printable((run_.folder / "logs").string()));
  note_seconds_before_start();
  child_ = std::make_unique<ChildProcess>(
      launcher_command(source_.launcher, running_, command_of_train(), own_variables()),
      std::vector<std::string>{"TF_CONFIG"},  // which would be taken for another launcher's
      [this](ChildProcess::Stream stream, const std::string& line) { take_line(stream, line); });
}

void LaunchedTraining::keep_line(const std::string& log, const std::string& line) {
  const auto [found, is_new] = logs_.try_emplace(log);
  std::FILE*& file = found->second;
  if (is_new) {
    try {
      const fs::path path = run_.folder / "logs" / (log + ".log");
      file = ::fdopen(open_output(path, OutputMode::kAppend), "a");
      if (file) std::setvbuf(file, nullptr, _IOLBF, 0);
    } catch (const Error& error) {
      log_warning("launch", "{}; training continues without it", error.message());
    }
  }
  if (file) std::fprintf(file, "%s\n", line.c_str());
}

/// What the launcher itself says is only kept.
void LaunchedTraining::take_line(ChildProcess::Stream stream, const std::string& line) {
  if (const auto of_process = lines_[static_cast<std::size_t>(stream)].take(line)) {
    has_spoken_ = true;
    show_line(stream, of_process->first, of_process->second);
    return;
  }
  if (killed_process_ < 0) killed_process_ = killed_process_in(source_.launcher, line);
  keep_line("launcher", line);
}

/// The output of process 0 is that of the run. What the others say is shown as theirs.
void LaunchedTraining::show_line(ChildProcess::Stream stream, int process,
                                 const std::string& line) {
  keep_line(fmt::format("process-{}", process), line);
  if (stream == ChildProcess::Stream::kError) {
    std::fprintf(stderr, "[%d] %s\n", process, safe_text(line).c_str());
  } else if (process == 0) {
    std::fprintf(stdout, "%s\n", line.c_str());
    std::fflush(stdout);
  }
}

bool LaunchedTraining::take_signals() {
  bool stops = false;
  signalfd_siginfo info{};
  while (::read(signals_, &info, sizeof info) == sizeof info) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGUSR1 || number == SIGUSR2) {
      if (child_) child_->signal(number);
      continue;
    }
    stops = true;
    if (asked_ == 0) {
      asked_ = number;
      log_info("launch", "stopping{}",
               child_ ? " once training has saved; a second signal stops at once" : "");
    } else if (child_) {
      child_->kill();
    }
  }
  return stops;
}

void LaunchedTraining::stop() {
  if (!child_ || stop_began_ > 0) return;
  stop_began_ = now();
  checkpoint_before_stop_ = newest_checkpoint_name();
  // Until these processes have completed a step, the journal ends with one of those before.
  const std::int64_t last = last_step_in_journal(run_.folder);
  step_at_stop_ = last == journal_before_ ? 0 : last;
  // mpirun ends processes too soon after a signal to stop. Where process 0 is here, it is told
  // itself, and tells the others; elsewhere all save first, for which both hand on a signal.
  stops_itself_ = source_.launcher == Launcher::kMpirun &&
                  child_->signal_below(SIGTERM, "OMPI_COMM_WORLD_RANK=0");
  if (!stops_itself_) child_->signal(SIGUSR1);
}

void LaunchedTraining::look_after() {
  if (stop_began_ > 0 && end_began_ == 0 && !stops_itself_) {
    const bool has_begun = last_step_in_journal(run_.folder) != journal_before_;
    const bool has_saved = saved_since_stop();
    const bool is_late = now() - stop_began_ > (has_begun ? kSaveSeconds : kBeginSeconds);
    if (is_late && !has_saved)
      log_warning("launch",
                  "training has not saved a checkpoint within {:.0f} s of being asked to, and is "
                  "ended",
                  now() - stop_began_);
    if (has_saved || is_late) {
      end_began_ = now();
      child_->signal(SIGTERM);
    }
  }
  if (ended_seen_ == 0 && reported().code >= 0) ended_seen_ = now();
  // It may ignore signals, or wait for a host that is lost.
  if (ended_seen_ > 0 && now() - ended_seen_ > kEndSeconds) child_->kill();
  // Training saves once more, if it has taken another step.
  const double to_save = end_began_ - stop_began_;
  if (end_began_ > 0 && now() - end_began_ > to_save + kEndSeconds) {
    if (!std::exchange(is_killed_, true))
      log_warning("launch", "the launcher has not ended {:.0f} s after its signal and is killed",
                  now() - end_began_);
    child_->kill();
  }
}

std::optional<LaunchEnd> LaunchedTraining::wait(double until) {
  const int asked_before = asked_;
  while (now() < until && asked_ == asked_before) {
    const double next = std::min(until, now() + kPollSeconds);
    if (child_) {
      const bool has_ended = child_->wait(next, signals_);
      take_signals();
      if (has_ended || child_->wait(0)) return end_of_attempt();
      look_after();
    } else {
      pollfd event{signals_, POLLIN, 0};
      ::poll(&event, 1, static_cast<int>((next - now()) * 1e3) + 1);
      take_signals();
    }
  }
  return {};
}

/// What the status file says, if these processes have written it.
ReportedEnd LaunchedTraining::reported() const {
  const std::string text = content_of(status_path_);
  return text == status_before_ ? ReportedEnd() : end_in_status(text);
}

LaunchEnd LaunchedTraining::end_of_attempt() {
  for (const ChildProcess::Stream stream :
       {ChildProcess::Stream::kOut, ChildProcess::Stream::kError}) {
    for (const auto& [process, text] : lines_[static_cast<std::size_t>(stream)].take_begun())
      show_line(stream, process, text);
  }
  ReportedEnd report = reported();
  const std::int64_t last_step = last_step_in_journal(run_.folder);
  if (report.code < 0 && !report.has_begun && last_step > 0 && last_step != journal_before_) {
    // The status file that was given may be on the disk of another host.
    report.has_begun = true;
    report.steps = last_step;
    report.from_step = std::min(journal_before_, last_step - 1);
  }
  has_trained_last_ = report.steps > report.from_step;
  if (has_trained_last_) {
    has_trained_ = true;
    // The status file is of the last second.
    report.steps = std::max(report.steps, last_step);
  }
  LaunchEnd end{end_of_launcher(child_->status(), report), {}};
  const int process = report.failed_process >= 0 ? report.failed_process : killed_process_;
  end.host = host_of_process(running_, process);
  if (!has_spoken_ && (end.process.code != 0 || end.process.signal != 0))
    log_warning("launch", "no training process has started; the output of {} is in {}",
                name_of(source_.launcher),
                printable((run_.folder / "logs" / "launcher.log").string()));
  child_.reset();
  return end;
}

void LaunchedTraining::say(const std::string& text) { log_warning("launch", "{}", text); }

void LaunchedTraining::say_why_it_ends(const std::string& reason) {
  log_error("launch", "{}", reason);
}

}  // namespace pipetrain
