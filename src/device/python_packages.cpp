#include "device/python_packages.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <string>

extern char** environ;

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

// -I leaves out PYTHONPATH and the user's own packages; what is safe of them is put back.
constexpr const char* kScript =
    "import os, site, sys\n"
    "folders = os.environ.get('PYTHONPATH', '').split(':') + sys.path\n"
    "if sys.prefix == sys.base_prefix: folders.append(site.getusersitepackages())\n"
    "print(*(f for f in folders if os.path.isabs(f)), sep='\\n')\n";

fs::path absolute_path(const char* variable) {
  const char* text = std::getenv(variable);
  const fs::path path = text ? text : "";
  return path.is_absolute() ? path : fs::path();
}

fs::path python_in(const fs::path& folder) {
  if (!folder.is_absolute()) return {};
  for (const char* name : {"python3", "python"}) {
    std::error_code error;
    if (fs::is_regular_file(folder / name, error) && access((folder / name).c_str(), X_OK) == 0)
      return folder / name;
  }
  return {};
}

fs::path python_on_path() {
  const char* text = std::getenv("PATH");
  std::istringstream folders(text ? text : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (fs::path python = python_in(folder); !python.empty()) return python;
  }
  return {};
}

/// What the script prints; empty where the Python cannot be started or fails.
std::string ask(const fs::path& python) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::string program = python.string(), isolated = "-I", command = "-c", script = kScript;
  std::array<char*, 5> arguments = {program.data(), isolated.data(), command.data(), script.data(),
                                    nullptr};
  pid_t process = 0;
  const int failed =
      posix_spawn(&process, program.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string answer;
  if (failed == 0) {
    std::array<char, 4096> bytes{};
    for (;;) {
      const ssize_t count = read(ends[0], bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) break;
      answer.append(bytes.data(), static_cast<std::size_t>(count));
    }
    int status = 0;
    while (waitpid(process, &status, 0) < 0 && errno == EINTR) continue;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) answer.clear();
  }
  close(ends[0]);
  return answer;
}

}  // namespace

std::vector<PythonPackages> python_packages() {
  std::vector<fs::path> programs;
  const fs::path environment = absolute_path("VIRTUAL_ENV");
  for (const fs::path& python : {python_in(environment / "bin"), python_on_path()}) {
    if (!python.empty() && std::find(programs.begin(), programs.end(), python) == programs.end())
      programs.push_back(python);
  }
  std::vector<PythonPackages> out;
  for (const fs::path& program : programs) {
    PythonPackages& packages = out.emplace_back(PythonPackages{program, {}});
    std::istringstream lines(ask(program));
    for (std::string line; std::getline(lines, line);) {
      if (fs::path(line).is_absolute()) packages.folders.emplace_back(line);
    }
  }
  return out;
}

}  // namespace pipetrain
