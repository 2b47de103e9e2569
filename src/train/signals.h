// Signals of a run: INT, TERM and HUP ask it to finish the step, save and end; USR1 to save and
// continue; USR2 for a status line. A second INT, TERM or HUP ends the process at once.
#pragma once

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

/// "INT", "TERM" or "HUP".
const char* name_of_signal(int number);

}  // namespace pipetrain
