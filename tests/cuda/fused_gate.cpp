// NVRTC compiles the kernels of all fused programs of the test networks, for each GPU that the
// plugin is built for, without warnings and register spills.
//   fused_gate CAPABILITY...
#include <cstdio>
#include <stdexcept>
#include <string>

#include "base/error.h"
#include "cuda/nvrtc_cuda.h"
#include "support/zoo_chains.h"

namespace pipetrain {
namespace {

/// All kernels in one source, numbered: parsing the headers is the slowest part.
std::string all_in_one(const std::map<std::string, test::FusedChain>& chains) {
  std::string out;
  int number = 0;
  for (const auto& [source, chain] : chains) {
    const std::string name = std::to_string(number++);
    out += "#define fused fused_" + name + "\n#define element element_" + name + "\n" + source +
           "#undef fused\n#undef element\n";
  }
  return out;
}

int count(const std::string& text, const std::string& what) {
  int found = 0;
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; ++at) ++found;
  return found;
}

void check(const Nvrtc& nvrtc, const std::string& source, const std::string& capability,
           int kernels) {
  const char* const more[] = {"--ptxas-options=-v", "--ptxas-options=-warn-spills"};
  std::string log;
  const std::string cubin = nvrtc.compile(source, capability, more, &log);
  const int clean = count(log, " 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads");
  if (count(log, "Function properties for") != kernels || clean != kernels ||
      count(log, "warning") > 0)
    throw std::runtime_error("sm_" + capability + ": a kernel spills or has a warning\n" + log);
  if (cubin.substr(1, 3) != "ELF") throw std::runtime_error("no machine code");
  std::printf("sm_%s: %d kernels of fused programs, %zu bytes\n", capability.c_str(), kernels,
              cubin.size());
}

}  // namespace
}  // namespace pipetrain

int main(int count, char** arguments) {
  using namespace pipetrain;
  try {
    auto chains = test::all_chains(/*samples=*/8);
    test::add_by_source(test::random_chains(/*programs=*/2), chains);
    const std::string source = all_in_one(chains);
    const Nvrtc nvrtc;
    for (int i = 1; i < count; ++i) {
      check(nvrtc, source, arguments[i], static_cast<int>(chains.size()));
      // A kernel with register spills must be detected.
      bool refused = false;
      try {
        check(nvrtc,
              "extern \"C\" __global__ void __launch_bounds__(1024, 2) fused(float* x) {\n"
              "  float a[200];\n#pragma unroll\n  for (int i = 0; i < 200; ++i) a[i] = x[i];\n"
              "  __syncthreads();\n#pragma unroll\n"
              "  for (int i = 0; i < 200; ++i) x[i] = a[199 - i] * a[i / 2];\n}\n",
              arguments[i], 1);
      } catch (const std::runtime_error&) {
        refused = true;
      }
      if (!refused) throw std::runtime_error("a kernel that spills was taken");
    }
    std::string why;
    try {
      nvrtc.compile("__global__ void fused() { nothing; }", "90");
    } catch (const Error& error) {
      why = error.message();
    }
    if (why.find("identifier \"nothing\" is undefined") == std::string::npos)
      throw std::runtime_error("compiler messages: " + why);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
