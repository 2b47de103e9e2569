// The memory of the test's own process.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace pipetrain::test {

/// Whether the program was built with AddressSanitizer, which keeps freed memory for a while.
constexpr bool keeps_freed_memory() {
#if defined(__SANITIZE_ADDRESS__)
  return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
  return true;
#else
  return false;
#endif
#else
  return false;
#endif
}

/// A line of /proc/self/status, such as VmHWM, the peak memory of the process since the last reset.
inline std::int64_t kibibytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t value = 0;
    if (word == name + ":" && status >> value) return value;
  }
  ADD_FAILURE() << "/proc/self/status has no " << name;
  return 0;
}

/// Resets the peak memory of the process.
inline void forget_peak_memory() {
  std::ofstream reset("/proc/self/clear_refs");
  reset << 5 << std::flush;
  ASSERT_TRUE(reset) << "/proc/self/clear_refs cannot be written";
}

}  // namespace pipetrain::test
