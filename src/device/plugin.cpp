#include "device/plugin.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "device/build_id.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "libpipetrain_cuda.so";

std::vector<fs::path> folders() {
  std::vector<fs::path> out;
  if (const char* path = std::getenv("PIPETRAIN_BACKEND_PATH"); path && *path) return {path};
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const fs::path folder = program.parent_path();
  return {folder, folder.parent_path() / "lib" / "pipetrain"};
}

fs::path find_plugin() {
  std::string looked;
  for (const fs::path& folder : folders()) {
    std::error_code error;
    if (fs::exists(folder / kFile, error)) return folder / kFile;
    looked += (looked.empty() ? "" : " and ") + printable(folder.string());
  }
  PT_FAIL(kResource,
          "this build of pipetrain has no GPU support: there is no {} in {}; it is built where a CUDA "
          "toolkit is found (cmake -DPIPETRAIN_CUDA=/usr/local/cuda)",
          kFile, looked);
}

DevicePlugin& load() {
  const fs::path path = find_plugin();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* reason = dlerror();
    PT_FAIL(kResource, "{} cannot be loaded: {}", printable(path.string()),
            printable(reason ? reason : "no reason is given"));
  }
  const auto* entry = static_cast<const PluginEntry*>(dlsym(library, "pipetrain_plugin"));
  PT_CHECK(entry != nullptr, kResource, "{} is no plugin of pipetrain", printable(path.string()));
  PT_CHECK(std::string_view(entry->build_id) == kBuildId, kResource,
           "{} belongs to another build of pipetrain ({}, this is {}); build both together",
           printable(path.string()), printable(entry->build_id), kBuildId);
  return *entry->plugin();
}

}  // namespace

DevicePlugin& cuda_plugin() {
  static DevicePlugin& plugin = load();
  return plugin;
}

}  // namespace pipetrain
