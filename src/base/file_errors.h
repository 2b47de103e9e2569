// What the standard library's file system refuses, as an error of the project.
#pragma once

#include <filesystem>
#include <utility>

#include "base/error.h"

namespace pipetrain {

/// Runs `body`; a filesystem_error that leaves it becomes an Error (kResource) that names the path.
template <class Body>
decltype(auto) with_file_errors(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::filesystem::filesystem_error& error) {
    PT_FAIL(kResource, "cannot access \"{}\": {}", printable(error.path1().string()),
            error.code().message());
  }
}

}  // namespace pipetrain
