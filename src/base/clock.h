// The two clocks that measurements use.
#pragma once

namespace pipetrain {

/// CPU time of the calling thread: waiting and other threads do not count.
double thread_cpu_seconds();
/// Time that only goes forward, from an arbitrary start.
double steady_seconds();

}  // namespace pipetrain
