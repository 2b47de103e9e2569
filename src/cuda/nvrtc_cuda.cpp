#include "cuda/nvrtc_cuda.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <nvrtc.h>

#include <cstdlib>
#include <iterator>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "device/nvidia_libraries.h"

namespace pipetrain {

struct Nvrtc::Functions {
  decltype(&nvrtcVersion) version;
  decltype(&nvrtcCreateProgram) create;
  decltype(&nvrtcDestroyProgram) destroy;
  decltype(&nvrtcCompileProgram) compile;
  decltype(&nvrtcGetProgramLogSize) log_size;
  decltype(&nvrtcGetProgramLog) log;
  decltype(&nvrtcGetCUBINSize) cubin_size;
  decltype(&nvrtcGetCUBIN) cubin;
  decltype(&nvrtcGetErrorString) error_string;
};

namespace {

struct Header {
  const char* name;
  const char* text;
};

/// The headers of kernels, embedded at build time (cmake/cuda.cmake).
constexpr Header kHeaders[] = {
#include "kernel_headers.inc"
};

// No fused multiply-add contraction, here and where nvcc compiles the element-wise kernels, so that
// both give the same bits.
constexpr const char* kOptions[] = {"-std=c++17", "-default-device", "--fmad=false"};

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  PT_CHECK(function != nullptr, kResource, "the NVRTC that was found has no {}", name);
}

}  // namespace

Nvrtc::Nvrtc() {
  const FoundLibrary& found = nvidia_library(NvidiaLibrary::kNvrtc);
  void* library = found.handle;
  // The plugin is linked with NVRTC: without it, the plugin is not loaded.
  const char* const named = std::getenv("PIPETRAIN_NVRTC");
  PT_CHECK(library != nullptr, kResource, "NVRTC cannot be loaded ({}){}", found.problem,
           named && *named ? "; without PIPETRAIN_NVRTC, that of the GPU plugin is used" : "");
  auto functions = std::make_shared<Functions>();
  find(library, "nvrtcVersion", functions->version);
  find(library, "nvrtcCreateProgram", functions->create);
  find(library, "nvrtcDestroyProgram", functions->destroy);
  find(library, "nvrtcCompileProgram", functions->compile);
  find(library, "nvrtcGetProgramLogSize", functions->log_size);
  find(library, "nvrtcGetProgramLog", functions->log);
  find(library, "nvrtcGetCUBINSize", functions->cubin_size);
  find(library, "nvrtcGetCUBIN", functions->cubin);
  find(library, "nvrtcGetErrorString", functions->error_string);
  int major = 0, minor = 0;
  functions->version(&major, &minor);
  version_ = fmt::format("{}.{}", major, minor);
  functions_ = std::move(functions);
}

std::string Nvrtc::compile(const std::string& source, const std::string& capability,
                           std::span<const char* const> more_options, std::string* log) const {
  std::vector<const char*> texts, names;
  for (const Header& header : kHeaders) {
    texts.push_back(header.text);
    names.push_back(header.name);
  }
  nvrtcProgram program = nullptr;
  const auto check = [&](nvrtcResult result, const char* what) {
    if (result == NVRTC_SUCCESS) return;
    if (program) functions_->destroy(&program);
    PT_FAIL(kDevice, "NVRTC {} failed {}: {}", version_, what, functions_->error_string(result));
  };
  check(functions_->create(&program, source.c_str(), "kernel.cu", static_cast<int>(names.size()),
                           texts.data(), names.data()),
        "to take a source");
  const std::string architecture = "--gpu-architecture=sm_" + capability;
  std::vector<const char*> options(std::begin(kOptions), std::end(kOptions));
  options.push_back(architecture.c_str());
  options.insert(options.end(), more_options.begin(), more_options.end());
  const nvrtcResult result =
      functions_->compile(program, static_cast<int>(options.size()), options.data());
  std::size_t size = 0;
  check(functions_->log_size(program, &size), "to tell what it said");
  std::string words(size, '\0');
  check(functions_->log(program, words.data()), "to tell what it said");
  words.resize(words.find('\0') == std::string::npos ? words.size() : words.find('\0'));
  if (log) *log = words;
  if (result != NVRTC_SUCCESS) {
    const std::string first = words.substr(0, words.find('\n', words.find("error")));
    check(result, ("to compile a kernel (" + printable(first) + ")").c_str());
  }
  check(functions_->cubin_size(program, &size), "to give a kernel");
  std::string cubin(size, '\0');
  check(functions_->cubin(program, cubin.data()), "to give a kernel");
  functions_->destroy(&program);
  return cubin;
}

std::string Nvrtc::fingerprint() const {
  Sha256 hash;
  hash.add(version_);
  for (const char* option : kOptions) hash.add(option);
  for (const Header& header : kHeaders) {
    hash.add(header.name);
    hash.add(header.text);
  }
  return hash.digest();
}

}  // namespace pipetrain
