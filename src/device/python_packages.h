// Where the Pythons that a user works with keep their packages.
#pragma once

#include <filesystem>
#include <vector>

namespace pipetrain {

struct PythonPackages {
  std::filesystem::path program;
  /// As the Python itself says, in its order.
  std::vector<std::filesystem::path> folders;
};

/// Those of the Python in VIRTUAL_ENV and of the first on PATH. Both are started, in isolated mode,
/// so that nothing of the current folder is run; what is not an absolute path is left out of
/// VIRTUAL_ENV, PATH and PYTHONPATH. One that does not answer has no folders.
std::vector<PythonPackages> python_packages();

}  // namespace pipetrain
