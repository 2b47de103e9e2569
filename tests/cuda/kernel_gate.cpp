// The plugin on fake GPUs (fake_gpus.cpp): how it gets the kernel of a fused program, from NVRTC,
// from the cache, or without NVRTC; and how a stage's work is captured in CUDA graphs.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "device/plugin.h"
#include "gate_check.h"
#include "graph/op.h"
#include "ops/fused/fused.h"
#include "ops/kernel/kernel.h"
#include "ops/registry/registry.h"
#include "pipeline/stage/stage_recordings.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

/// Makes and runs a kernel of two steps; returns the launches on the GPU.
std::string started(Device& device, const char* second_step = "Tanh") {
  const auto told = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "fake_launches"));
  check(told != nullptr, "the fakes are not loaded");
  told();
  FusedProgram program;
  program.steps = {{"Add", {0, 1}, {}}, {second_step, {2}, {}}};
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

/// The clock of the fakes: 1 ms per event, 5 ms per kernel.
void check_times(Device& device) {
  const auto stream = device.make_stream();
  const auto before = device.make_timed_point(), after = device.make_timed_point();
  const DeviceMemory memory = device.allocate(8);
  auto* data = reinterpret_cast<float*>(memory.data());
  const auto close = [](double seconds, double wanted) {
    return seconds > wanted - 1e-6 && seconds < wanted + 1e-6;
  };
  for (const int kernels : {1, 3}) {
    stream->record(*before);
    for (int k = 0; k < kernels; ++k) device.add(*stream, data, data + 1, 1);
    stream->record(*after);
    after->synchronize();
    const double seconds = after->seconds_since(*before);
    check(close(seconds, 1e-3 + 5e-3 * kernels), std::to_string(seconds) + " seconds");
  }
  // Points that only order work record no time, which is cheaper.
  const auto plain = device.make_point();
  stream->record(*plain);
  try {
    after->seconds_since(static_cast<const TimedPoint&>(*plain));
    check(false, "a point without a time tells it");
  } catch (const Error& error) {
    check(error.message().find("telling the time") != std::string::npos, error.message());
  }
  check(device.make().find("fake A x 4, driver ") == 0 &&
            device.make().find(", cuDNN ") != std::string::npos,
        device.make());
  check(device.reaches(device) && !device.reaches(cuda_plugin().open(1)), "who reaches whom");
}

void set_fake(const char* name, int on) {
  const auto fake = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, name));
  check(fake != nullptr, "the fakes are not loaded");
  fake(on);
}

/// The runtime remembers the last error of a thread: one that is harmless or already reported must
/// not fail the next launch.
void check_last_errors(Device& device) {
  const auto stream = device.make_stream();
  const auto point = device.make_point(), other = device.make_point();
  const DeviceMemory memory = device.allocate(8);
  auto* data = reinterpret_cast<float*>(memory.data());
  stream->record(*point);
  set_fake("fake_busy", 1);
  check(!point->reached(), "a point is reached early");
  set_fake("fake_busy", 0);
  device.add(*stream, data, data + 1, 1);
  check(point->reached(), "a point is not reached");
  try {
    static_cast<TimedPoint&>(*point).seconds_since(static_cast<const TimedPoint&>(*other));
    check(false, "a point without a time tells it");
  } catch (const Error&) {
    device.add(*stream, data, data + 1, 1);
  }
}

/// A thread that has not used the GPU frees its memory, without initialising another GPU.
void check_giving_back(Device& device) {
  DeviceMemory memory = device.allocate(8);
  std::thread([&] { memory = DeviceMemory(); }).join();
  const auto told = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "fake_launches"));
  const std::string words = told();
  check(words.find("on no GPU") == std::string::npos, words);
}

/// Memory is zeroed without waiting for other streams, which may be busy, wait for another NCCL
/// rank, or be capturing.
void check_memory(Device& device) {
  const auto told = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "fake_launches"));
  check(told != nullptr, "the fakes are not loaded");
  told();
  const DeviceMemory memory = device.allocate(1000);
  const std::string words = told();
  check(words.empty(), "memory waits for " + words);
  for (std::size_t i = 0; i < memory.bytes(); ++i)
    check(memory.data()[i] == std::byte{0}, "memory is not zeroed");
}

