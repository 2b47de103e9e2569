// NVIDIA's libraries, which the plugin for GPUs is linked with and which do not come with
// pipetrain: where they are on this machine, and which versions.
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
  std::string origin;    // "the system's loader", "the wheels of /usr/bin/python3"
  std::string version;   // "9.19.0"
  std::string problem;   // why it was not found, and what to do; otherwise empty
  bool damaged = false;  // there is a file, which cannot be loaded
};

/// Loads a library from the file that PIPETRAIN_NVRTC or PIPETRAIN_NCCL names, or from the first of
/// these that has it: nvidia_folder(), the system's loader, a CUDA toolkit
/// (CUDA_HOME, CUDA_PATH, /usr/local/cuda), the nvidia-* wheels of python_packages(). Looked for
/// once, never unloaded. Calls may come from several threads.
const FoundLibrary& nvidia_library(NvidiaLibrary library);

/// All of them, in the order of the enumeration.
std::vector<FoundLibrary> nvidia_libraries();

/// Loads, from the same places but whatever the variables say, those that the plugin is linked
/// with, so that the loader takes these for it. What is wrong with the first that is missing, or
/// an empty text.
std::string load_linked_nvidia_libraries();

/// Where to look first: PIPETRAIN_CUDA_LIBRARIES, or empty. Error (kUsage) when it is no folder.
std::filesystem::path nvidia_folder();

}  // namespace pipetrain
