#include "device/nvidia_libraries.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>

#include "base/error.h"
#include "device/python_packages.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

struct Entry {
  const char* name;
  const char* file;      // as the plugin is linked with it
  const char* variable;  // names the file instead; may be null
  const char* package;   // PyPI's
  std::string (*version)(void* handle);
};

template <class Function>
Function* function(void* handle, const char* name) {
  return reinterpret_cast<Function*>(dlsym(handle, name));
}

/// 91900 with a base of 100 and three parts: "9.19.0".
std::string version_text(std::size_t code, std::size_t base, int parts) {
  std::string text;
  for (; parts > 1; --parts, code /= base) text = fmt::format(".{}{}", code % base, text);
  return fmt::format("{}{}", code, text);
}

std::string runtime_version(void* handle) {
  const auto ask = function<int(int*)>(handle, "cudaRuntimeGetVersion");
  int code = 0;
  return ask && ask(&code) == 0 ? version_text(static_cast<std::size_t>(code) / 10, 100, 2) : "";
}

std::string cublas_version(void* handle) {
  const auto ask = function<std::size_t()>(handle, "cublasLtGetVersion");
  return ask ? version_text(ask(), 100, 3) : "";
}

std::string cudnn_version(void* handle) {
  const auto ask = function<std::size_t()>(handle, "cudnnGetVersion");
  return ask ? version_text(ask(), 100, 3) : "";
}

std::string nvrtc_version(void* handle) {
  const auto ask = function<int(int*, int*)>(handle, "nvrtcVersion");
  int major = 0, minor = 0;
  return ask && ask(&major, &minor) == 0 ? fmt::format("{}.{}", major, minor) : "";
}

std::string nccl_version(void* handle) {
  const auto ask = function<int(int*)>(handle, "ncclGetVersion");
  int code = 0;
  return ask && ask(&code) == 0 ? version_text(static_cast<std::size_t>(code), 100, 3) : "";
}

constexpr Entry kEntries[] = {
    {"CUDA runtime", "libcudart.so." PIPETRAIN_CUDA_MAJOR, nullptr, "nvidia-cuda-runtime",
     runtime_version},
    {"cuBLASLt", "libcublasLt.so." PIPETRAIN_CUDA_MAJOR, nullptr, "nvidia-cublas", cublas_version},
    {"cuDNN", "libcudnn.so." PIPETRAIN_CUDNN_MAJOR, nullptr, "nvidia-cudnn-cu" PIPETRAIN_CUDA_MAJOR,
     cudnn_version},
    {"NVRTC", "libnvrtc.so." PIPETRAIN_CUDA_MAJOR, "PIPETRAIN_NVRTC", "nvidia-cuda-nvrtc",
     nvrtc_version},
    {"NCCL", "libnccl.so.2", "PIPETRAIN_NCCL", "nvidia-nccl-cu" PIPETRAIN_CUDA_MAJOR, nccl_version},
};

/// A folder that may have libraries, and what it is.
struct Place {
  fs::path folder;
  std::string origin;
};

std::vector<Place> toolkit_places() {
  std::vector<Place> out;
  const auto add = [&](const fs::path& root) {
    if (!root.is_absolute()) return;
    for (const char* folder : {"lib64", "lib", "targets/x86_64-linux/lib"})
      out.push_back({root / folder, "the CUDA toolkit in " + printable(root.string())});
  };
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* root = std::getenv(variable)) add(root);
  }
  add("/usr/local/cuda");
  return out;
}

/// The folders `nvidia/*/lib` of packages.
std::vector<Place> wheel_places(const std::vector<PythonPackages>& pythons) {
  std::vector<Place> out;
  for (const PythonPackages& python : pythons) {
    for (const fs::path& packages : python.folders) {
      std::vector<fs::path> found;
      std::error_code error;
      for (const auto& entry : fs::directory_iterator(packages / "nvidia", error))
        found.push_back(entry.path() / "lib");
      std::sort(found.begin(), found.end());
      for (const fs::path& folder : found)
        out.push_back({folder, "the wheels of " + printable(python.program.string())});
    }
  }
  return out;
}

