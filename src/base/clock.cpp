#include "base/clock.h"

#include <time.h>

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

}  // namespace pipetrain
