#include "profile/machine.h"

#include <dnnl.h>
#include <fmt/core.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <optional>
#include <sstream>

#include "base/input_file.h"

namespace pipetrain {

std::string processor_name() {
  std::istringstream in(read_if_file("/proc/cpuinfo", std::size_t{16} << 20).value_or(""));
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

std::string machine_id() {
  const std::optional<std::string> boot = read_if_file("/proc/sys/kernel/random/boot_id", 64);
  if (boot && !boot->empty()) return *boot;
  char name[HOST_NAME_MAX + 1] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

std::string cores_text() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {};
  std::string text;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) text += fmt::format("{},", core);
  }
  return text;
}

std::string build_name() {
  const dnnl_version_t* dnnl = dnnl_version();
  struct stat executable {};
  if (::stat("/proc/self/exe", &executable) != 0) executable = {};
  return fmt::format("pipetrain {} ({} bytes, {}), oneDNN {}.{}.{}", PIPETRAIN_VERSION,
                     executable.st_size, executable.st_mtime, dnnl->major, dnnl->minor,
                     dnnl->patch);
}

}  // namespace pipetrain
