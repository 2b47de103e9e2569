// Decides whether to restart a training process that has ended. A pure rule without side effects,
// used by `launch` and by train --restarts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace pipetrain {

/// How a training process ended.
struct ProcessEnd {
  int code = 0;                // its exit code, where no signal ended it
  int signal = 0;              // that ended it; 0: none
  bool stalled = false;        // it stood still and was killed for that
  bool from_outside = false;   // its launcher ended, or something else asked it to end
  bool trained = false;        // it had begun its first step
  std::int64_t steps = 0;      // completed when it ended, those before a resume included
  std::int64_t from_step = 0;  // completed in the state that it went on from
  bool was_stopped = false;    // it had been asked to end
};

struct RestartDecision {
  bool restarts = false;
  double delay_seconds = 0;  // before the restart
  std::string reason;        // why a failed process is not started again; empty: its code says it
};

class RestartPolicy {
 public:
  /// `most`: restarts in a row that complete no new step.
  explicit RestartPolicy(int most) : most_(most) {}

  /// To be called once for each process, in order.
  RestartDecision after(const ProcessEnd& end);
  /// Instead, for a process that was asked to end and is started again in any case.
  void note_progress(const ProcessEnd& end);

 private:
  bool progresses(const ProcessEnd& end);

  int most_;
  int ended_ = 0;          // processes
  int idle_restarts_ = 0;  // in a row, without a new step
  bool lacked_resources_ = false;
  std::int64_t furthest_ = 0;              // completed steps of any process
  std::int64_t furthest_from_ = 0;         // of the states that processes went on from
  std::optional<std::int64_t> failed_at_;  // completed steps when training last failed by itself
};

/// "exit code 7", "signal 11 (Segmentation fault)", "a stall", "an end from outside (exit code 1)".
std::string text_of(const ProcessEnd& end);

}  // namespace pipetrain
