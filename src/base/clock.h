// The two clocks that measurements use, and a precise sleep.
#pragma once

namespace pipetrain {

/// CPU time of the calling thread, without waiting and other threads.
double thread_cpu_seconds();
/// Monotonic time since an arbitrary start.
double steady_seconds();
/// Returns when steady_seconds() reaches `seconds`, within microseconds: sleeps for most of the
/// time and polls the clock for the last 0.1 ms, about the wake-up latency.
void wait_until(double seconds);

}  // namespace pipetrain
