// What readers of documents may and must do.
#pragma once

#include <stdexcept>

#include "base/error.h"

namespace pipetrain::fuzz {

/// Runs a reader, which may refuse its input with an error of one kind.
template <class Read>
void refusing(ErrorKind kind, Read&& read) {
  try {
    read();
  } catch (const Error& error) {
    if (error.kind() != kind) throw;
  }
}

inline void expect(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

}  // namespace pipetrain::fuzz