/// Sets handle, path and origin, or the problem.
bool open_library(FoundLibrary& library, const std::string& file, const std::string& origin) {
  library.handle = dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (!library.handle) {
    const char* reason = dlerror();
    if (!library.damaged) library.problem = printable(reason ? reason : file);
    return false;
  }
  link_map* map = nullptr;
  library.path = file;
  if (dlinfo(library.handle, RTLD_DI_LINKMAP, &map) == 0 && map) library.path = map->l_name;
  library.origin = origin;
  library.problem.clear();
  return true;
}

bool open_in(FoundLibrary& library, const std::vector<Place>& places) {
  return std::any_of(places.begin(), places.end(), [&](const Place& place) {
    const fs::path file = place.folder / library.file;
    std::error_code error;
    if (!fs::exists(file, error)) return false;
    const bool opened = open_library(library, file.string(), place.origin);
    library.damaged = !opened;
    return opened;
  });
}

class Libraries {
 public:
  /// From its folder, ignoring the variable.
  const FoundLibrary& find(NvidiaLibrary which) {
    const auto [place, added] = found_.try_emplace(which);
    if (added) look_for(entry(which), place->second);
    return place->second;
  }
  const FoundLibrary& take(NvidiaLibrary which) {
    const Entry& known = entry(which);
    const char* file = known.variable ? std::getenv(known.variable) : nullptr;
    if (!file || !*file) return find(which);
    const auto [place, added] = named_.try_emplace(which);
    if (added) {
      place->second.name = known.name;
      place->second.file = known.file;
      if (open_library(place->second, file, known.variable))
        place->second.version = known.version(place->second.handle);
    }
    return place->second;
  }

  std::mutex mutex;

 private:
  static const Entry& entry(NvidiaLibrary which) {
    return kEntries[static_cast<std::size_t>(which)];
  }

  void look_for(const Entry& known, FoundLibrary& library) {
    library.name = known.name;
    library.file = known.file;
    const fs::path folder = nvidia_folder();
    const bool found =
        (!folder.empty() && open_in(library, {{folder, "PIPETRAIN_CUDA_LIBRARIES"}})) ||
        open_library(library, known.file, "the system loader") ||
        open_in(library, toolkit_places()) || open_in(library, wheels());
    if (found) {
      library.version = known.version(library.handle);
      return;
    }
    if (library.damaged) return;
    library.problem = fmt::format(
        "cannot find {}: not known to the system loader, not in a CUDA toolkit, not among Python "
        "wheels; pip install {}, or set PIPETRAIN_CUDA_LIBRARIES to its folder",
        known.file, known.package);
  }

  /// The last resort, since it starts a Python.
  const std::vector<Place>& wheels() {
    if (!asked_) wheels_ = wheel_places(python_packages());
    asked_ = true;
    return wheels_;
  }

  std::map<NvidiaLibrary, FoundLibrary> found_, named_;
  bool asked_ = false;
  std::vector<Place> wheels_;
};

Libraries& libraries() {
  static auto* const libraries = new Libraries;
  return *libraries;
}

}  // namespace

const FoundLibrary& nvidia_library(NvidiaLibrary library) {
  const std::lock_guard lock(libraries().mutex);
  return libraries().take(library);
}

std::vector<FoundLibrary> nvidia_libraries() {
  std::vector<FoundLibrary> out;
  for (std::size_t l = 0; l < std::size(kEntries); ++l)
    out.push_back(nvidia_library(static_cast<NvidiaLibrary>(l)));
  return out;
}

std::string load_linked_nvidia_libraries() {
  const std::lock_guard lock(libraries().mutex);
  std::string problem;
  for (const NvidiaLibrary library : {NvidiaLibrary::kRuntime, NvidiaLibrary::kCublasLt,
                                      NvidiaLibrary::kCudnn, NvidiaLibrary::kNvrtc}) {
    const FoundLibrary& found = libraries().find(library);
    if (problem.empty()) problem = found.problem;
  }
  return problem;
}

fs::path nvidia_folder() {
  const char* text = std::getenv("PIPETRAIN_CUDA_LIBRARIES");
  if (!text || !*text) return {};
  std::error_code error;
  PT_CHECK(fs::is_directory(text, error), kUsage, "PIPETRAIN_CUDA_LIBRARIES: there is no folder {}",
           printable(text));
  return fs::absolute(text);
}

}  // namespace pipetrain
