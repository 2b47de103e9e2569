// Results go to stdout, everything else to stderr.
#pragma once

#include <cstdio>
#include <string>

#include "base/atomic_file.h"

namespace pipetrain {

inline void print(const std::string& result) { std::fputs(result.c_str(), stdout); }

/// Writes a result to a file, or to stdout where `path` is "-".
inline void write_or_print(const std::string& path, const std::string& result) {
  path == "-" ? print(result) : write_file(path, result);
}

}  // namespace pipetrain
