// Signals of a run: INT, TERM and HUP ask it to finish the step, save and end; USR1 to save and
// continue; USR2 for a status line and the last instructions
// (pipeline/runtime/last_instructions.h). A second INT, TERM or HUP ends the process at once.
#pragma once

#include <atomic>

namespace pipetrain {

/// Only one object may exist at a time. Its destructor restores the previous handlers.
class Signals {
 public:
  /// USR1 and USR2 are noted from now on, so that none of them ends the process.
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  /// From now on INT, TERM and HUP are noted too, but for those that the process was started to
  /// ignore (nohup).
  void watch_stops();
  /// The number of the signal that asked to stop; 0: none.
  int stop() const;
  /// Whether USR1 (USR2) has come since the last call.
  bool take_save();
  bool take_status();
};

/// Keeps the number of the signal that asked to stop in memory shared with another process, which
/// may set it too.
void share_stop_request(std::atomic<int>& number);
/// What a first signal to stop prints. Async-signal-safe.
void say_that_run_will_stop();

/// "INT", "TERM" or "HUP".
const char* name_of_signal(int number);

}  // namespace pipetrain