void run_all(const std::filesystem::path& folder) {
  DevicePlugin& plugin = cuda_plugin();
  check_memory(plugin.open(0));
  check_times(plugin.open(0));
  check_last_errors(plugin.open(0));
  check_giving_back(plugin.open(0));
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
  // Another GPU of the same model uses the cache, unless the cached code is damaged.
  const auto made = std::filesystem::last_write_time(cubin);
  std::ofstream(cubin, std::ios::app) << "damaged";
  check(started(plugin.open(1)) == one, "a kernel beside a damaged one");
  check(get_file(cubin) == kept && std::filesystem::last_write_time(cubin) > made,
        "the damaged kernel was not replaced");
  check(get_file(log).empty(), get_file(log));

  // A kernel that cannot be loaded does not affect others.
  const auto fail =
      reinterpret_cast<void (*)(const char*)>(dlsym(RTLD_DEFAULT, "fake_failing_call"));
  check(fail != nullptr, "the fakes are not loaded");
  const std::string steps = "hand-written kernel\nhand-written kernel\n";
  fail("load");
  check(started(plugin.open(0), "Sigmoid") == steps, "a kernel that cannot be loaded");
  fail("");
  check(started(plugin.open(0), "Sigmoid") == steps, "a kernel that could not be loaded");
  check(started(plugin.open(0), "Sqrt") == one, "a kernel after one that could not be loaded");
  check(started(plugin.open(0)) == one, "a kernel from before");
  const std::string words = get_file(log);
  check(words.find("warning: chain runs as one kernel per operator: the GPU failed to load a "
                   "kernel: ") != std::string::npos,
        words);
  check(words.find('\n') == words.size() - 1, "said more than once: " + words);
}

/// The fallback and the warning without NVRTC.
void run_without(const std::filesystem::path& folder) {
  DevicePlugin& plugin = cuda_plugin();
  copy_log_to(folder / "log");
  const std::string two = "hand-written kernel\nhand-written kernel\n";
  const std::string first = started(plugin.open(0));
  check(first == two, "node by node: " + first);
  check(started(plugin.open(0)) == two && started(plugin.open(1)) == two, "node by node");
  const std::string words = get_file(folder / "log");
  check(words.find("warning: element-wise chains run node by node: NVRTC cannot be loaded "
                   "(/nothing: cannot open shared object file") != std::string::npos,
        words);
  check(
      words.find("; without PIPETRAIN_NVRTC, that of the GPU plugin is used") != std::string::npos,
      words);
  check(words.find('\n') == words.size() - 1, "said more than once: " + words);
}

/// A product with a bias and a Gelu, with and without kernels of cuBLASLt (fake_cublaslt.cpp).
void run_products(const std::filesystem::path& folder) {
  copy_log_to(folder / "log");
  const auto products =
      reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "fake_cublaslt_events"));
  const auto kernels = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "fake_launches"));
  check(products && kernels, "the fakes are not loaded");
  Device& device = cuda_plugin().open(0);
  const auto stream = device.make_stream();
  Node node;
  node.op = find_op("MatMulActivation");
  node.name = "layer1";
  node.attributes = {{"activation", std::string("Gelu")}, {"approximate", std::string("tanh")}};
  const TensorType x{DType::kFloat32, Shape{8, 16}}, w{DType::kFloat32, Shape{16, 32}},
      bias{DType::kFloat32, Shape{32}}, y{DType::kFloat32, Shape{8, 32}};
  const KernelRequest request{node, {x, w, bias}, {y}};
  const DeviceMemory memory = device.allocate(8192);
  const auto expect = [&](const std::string& product, const std::string& own) {
    const auto kernel = device.make_kernel(*stream, request);
    check(kernel != nullptr, "there is no kernel");
    const DeviceMemory workspace = device.allocate(kernel->workspace_bytes() + 1);
    kernels();
    RunContext context;
    context.workspace = workspace.data();
    const Tensor in[] = {{x, memory.data()}, {w, memory.data()}, {bias, memory.data()}};
    const Tensor out[] = {{y, memory.data()}};
    kernel->run(in, out, context);
    const std::string words = products() + std::string(kernels());
    check(words == product + own, words);
  };
  set_fake("fake_cublaslt_has", -1);  // CUBLASLT_EPILOGUE_DEFAULT, …_BIAS and …_GELU_BIAS:
  set_fake("fake_cublaslt_has", 1);
  expect("epilogue 1\n", "hand-written kernel\nhand-written kernel\n");
  set_fake("fake_cublaslt_has", 4);
  expect("epilogue 4\n", "hand-written kernel\n");
  set_fake("fake_cublaslt_has", 36);
  expect("epilogue 36\n", "");
  check(get_file(folder / "log").empty(), get_file(folder / "log"));
  set_fake("fake_cublaslt_has", -1);
  check(!device.make_kernel(*stream, request), "a kernel that is not there");
  const std::string words = get_file(folder / "log");
  check(words.find("warning: layer1 runs without cuBLASLt, which has no kernel for a product of 8 "
                   "x 32 x 16") != std::string::npos,
        words);
}

