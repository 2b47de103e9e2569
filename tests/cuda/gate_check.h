// Counts the checks of a gate, which exits at the first failure.
#pragma once

#include <stdexcept>
#include <string>

namespace pipetrain {

inline int checks = 0;

inline void check(bool right, const std::string& what) {
  ++checks;
  if (!right) throw std::runtime_error(what);
}

}  // namespace pipetrain
