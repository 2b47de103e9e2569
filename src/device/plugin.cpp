#include "device/plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/program_id.h"
#include "device/build_id.h"
#include "device/nvidia_libraries.h"
#include "processes/processes.h"

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

/// Empty when not found.
fs::path path_of(const PluginFile& file) {
  for (const fs::path& folder : folders()) {
    std::error_code error;
    if (fs::exists(folder / file.name, error)) return folder / file.name;
  }
  return {};
}

fs::path find_plugin(const PluginFile& file) {
  if (fs::path path = path_of(file); !path.empty()) return path;
  std::string looked;
  for (const fs::path& folder : folders())
    looked += (looked.empty() ? "" : " and ") + printable(folder.string());
  PT_FAIL(kResource, "this build of pipetrain has no {}: there is no {} in {}; {}", file.support,
          file.name, looked, file.remedy);
}

/// Opens a plugin, or says why that is not possible.
void* open_plugin(const fs::path& path, std::string& problem) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* reason = library ? "" : dlerror();
  problem = printable(reason ? reason : "no reason is given");
  return library;
}

/// Opens the MPI plugin, which has a function that goes before Open MPI's of the same name.
void* open_mpi_plugin(const fs::path& path, std::string& problem) {
  void* library = open_plugin(path, problem);
  if (library) dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
  return library;
}

/// Opens the GPU plugin. Its libraries are loaded first when the system loader does not find them
/// or PIPETRAIN_CUDA_LIBRARIES names others.
void* open_cuda_plugin(const fs::path& path, std::string& problem) {
  if (nvidia_folder().empty()) {
    void* library = open_plugin(path, problem);
    if (library || problem.starts_with(printable(path.string()))) return library;
    // Without a driver the libraries are of no use.
    PT_CHECK(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr, kResource,
             "no driver for NVIDIA GPUs was found");
  }
  const std::string missing = load_linked_nvidia_libraries();
  void* library = open_plugin(path, problem);
  if (!missing.empty()) problem = missing;
  return library;
}

/// What the plugin's symbol is: a struct that begins with the build that it belongs to.
template <class Entry>
const Entry& load(const PluginFile& file,
                  void* (*open)(const fs::path&, std::string&) = open_plugin) {
  const fs::path path = find_plugin(file);
  std::string problem;
  void* library = open(path, problem);
  PT_CHECK(library != nullptr, kResource, "{} cannot be loaded: {}", printable(path.string()),
           problem);
  const auto* entry = static_cast<const Entry*>(dlsym(library, file.symbol));
  PT_CHECK(entry != nullptr, kResource, "{} is not a pipetrain plugin", printable(path.string()));
  PT_CHECK(std::string_view(entry->build_id) == kBuildId, kResource,
           "{} belongs to another build of pipetrain ({}, this is {}); build both together",
           printable(path.string()), printable(entry->build_id), kBuildId);
  return *entry;
}

}  // namespace

std::string_view build_id() {
  static const std::string id = fmt::format("{}-{}", kBuildId, program_id().substr(0, 12));
  return id;
}

DevicePlugin& cuda_plugin() {
  static DevicePlugin& plugin = *load<PluginEntry>(kCudaPlugin, open_cuda_plugin).plugin();
  return plugin;
}

bool has_cuda_plugin() { return !path_of(kCudaPlugin).empty(); }

Processes* join_processes() {
  // A torchrun below mpirun or srun starts several processes in each of their tasks.
  if (std::getenv("TORCHELASTIC_RUN_ID")) refuse_unconnected_launchers();
  const Launch launch = launch_of_environment();
  if (launch.size > 1) return load<ProcessesEntry>(kMpiPlugin, open_mpi_plugin).join(launch.size);
  // What mpirun or srun has started belongs to no other launcher, even if it is a single process.
  if (launch.launcher.empty()) refuse_unconnected_launchers();
  return nullptr;
}

}  // namespace pipetrain
