// Results go to stdout, everything else to stderr.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <initializer_list>
#include <string>
#include <utility>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/safe_text.h"

namespace pipetrain {

/// What came from files is made safe for terminals, which no other code needs to think of.
inline void print(const std::string& result) { std::fputs(safe_text(result).c_str(), stdout); }
/// A drawing of this program, with colours.
inline void print_colored(const std::string& drawing) {
  std::fputs(safe_colored_text(drawing).c_str(), stdout);
}

/// A result that programs read: unchanged, except on a terminal.
inline void print_data(const std::string& result) {
  isatty(STDOUT_FILENO) != 0 ? print(result) : void(std::fputs(result.c_str(), stdout));
}

/// Writes a result to a file, or to stdout where `path` is "-".
inline void write_or_print(const std::string& path, const std::string& result) {
  path == "-" ? print_data(result) : write_file(path, result);
}

/// Error (kUsage) where more than one of these options prints to standard output.
inline void check_one_prints(std::initializer_list<std::pair<const char*, bool>> options) {
  const char* first = nullptr;
  for (const auto& [name, prints] : options) {
    if (!prints) continue;
    PT_CHECK(!first, kUsage, "{} and {} cannot share standard output", first, name);
    first = name;
  }
}

}  // namespace pipetrain
