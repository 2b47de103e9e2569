// One answer for all processes of a run: clocks, files and signals are each process's own.
#pragma once

#include <type_traits>

#include "processes/process_group.h"

namespace pipetrain {

/// What process 0 has found, where there are several; `value` where `processes` is null. All of
/// them call it.
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
