#include "device/plugin.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "device/build_id.h"
#include "device/processes.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

/// A plugin, and what to say where there is none.
struct PluginFile {
  const char* name;
  const char* symbol;
  const char* support;
  const char* remedy;
};

constexpr PluginFile kCudaPlugin = {
    "libpipetrain_cuda.so", "pipetrain_plugin", "GPU support",
    "it is built where a CUDA toolkit is found (cmake -DPIPETRAIN_CUDA=/usr/local/cuda)"};
constexpr PluginFile kMpiPlugin = {"libpipetrain_mpi.so", "pipetrain_processes",
                                   "support for several processes",
                                   "it is built where MPI is found (Debian: libopenmpi-dev)"};

std::vector<fs::path> folders() {
  std::vector<fs::path> out;
  if (const char* path = std::getenv("PIPETRAIN_BACKEND_PATH"); path && *path) return {path};
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const fs::path folder = program.parent_path();
  return {folder, folder.parent_path() / "lib" / "pipetrain"};
}

fs::path find_plugin(const PluginFile& file) {
  std::string looked;
  for (const fs::path& folder : folders()) {
    std::error_code error;
    if (fs::exists(folder / file.name, error)) return folder / file.name;
    looked += (looked.empty() ? "" : " and ") + printable(folder.string());
  }
  PT_FAIL(kResource, "this build of pipetrain has no {}: there is no {} in {}; {}", file.support,
          file.name, looked, file.remedy);
}

/// What the plugin's symbol is: a struct that begins with the build that it belongs to.
template <class Entry>
const Entry& load(const PluginFile& file) {
  const fs::path path = find_plugin(file);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* reason = dlerror();
    PT_FAIL(kResource, "{} cannot be loaded: {}", printable(path.string()),
            printable(reason ? reason : "no reason is given"));
  }
  const auto* entry = static_cast<const Entry*>(dlsym(library, file.symbol));
  PT_CHECK(entry != nullptr, kResource, "{} is no plugin of pipetrain", printable(path.string()));
  PT_CHECK(std::string_view(entry->build_id) == kBuildId, kResource,
           "{} belongs to another build of pipetrain ({}, this is {}); build both together",
           printable(path.string()), printable(entry->build_id), kBuildId);
  return *entry;
}

}  // namespace

DevicePlugin& cuda_plugin() {
  static DevicePlugin& plugin = *load<PluginEntry>(kCudaPlugin).plugin();
  return plugin;
}

Processes* join_processes() {
  const int size = launch_of_environment().size;
  return size > 1 ? load<ProcessesEntry>(kMpiPlugin).join(size) : nullptr;
}

}  // namespace pipetrain