/// Opened GPUs get peer access; GPUs that are not opened are not initialised.
void run_peers() {
  set_fake("fake_peers", 1);
  const auto told = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "fake_launches"));
  Device& first = cuda_plugin().open(0);
  std::string words = told();
  check(words.empty(), "with one GPU open: " + words);
  Device& second = cuda_plugin().open(1);
  words = told();
  check(words == "1 uses memory of 0\n0 uses memory of 1\n", "with both open: " + words);
  cuda_plugin().open(1);
  check(std::string(told()).empty(), "opened again");
  check(first.reaches(second) && second.reaches(first), "GPUs do not reach each other");
}

/// Peer access that the driver announces and then refuses is not used, and that is said.
void run_refused_peers(const std::filesystem::path& folder) {
  copy_log_to(folder / "log");
  set_fake("fake_peers", 1);
  const auto fail =
      reinterpret_cast<void (*)(const char*)>(dlsym(RTLD_DEFAULT, "fake_failing_call"));
  fail("peer");
  const Device &first = cuda_plugin().open(0), &second = cuda_plugin().open(1);
  check(!first.reaches(second) && !second.reaches(first), "GPUs reach each other");
  check(first.reaches(first), "a GPU does not reach itself");
  const std::string words = get_file(folder / "log");
  check(words.find(" cannot use the memory of ") != std::string::npos, "said: " + words);
}

/// The GPU calls of a stage's recordings, and failures of each call.
void run_graphs() {
  Device& device = cuda_plugin().open(0);
  const auto fail =
      reinterpret_cast<void (*)(const char*)>(dlsym(RTLD_DEFAULT, "fake_failing_call"));
  const auto told = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "fake_launches"));
  check(fail && told, "the fakes are not loaded");
  const auto expect = [&](const std::string& wanted, const std::string& where) {
    const std::string words = told();
    check(words == wanted, where + ": " + words);
  };
  const DeviceMemory memory = device.allocate(8);
  auto* data = reinterpret_cast<float*>(memory.data());
  const std::string one_by_one = "hand-written kernel\n",
                    recorded = "begin\nend\ninstantiate\ngraph\nhand-written kernel\n",
                    graph = "graph\nhand-written kernel\n";
  float from = 0;
  bool waits = false;
  for (const std::string failing : {"", "begin", "end", "instantiate", "work"}) {
    fail(failing.c_str());
    const auto stream = device.make_stream();
    told();
    StageRecordings recordings(*stream);
    check(recordings.records(), "a stream does not record");
    const auto put_in = [&] {
      device.add(*stream, data, data + 1, 1);
      if (waits) stream->synchronize();
      stream->copy(data, &from, sizeof from);
    };
    const auto run = [&](const void* at, float value) {
      from = value;
      recordings.describe(&recordings).with(true).with(at).run(put_in);
      check(*data == value, "work was not done, or not in its order");
    };
    waits = failing == "work";
    run(data, 1);
    expect(one_by_one, "the first time");
    run(data + 1, 2);
    expect(one_by_one, "the first time elsewhere");
    run(data, 3);
    if (failing.empty()) {
      expect(recorded, "the second time");
      run(data, 4);
      expect(graph, "the third time");
      run(data + 1, 5);
      expect(recorded, "the second time elsewhere");
      for (const float value : {6, 7}) {
        run(data, value);
        expect(graph, "later");
      }
      check(recordings.records(), "recording has ended");
      continue;
    }
    const std::string tried = failing == "begin"         ? "begin\n"
                              : failing == "instantiate" ? "begin\nend\ninstantiate\n"
                                                         : "begin\nend\n";
    expect(tried + one_by_one, failing + " fails");
    check(!recordings.records(), "recording goes on after " + failing);
    run(data, 4);
    expect(one_by_one, "after " + failing);
  }
  fail("");
  setenv("PIPETRAIN_CUDA_GRAPHS", "off", 1);
  const auto stream = device.make_stream();
  told();
  StageRecordings recordings(*stream);
  for (int time = 0; time < 3; ++time)
    recordings.describe(data).run([&] { device.add(*stream, data, data + 1, 1); });
  expect(one_by_one + one_by_one + one_by_one, "without graphs");
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
    } else if (count > 1 && std::string(arguments[1]) == "products") {
      pipetrain::run_products(folder.path());
    } else if (count > 1 && std::string(arguments[1]) == "peers") {
      pipetrain::run_peers();
    } else if (count > 1 && std::string(arguments[1]) == "refused_peers") {
      pipetrain::run_refused_peers(folder.path());
    } else if (count > 1 && std::string(arguments[1]) == "graphs") {
      pipetrain::run_graphs();
    } else {
      pipetrain::run_all(folder.path());
    }
    std::printf("kernels and graphs: %d checks\n", pipetrain::checks);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
