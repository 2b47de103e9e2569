// The package folders of the user's Python installations.
#pragma once

#include <filesystem>
#include <vector>

namespace pipetrain {

struct PythonPackages {
  std::filesystem::path program;
  /// As reported by the interpreter, in its order.
  std::vector<std::filesystem::path> folders;
};

/// The Python of VIRTUAL_ENV and the first one on PATH. Both are started in isolated mode, so that
/// no code of the current folder runs. Relative paths in VIRTUAL_ENV, PATH and PYTHONPATH are
/// ignored. A Python that fails to start has no folders.
std::vector<PythonPackages> python_packages();

}  // namespace pipetrain
