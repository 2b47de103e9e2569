// Finds the NVIDIA libraries that the GPU plugin is linked with. pipetrain does not ship them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace pipetrain {

enum class NvidiaLibrary { kRuntime, kCublasLt, kCudnn, kNvrtc, kNccl };

struct FoundLibrary {
  std::string name;        // "cuDNN"
  std::string file;        // "libcudnn.so.9"
  void* handle = nullptr;  // null where it was not found
  std::string path;
  std::string origin;    // "the system loader", "the wheels of /usr/bin/python3"
  std::string version;   // "9.19.0"
  std::string problem;   // why it was not found, and what to do; otherwise empty
  bool damaged = false;  // a file exists but cannot be loaded
};

/// Loads a library from the file that PIPETRAIN_NVRTC or PIPETRAIN_NCCL names, or from the first of
/// these that has it: nvidia_folder(), the system loader, a CUDA toolkit (CUDA_HOME, CUDA_PATH,
/// /usr/local/cuda), the nvidia-* wheels of python_packages(). Searched once, never unloaded. Calls
/// may come from several threads.
const FoundLibrary& nvidia_library(NvidiaLibrary library);

/// All of them, in the order of the enumeration.
std::vector<FoundLibrary> nvidia_libraries();

/// Loads the libraries that the plugin is linked with from the same places, ignoring the variables,
/// so that the dynamic loader uses these. Returns the problem of the first missing one, or an empty
/// text.
std::string load_linked_nvidia_libraries();

/// Where to look first: PIPETRAIN_CUDA_LIBRARIES, or empty. Error (kUsage) when it is no folder.
std::filesystem::path nvidia_folder();

}  // namespace pipetrain
