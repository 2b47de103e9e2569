// How the plugin comes to plans of cuDNN, on GPUs and a cuDNN that are not there (fake_gpus.cpp,
// fake_cudnn.cpp): equal nodes share a plan, a later stream has those of an earlier one, and what
// the library has no plan for runs on the CPU.
#include <dlfcn.h>

#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "device/plugin.h"
#include "gate_check.h"
#include "graph/op.h"
#include "ops/host_kernel.h"
#include "ops/kernel.h"
#include "ops/registry.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

/// A 3x3 convolution of so many channels.
struct Convolution {
  explicit Convolution(std::int64_t channels, const char* name = "conv") {
    node.op = find_op("Conv");
    node.name = name;
    node.attributes = {{"pads", Ints{1, 1, 1, 1}}};
    x = {DType::kFloat32, Shape{2, channels, 8, 8}};
    w = {DType::kFloat32, Shape{channels, channels, 3, 3}};
  }
  KernelRequest request() const { return {node, {x, w}, {x}}; }

  Node node;
  TensorType x, w;
};

void run(Kernel& kernel, Device& device, const Convolution& convolution) {
  const DeviceMemory x = device.allocate(convolution.x.bytes()),
                     w = device.allocate(convolution.w.bytes()),
                     y = device.allocate(convolution.x.bytes()),
                     workspace = device.allocate(kernel.workspace_bytes() + 1);
  const Tensor in[] = {{convolution.x, x.data()}, {convolution.w, w.data()}};
  const Tensor out[] = {{convolution.x, y.data()}};
  RunContext context;
  context.workspace = workspace.data();
  kernel.run(in, out, context);
}

void run_all(const std::filesystem::path& folder) {
  const auto told = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "fake_cudnn_events"));
  const auto offers = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "fake_cudnn_offers"));
  check(told && offers, "the fakes are not there");
  const auto expect = [&](const std::string& wanted, const std::string& where) {
    const std::string words = told();
    check(words == wanted, where + ": " + words);
  };
  copy_log_to(folder / "log");
  Device& device = cuda_plugin().open(0);
  const Convolution eight(8), sixteen(16);
  // Two equal nodes and another one, as a profile meets them.
  for (const char* wanted : {"plan\nplan\n", "", ""}) {
    const auto stream = device.make_stream();
    const auto first = device.make_kernel(*stream, eight.request()),
               equal = device.make_kernel(*stream, eight.request()),
               other = device.make_kernel(*stream, sixteen.request());
    check(first && equal && other, "there is no kernel");
    expect(wanted, "three kernels");
    run(*first, device, eight);
    run(*equal, device, eight);
    run(*other, device, sixteen);
    expect("run\nrun\nrun\n", "three runs");
  }
  // Streams that are there at once have handles of their own, and so plans.
  {
    const auto one = device.make_stream(), two = device.make_stream();
    const auto known = device.make_kernel(*one, eight.request());
    expect("", "the first of two streams");
    const auto fresh = device.make_kernel(*two, eight.request());
    expect("plan\n", "the second of two streams");
    run(*known, device, eight);
    run(*fresh, device, eight);
    expect("run\nrun\n", "a run of each stream");
  }
  // The last streams had no sixteen channels.
  {
    const auto one = device.make_stream(), two = device.make_stream();
    const auto first = device.make_kernel(*one, sixteen.request()),
               second = device.make_kernel(*two, sixteen.request());
    expect("plan\nplan\n", "what no stream has kept");
  }
  check(get_file(folder / "log").empty(), get_file(folder / "log"));

  offers(0);
  const Convolution refused(24, "layer1/conv");
  const auto stream = device.make_stream();
  check(!device.make_kernel(*stream, refused.request()), "a kernel without a plan");
  const auto host = make_kernel(*stream, refused.request());
  run(*host, device, refused);
  expect("", "on the host");
  const std::string words = get_file(folder / "log");
  check(words.find("warning: layer1/conv (Conv) runs on the CPU, since cuDNN has no plan for it: "
                   "No valid engine configs for ") != std::string::npos,
        words);
  check(words.find('\n') == words.size() - 1, "said more than once: " + words);
}

}  // namespace
}  // namespace pipetrain

int main() {
  try {
    const pipetrain::TemporaryDirectory folder;
    setenv("PIPETRAIN_CACHE_DIR", folder.path().c_str(), 1);
    pipetrain::run_all(folder.path());
    std::printf("plans of libraries: %d checks\n", pipetrain::checks);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
