#include "processes/launch_policy.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/setting.h"

namespace pipetrain {
namespace {

bool has(const std::vector<LaunchHost>& hosts, const std::string& name) {
  return std::ranges::find(hosts, name, &LaunchHost::name) != hosts.end();
}

/// Besides those before a resume.
bool has_completed_step(const ProcessEnd& end) { return end.steps > end.from_step; }

std::string hosts_text(std::size_t count) {
  return fmt::format("{} host{}", count, count == 1 ? "" : "s");
}

}  // namespace

void LaunchPolicy::found(std::vector<LaunchHost> hosts) { listed_ = std::move(hosts); }

bool LaunchPolicy::is_cool(const LaunchHost& host, double now) const {
  const auto health = health_.find(host.name);
  return health == health_.end() || now >= health->second.absent_until;
}

bool LaunchPolicy::answers(const LaunchHost& host) const {
  const auto health = health_.find(host.name);
  return health != health_.end() && health->second.answers;
}

void LaunchPolicy::drop(const std::string& host, double now, double longest) {
  Health& health = health_[host];
  health.cool_down =
      health.cool_down == 0 ? kFirstCoolDown : std::min(2 * health.cool_down, longest);
  health.absent_until = now + health.cool_down;
  health.answers = false;
}

void LaunchPolicy::answered(const std::string& host, bool answers, double now) {
  answers ? void(health_[host].answers = true) : drop(host, now);
}

/// As many of them, in their order, as the run takes.
std::vector<LaunchHost> LaunchPolicy::within_limits(const std::vector<LaunchHost>& hosts) const {
  std::vector<LaunchHost> some;
  int left = limits_.most_processes;
  for (LaunchHost host : hosts) {
    if (limits_.most_hosts > 0 && static_cast<int>(some.size()) == limits_.most_hosts) break;
    if (limits_.most_processes > 0) {
      host.slots = std::min(host.slots, left);
      left -= host.slots;
      if (host.slots == 0) break;
    }
    some.push_back(host);
  }
  return some;
}

/// Whether training can go on with these hosts, which are within the limits.
bool LaunchPolicy::can_start(const std::vector<LaunchHost>& hosts) const {
  const int processes = slots_of(hosts);
  // More than the run has devices for are not needed.
  const bool is_full = processes > 0 && processes == limits_.most_processes;
  return processes >= least_processes_ && !refused_.contains(processes) &&
         (is_full || static_cast<int>(hosts.size()) >= limits_.least_hosts);
}

void LaunchPolicy::stopped(bool by_user) {
  stops_ = true;
  stops_for_user_ = stops_for_user_ || by_user;
}

/// Hosts that have joined may have another build, other CPUs or no data, which ends training with
/// an error that has nothing to do with the run. Returns what to tell the user; empty: that is not
/// the case.
std::string LaunchPolicy::leave_out_added(const std::vector<LaunchHost>& ran, const LaunchEnd& end,
                                          double now) {
  const ProcessEnd& process = end.process;
  const bool has_failed = process.signal != 0 || process.code != 0;
  if (!has_failed || has_completed_step(process) || trained_.empty() || stops_for_user_) return {};
  std::vector<LaunchHost> added, others;
  for (const LaunchHost& host : ran) {
    if (!has(trained_, host.name)) added.push_back(host);
  }
  for (const LaunchHost& host : listed_) {
    if (!has(added, host.name) && is_cool(host, now)) others.push_back(host);
  }
  const bool others_failed = !end.host.empty() && !has(added, end.host);
  if (added.empty() || others_failed || !can_start(within_limits(others))) return {};
  double longest = 0;
  for (const LaunchHost& host : added) {
    drop(host.name, now, kLongestWithoutJoining);
    longest = std::max(longest, health_[host.name].cool_down);
  }
  return fmt::format(
      "training on hosts that include {} failed before its first step ({}); {} left out for {:.0f} "
      "s; restarting training",
      names_of(added), text_of(process), added.size() == 1 ? "this host is" : "these hosts are",
      longest);
}

/// Hosts that are left after a loss may have a number of processes that the options of the run
/// exclude. Returns what to tell the user; empty: that is not the case.
std::string LaunchPolicy::refuse_number(const std::vector<LaunchHost>& ran, const ProcessEnd& end) {
  const bool is_usage = end.signal == 0 && end.code == static_cast<int>(ErrorKind::kUsage);
  const int processes = slots_of(ran);
  if (!is_usage || end.from_outside || has_completed_step(end) || stops_for_user_ ||
      trained_.empty() || processes == slots_of(trained_))
    return {};
  refused_.insert(processes);
  restarts_.note_progress(end);
  return fmt::format("training does not go on with {} process{} ({}); waiting for other hosts",
                     processes, processes == 1 ? "" : "es", text_of(end));
}

std::string LaunchPolicy::ended(const LaunchEnd& end, double now) {
  const std::vector<LaunchHost> ran = std::exchange(running_, {});
  ProcessEnd process = end.process;
  const bool was_asked = std::exchange(stops_, false);
  process.was_stopped = stops_for_user_;
  for (auto& [name, health] : health_) health.answers = false;
  if (has_completed_step(process)) trained_ = ran;
  if (trained_.empty()) least_processes_ = limits_.least_processes;  // the next start is the first
  const bool is_success = process.signal == 0 && process.code == 0 && !process.from_outside;
  if (was_asked && !stops_for_user_ && !is_success) {  // it goes on, on other hosts
    restarts_.note_progress(process);
    return {};
  }
  if (std::string text = leave_out_added(ran, end, now); !text.empty()) return text;
  if (std::string text = refuse_number(ran, process); !text.empty()) return text;
  const RestartDecision decision = restarts_.after(process);
  if (!decision.restarts) {
    const bool failed = process.signal != 0 || process.from_outside || !decision.reason.empty();
    end_ = LaunchStep{.kind = LaunchStep::kEnd};
    end_->code = process.from_outside  ? static_cast<int>(ErrorKind::kDevice)
                 : process.signal != 0 ? 128 + process.signal
                                       : process.code;
    if (failed && !stops_for_user_) {
      end_->reason =
          fmt::format("training ended by {} after step {}", text_of(process), process.steps);
      if (!decision.reason.empty()) end_->reason += "; not restarted: " + decision.reason;
    }
    return {};
  }
  not_before_ = now + decision.delay_seconds;
  // A host that has worked for long is no worse than any other.
  if (now - started_ > kLongestCoolDown) {
    for (const LaunchHost& host : ran) health_[host.name].cool_down = 0;
  }
  std::string text =
      fmt::format("training ended by {} after step {}", text_of(process), process.steps);
  std::vector<LaunchHost> others;
  for (const LaunchHost& host : listed_) {
    if (host.name != end.host && is_cool(host, now)) others.push_back(host);
  }
  if (!end.host.empty() && can_start(within_limits(others))) {
    drop(end.host, now);
    text += fmt::format("; {} is left out for {:.0f} s", end.host, health_[end.host].cool_down);
  }
  return text + "; restarting it";
}

LaunchStep LaunchPolicy::next_of_running(double now) const {
  LaunchStep run{.kind = LaunchStep::kRun, .until = now + kLookSeconds};
  if (stops_ || now - started_ < kSettleSeconds) return run;
  std::vector<LaunchHost> stay, unknown;
  for (const LaunchHost& host : running_) {
    if (has(listed_, host.name)) stay.push_back(host);
  }
  if (stay.size() < running_.size() && can_start(within_limits(stay)))
    return {.kind = LaunchStep::kStop,
            .reason = fmt::format("{} of {} stay", hosts_text(stay.size()), running_.size())};
  const bool has_room =
      (limits_.most_hosts == 0 || static_cast<int>(stay.size()) < limits_.most_hosts) &&
      (limits_.most_processes == 0 || slots_of(stay) < limits_.most_processes);
  if (!has_room) return run;
  std::vector<LaunchHost> ready;
  for (const LaunchHost& host : listed_) {
    if (has(running_, host.name) || !is_cool(host, now)) continue;
    answers(host) ? ready.push_back(host) : unknown.push_back(host);
  }
  if (!unknown.empty()) return {.kind = LaunchStep::kProbe, .hosts = unknown};
  std::vector<LaunchHost> together;  // as they would be chosen from
  for (const LaunchHost& host : listed_) {
    if (has(running_, host.name) || has(ready, host.name)) together.push_back(host);
  }
  if (!ready.empty() && can_start(within_limits(together)))
    return {
        .kind = LaunchStep::kStop,
        .reason = fmt::format("{} {} there", names_of(ready), ready.size() == 1 ? "is" : "are")};
  return run;
}

/// Training cannot begin now.
LaunchStep LaunchPolicy::without_enough(const std::vector<LaunchHost>& there, double now) {
  std::vector<LaunchHost> lost;
  for (const LaunchHost& host : listed_) {
    if (!answers(host) || !is_cool(host, now)) lost.push_back(host);
  }
  const int hosts = static_cast<int>(there.size()), slots = slots_of(there);
  const std::string need = refused_.contains(slots)
                               ? ", a number of processes that the run does not take"
                               : fmt::format(" where the run needs {}", least_processes_);
  const std::string state =
      fmt::format(
          "{}{}", hosts_text(there.size()),
          hosts < limits_.least_hosts
              ? fmt::format(" can be reached where {} is {}", setting("min"), limits_.least_hosts)
              : fmt::format(" can be used with {} slot{}{}", slots, slots == 1 ? "" : "s", need)) +
      (lost.empty() ? "" : fmt::format(" (no answer: {})", printable(names_of(lost))));
  PT_CHECK(has_started_, kResource, "{}", state);
  if (!short_since_) short_since_ = now;
  const double patience = *short_since_ + kPatience;
  if (now >= patience) {
    end_ = LaunchStep{.kind = LaunchStep::kEnd,
                      .code = static_cast<int>(ErrorKind::kResource),
                      .reason = fmt::format("after {:.0f} s, {}", kPatience, state)};
    return *end_;
  }
  double until = std::min(patience, now + kLookSeconds);
  for (const LaunchHost& host : listed_) {
    if (!is_cool(host, now)) until = std::min(until, health_.at(host.name).absent_until);
  }
  return {.kind = LaunchStep::kWait, .until = until};
}

LaunchStep LaunchPolicy::next(double now) {
  if (end_) return *end_;
  if (!running_.empty()) return next_of_running(now);
  if (now < not_before_) return {.kind = LaunchStep::kWait, .until = not_before_};
  std::vector<LaunchHost> unknown;
  for (const LaunchHost& host : listed_) {
    if (is_cool(host, now) && !answers(host)) unknown.push_back(host);
  }
  if (!unknown.empty()) return {.kind = LaunchStep::kProbe, .hosts = unknown};
  std::vector<LaunchHost> ready;
  for (const LaunchHost& host : listed_) {
    if (is_cool(host, now) && answers(host)) ready.push_back(host);
  }
  const std::vector<LaunchHost> hosts = within_limits(ready);
  if (!can_start(hosts)) return without_enough(hosts, now);
  if (trained_.empty() && limits_.spare_processes)
    least_processes_ =
        std::max(limits_.least_processes, slots_of(hosts) - *limits_.spare_processes);
  short_since_.reset();
  running_ = hosts;
  started_ = now;
  has_started_ = true;
  return {.kind = LaunchStep::kStart, .hosts = hosts};
}

int run_launch(const LaunchLimits& limits, LaunchWorld& world) {
  LaunchPolicy policy(limits);
  bool runs = false, is_told = false;
  for (;;) {
    const int signal = world.asked_to_stop();
    if (signal != 0 && !is_told && !policy.is_finished()) {
      if (!runs) return 128 + signal;
      is_told = true;
      policy.stopped(/*by_user=*/true);
      world.stop();
    }
    policy.found(world.hosts());
    const LaunchStep step = policy.next(world.now());
    std::optional<LaunchEnd> end;
    switch (step.kind) {
      case LaunchStep::kProbe: {
        const std::vector<bool> answers = world.answer(step.hosts);
        if (!is_told && world.asked_to_stop() != 0) break;  // hosts had no time to answer
        for (std::size_t i = 0; i < step.hosts.size(); ++i) {
          policy.answered(step.hosts[i].name, answers[i], world.now());
          if (!answers[i])
            world.say(fmt::format("{} does not answer and is left out", step.hosts[i].name));
        }
        break;
      }
      case LaunchStep::kStart:
        if (!is_told && world.asked_to_stop() != 0) break;  // while the hosts were listed
        world.start(step.hosts);
        runs = true;
        break;
      case LaunchStep::kStop:
        world.say(fmt::format("{}: training saves, and goes on there", step.reason));
        policy.stopped(/*by_user=*/false);
        world.stop();
        break;
      case LaunchStep::kRun:
        end = world.wait(step.until);
        break;
      case LaunchStep::kWait:
        world.wait(step.until);
        break;
      case LaunchStep::kEnd:
        if (!step.reason.empty()) world.say_why_it_ends(step.reason);
        return is_told && step.code != 0 ? 128 + world.asked_to_stop() : step.code;
    }
    if (!end) continue;
    runs = false;
    if (const std::string text = policy.ended(*end, world.now()); !text.empty()) world.say(text);
  }
}

}  // namespace pipetrain
