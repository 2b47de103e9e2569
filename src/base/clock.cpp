#include "base/clock.h"

#include <time.h>

#include <cerrno>

namespace pipetrain {
namespace {

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

double thread_cpu_seconds() { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }
double steady_seconds() { return seconds_of(CLOCK_MONOTONIC); }

void wait_until(double seconds) {
  constexpr double kPolled = 1e-4;
  if (const double until = seconds - kPolled; until > steady_seconds()) {
    timespec time{};
    time.tv_sec = static_cast<time_t>(until);
    time.tv_nsec = static_cast<long>((until - static_cast<double>(time.tv_sec)) * 1e9);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) {
    }
  }
  while (steady_seconds() < seconds) {
  }
}

}  // namespace pipetrain
