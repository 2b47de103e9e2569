// The two clocks that measurements use, and sleeping by one of them.
#pragma once

namespace pipetrain {

/// CPU time of the calling thread: waiting and other threads do not count.
double thread_cpu_seconds();
/// Time that only goes forward, from an arbitrary start.
double steady_seconds();
/// Returns when steady_seconds() reaches `seconds`, within microseconds: sleeps for most of the
/// time and polls the clock for the last tenth of a millisecond, which is about what it takes to
/// wake up.
void wait_until(double seconds);

}  // namespace pipetrain
