// Gives all processes the answer of process 0: clocks, files and signals differ between processes.
#pragma once

#include <type_traits>

#include "processes/process_group.h"

namespace pipetrain {

/// Broadcasts the value of process 0; `value` itself if `processes` is null. Called by all
/// processes.
template <class T>
T as_process_0(ProcessGroup* processes, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (processes) {
    processes->broadcast({reinterpret_cast<const char*>(&value), sizeof value})
        .copy(reinterpret_cast<char*>(&value), sizeof value);
  }
  return value;
}

}  // namespace pipetrain
