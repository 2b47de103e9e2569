// Heartbeats of a process while it reads data, plans, profiles or compiles: a process that is
// stopped or cut off is missed before and after training, too.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "processes/process_group.h"

namespace pipetrain {

/// From its construction to its destruction, a thread sends heartbeats to the other processes of a
/// group where nobody else does, and waiting for a process that has been silent for
/// `timeout_seconds` is an Error (kDevice). Made by all processes at the same time. The thread also
/// runs while the others compute, so a process that computes for long is not silent.
class Heartbeat {
 public:
  Heartbeat(ProcessGroup& group, double timeout_seconds);
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;
  ~Heartbeat();

 private:
  void beat();

  ProcessGroup& group_;
  const double timeout_seconds_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace pipetrain
