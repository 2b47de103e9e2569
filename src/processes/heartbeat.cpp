#include "processes/heartbeat.h"

#include <chrono>

#include "base/error.h"

namespace pipetrain {

Heartbeat::Heartbeat(ProcessGroup& group, double timeout_seconds)
    : group_(group), timeout_seconds_(timeout_seconds) {
  group_.expect_heartbeats(timeout_seconds_);
  thread_ = std::thread([this] { beat(); });
}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
  group_.expect_heartbeats(0);
}

void Heartbeat::beat() {
  const double period = heartbeat_period(timeout_seconds_);
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::duration<double>(period), [&] { return ends_; })) {
    try {
      group_.listen();
      group_.say_alive_if_quiet(2 * period);
    } catch (const Error&) {
      return;  // a message has failed, which ends the others and whoever waits here, too
    }
  }
}

}  // namespace pipetrain
