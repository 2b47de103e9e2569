#include "processes/restart_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace pipetrain {
namespace {

constexpr double kFirstDelay = 0.25;
constexpr double kLongestDelay = 10;

/// Whether another attempt could end differently.
bool may_end_otherwise(const ProcessEnd& end) {
  if (end.was_stopped) return false;
  if (end.from_outside) return true;
  if (end.signal != 0)
    return end.stalled || (end.signal != SIGINT && end.signal != SIGTERM && end.signal != SIGHUP);
  return end.code == static_cast<int>(ErrorKind::kInternal) ||
         end.code == static_cast<int>(ErrorKind::kResource) ||
         end.code == static_cast<int>(ErrorKind::kDevice);
}

}  // namespace

/// A process that is killed while it computes steps again may have kept a later state: the next one
/// need not wait.
bool RestartPolicy::progresses(const ProcessEnd& end) {
  const bool progressed = end.steps > furthest_ || end.from_step > furthest_from_;
  furthest_ = std::max(furthest_, end.steps);
  furthest_from_ = std::max(furthest_from_, end.from_step);
  return progressed;
}

void RestartPolicy::note_progress(const ProcessEnd& end) {
  ++ended_;
  if (progresses(end)) idle_restarts_ = 0;
}

RestartDecision RestartPolicy::after(const ProcessEnd& end) {
  const bool progressed = progresses(end);
  const bool was_restart = ended_++ > 0;
  if (!may_end_otherwise(end)) return {};
  if (!end.from_outside && end.signal == 0 && end.code == static_cast<int>(ErrorKind::kResource)) {
    if (std::exchange(lacked_resources_, true))
      return {false, 0, "resources are missing for the second time"};
  }
  // A kill comes from outside and says nothing about the step.
  if (end.trained && !end.from_outside && (end.signal != SIGKILL || end.stalled)) {
    if (failed_at_ == end.steps)
      return {false, 0, fmt::format("training has failed twice in step {}", end.steps + 1)};
    failed_at_ = end.steps;
  }
  idle_restarts_ = progressed ? 0 : idle_restarts_ + (was_restart ? 1 : 0);
  if (idle_restarts_ >= most_) {
    return {
        false, 0,
        fmt::format("{} restart{} in a row completed no new step", most_, most_ == 1 ? "" : "s")};
  }
  const double delay =
      idle_restarts_ == 0
          ? 0
          : std::min(kLongestDelay, kFirstDelay * (1 << std::min(idle_restarts_ - 1, 10)));
  return {true, delay, {}};
}

std::string text_of(const ProcessEnd& end) {
  if (end.stalled) return "a stall";
  const std::string how = end.signal != 0
                              ? fmt::format("signal {} ({})", end.signal, ::strsignal(end.signal))
                              : fmt::format("exit code {}", end.code);
  return end.from_outside ? fmt::format("an end from outside ({})", how) : how;
}

}  // namespace pipetrain
