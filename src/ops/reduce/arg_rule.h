// Which element of a line ArgMax and ArgMin name (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

namespace pipetrain::reduce {

/// Of each line of x (outer, size, inner).
struct ArgRule {
  std::int64_t outer = 1, size = 1, inner = 1;
  bool maximum = true;
  bool last = false;  // of equal elements; else the first
};

}  // namespace pipetrain::reduce
