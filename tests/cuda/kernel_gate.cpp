// How the plugin comes to a kernel for a fused program, on a GPU that is not there (fake_gpus.cpp):
// by NVRTC, from the cache, or without.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "device/plugin.h"
#include "graph/op.h"
#include "ops/fused.h"
#include "ops/kernel.h"
#include "ops/registry.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

int checks = 0;
void check(bool right, const std::string& what) {
  ++checks;
  if (!right) throw std::runtime_error(what);
}

/// Makes and runs a kernel; what the GPU was asked to start.
std::string started(Device& device) {
  const auto told = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "fake_launches"));
  check(told != nullptr, "the fakes are not there");
  told();
  FusedProgram program;
  program.steps = {{"Add", {0, 1}, {}}, {"Tanh", {2}, {}}};
  program.results = {1};
  Node node;
  node.op = find_op("Fused");
  node.attributes = fused_attributes(program);
  node.name = "chain";
  const TensorType type{DType::kFloat32, Shape{40, 64}};
  const KernelRequest request{node, {type, {DType::kFloat32, Shape{64}}}, {type}};
  const auto stream = device.make_stream();
  const std::unique_ptr<Kernel> kernel = device.make_kernel(*stream, request);
  check(kernel != nullptr, "there is no kernel");
  const DeviceMemory x = device.allocate(type.bytes()), row = device.allocate(256),
                     y = device.allocate(type.bytes()),
                     workspace = device.allocate(kernel->workspace_bytes());
  const Tensor in[] = {{request.inputs[0], x.data()}, {request.inputs[1], row.data()}};
  const Tensor out[] = {{type, y.data()}};
  RunContext context;
  context.workspace = workspace.data();
  kernel->run(in, out, context);
  return told();
}

void run_all(const std::filesystem::path& folder) {
  DevicePlugin& plugin = cuda_plugin();
  const std::filesystem::path log = folder / "log", kernels = folder / "kernels";
  copy_log_to(log);
  // 320 groups of eight elements in blocks of 256.
  const std::string one = "compiled fused (2 x 256)\n";
  const std::string first = started(plugin.open(0));
  check(first == one, "a compiled kernel: " + first);
  check(get_file(log).empty(), get_file(log));

  std::filesystem::path cubin;
  for (const auto& entry : std::filesystem::directory_iterator(kernels)) cubin = entry.path();
  const std::string kept = get_file(cubin);
  check(kept.size() > 1000 && kept.substr(64, 4) == "\177ELF", "the cache has no machine code");
  // Another GPU of the kind needs no compiler, unless what is kept is damaged.
  const auto made = std::filesystem::last_write_time(cubin);
  std::ofstream(cubin, std::ios::app) << "damaged";
  check(started(plugin.open(1)) == one, "a kernel beside a damaged one");
  check(get_file(cubin) == kept && std::filesystem::last_write_time(cubin) > made,
        "the damaged kernel was not replaced");
  check(get_file(log).empty(), get_file(log));
}

/// What there is without NVRTC, and what is said.
void run_without(const std::filesystem::path& folder) {
  DevicePlugin& plugin = cuda_plugin();
  copy_log_to(folder / "log");
  const std::string two = "own kernel\nown kernel\n";
  const std::string first = started(plugin.open(0));
  check(first == two, "node by node: " + first);
  check(started(plugin.open(0)) == two && started(plugin.open(1)) == two, "node by node");
  const std::string words = get_file(folder / "log");
  check(words.find("warning: element-wise chains run node by node: NVRTC cannot be loaded "
                   "(/nothing: cannot open shared object file") != std::string::npos,
        words);
  check(words.find('\n') == words.size() - 1, "said more than once: " + words);
}

}  // namespace
}  // namespace pipetrain

int main(int count, char** arguments) {
  try {
    const pipetrain::TemporaryDirectory folder;
    setenv("PIPETRAIN_CACHE_DIR", folder.path().c_str(), 1);
    if (count > 1 && std::string(arguments[1]) == "without") {
      setenv("PIPETRAIN_NVRTC", "/nothing", 1);
      pipetrain::run_without(folder.path());
    } else {
      pipetrain::run_all(folder.path());
    }
    std::printf("kernels of fused programs: %d checks\n", pipetrain::checks);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
