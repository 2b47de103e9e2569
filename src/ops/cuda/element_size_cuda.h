// Dispatch on the element size, for .cu files.
#pragma once

#include <cstdint>

namespace pipetrain {

/// Calls run(T()) with a type of `size` bytes.
template <class Run>
void with_size(int size, const Run& run) {
  if (size == 1) run(std::uint8_t());
  if (size == 2) run(std::uint16_t());
  if (size == 4) run(std::uint32_t());
  if (size == 8) run(std::uint64_t());
}

}  // namespace pipetrain
