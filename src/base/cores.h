// The cores that a thread may use.
#pragma once

#include <sched.h>

#include <algorithm>

namespace pipetrain {

/// Cores that the calling thread may use, and the threads that it starts; at least 1.
inline int available_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? std::max(1, CPU_COUNT(&allowed)) : 1;
}

}  // namespace pipetrain
