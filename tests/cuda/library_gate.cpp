// How the plugin uses cuDNN plans, on fake GPUs and a fake cuDNN (fake_gpus.cpp, fake_cudnn.cpp):
// equal nodes share a plan, a later stream reuses those of an earlier one, and nodes without a plan
// run on the CPU or with a hand-written kernel, with one warning; attention is split to keep its
// workspace small.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "device/plugin.h"
#include "gate_check.h"
#include "graph/op.h"
#include "ops/kernel/kernel.h"
#include "ops/registry/host_kernel.h"
#include "ops/registry/registry.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

/// A 3x3 convolution with this number of channels.
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

/// Makes the kernels of two equal nodes and runs one. As in a graph, every result has a type, but
/// not every result is read.
void run_node(Device& device, const char* op, const Attributes& attributes,
              const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs,
              const std::vector<bool>& read) {
  Node node;
  node.op = find_op(op);
  node.name = op;
  node.attributes = attributes;
  const auto stream = device.make_stream();
  const auto kernel = device.make_kernel(*stream, {node, inputs, outputs}),
             equal = device.make_kernel(*stream, {node, inputs, outputs});
  check(kernel && equal, std::string("there is no kernel of ") + op);
  std::vector<DeviceMemory> memory;
  std::vector<Tensor> in, out;
  for (const TensorType& type : inputs) {
    memory.push_back(device.allocate(type.dtype == DType::kUndefined ? 0 : type.bytes()));
    in.push_back({type, memory.back().data()});
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    memory.push_back(device.allocate(read[i] ? outputs[i].bytes() : 0));
    out.push_back({outputs[i], memory.back().data()});
  }
  const DeviceMemory workspace = device.allocate(kernel->workspace_bytes() + 1);
  RunContext context;
  context.workspace = workspace.data();
  kernel->run(in, out, context);
}

/// Unused results do not prevent a plan, and need no tensor.
void run_unread(const char* (*told)(), const char* (*launches)()) {
  Device& device = cuda_plugin().open(0);
  const auto expect = [&](const std::string& wanted, const std::string& where) {
    const std::string words = told();
    check(words == wanted, where + ": " + words);
  };
  const TensorType x{DType::kBFloat16, Shape{2, 4, 64, 32}}, lse{DType::kFloat32, Shape{2, 4, 64}},
      mask{DType::kFloat32, Shape{2, 4, 64, 64}}, none;
  const Attributes causal{{"causal", std::int64_t{1}}, {"scale", 0.125}};
  run_node(device, "Attention", causal, {x, x, x}, {x, lse}, {true, true});
  expect("plan\nrun\n", "attention in training");
  run_node(device, "Attention", causal, {x, x, x}, {x, lse}, {true, false});
  expect("run\n", "attention in an evaluation");
  run_node(device, "AttentionGrad", causal, {x, x, x, x, none, none, x, lse}, {x, x, x, mask},
           {true, true, true, false});
  expect("plan\nrun\n", "the gradient of attention");
  run_node(device, "AttentionGrad", causal, {x, x, x, x, none, none, x, lse}, {x, x, x, mask},
           {false, false, true, false});
  expect("run\n", "the gradient of attention whose queries are not trained");

  const TensorType feature_map{DType::kFloat32, Shape{2, 8, 4, 4}},
      channel{DType::kFloat32, Shape{8}};
  for (const bool dx : {true, false}) {
    launches();
    run_node(device, "BatchNormGrad", {{"epsilon", 1e-5}},
             {feature_map, feature_map, channel, channel, channel}, {feature_map, channel, channel},
             {dx, true, true});
    const std::string words = launches();
    expect(dx ? "plan\nrun\n" : "", "the gradient of a batch norm");
    check(words == "hand-written kernel\n",
          words);  // before the library's kernel, or instead of it
  }
}

/// The gradient of attention, split to need less memory: three samples, two key heads.
void run_attention(Device& device) {
  const auto told = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "fake_cudnn_events"));
  const auto needs =
      reinterpret_cast<void (*)(std::int64_t)>(dlsym(RTLD_DEFAULT, "fake_cudnn_workspace"));
  const auto given = reinterpret_cast<int (*)(void*)>(dlsym(RTLD_DEFAULT, "fake_cudnn_was_given"));
  check(told && needs && given, "the fakes are not loaded");
  Node node;
  node.op = find_op("AttentionGrad");
  node.name = "attention";
  for (const std::int64_t gigabytes : {0, 1}) {
    const std::int64_t steps = 64 << gigabytes;  // no cached plan
    const TensorType q{DType::kBFloat16, Shape{3, 4, steps, 64}},
        k{DType::kBFloat16, Shape{3, 2, steps, 64}}, lse{DType::kFloat32, Shape{3, 4, steps}}, none;
    const KernelRequest request{node, {q, q, k, k, none, none, q, lse}, {q, k, k}};
    needs(gigabytes << 30);
    const auto stream = device.make_stream();
    const auto kernel = device.make_kernel(*stream, request);
    check(kernel != nullptr, "there is no kernel");
    std::string events = told();
    check(events == (gigabytes == 0 ? "plan\n" : "plan\nplan\nplan\n"), "attention: " + events);
    std::vector<DeviceMemory> memory;
    std::vector<Tensor> in, out;
    for (auto [types, tensors] : {std::pair(&request.inputs, &in), {&request.outputs, &out}}) {
      for (const TensorType& type : *types) {
        if (type.dtype == DType::kUndefined) {
          tensors->emplace_back();
          continue;
        }
        memory.push_back(device.allocate(type.bytes()));
        tensors->push_back({type, memory.back().data()});
      }
    }
    const std::unique_ptr<std::byte[]> workspace(new std::byte[kernel->workspace_bytes() + 1]);
    RunContext context;
    context.workspace = workspace.get();
    kernel->run(in, out, context);
    events = told();
    const std::string six = "run\nrun\nrun\nrun\nrun\nrun\n";
    check(events == (gigabytes == 0 ? "run\n" : six), "attention: " + events);
    for (const auto* tensors : {&in, &out}) {
      for (const Tensor& tensor : *tensors) {
        if (!tensor) continue;
        const std::size_t parts = gigabytes == 0 ? 1 : 6, bytes = tensor.bytes() / parts;
        for (std::size_t part = 0; part < parts; ++part)
          check(given(static_cast<std::byte*>(tensor.data) + part * bytes) != 0,
                "attention does not come to a part of a tensor");
      }
    }
  }
  needs(0);
}

/// Parts of the gradient of attention, 129 queries each, begin at multiples of 16 bytes.
void run_unaligned_attention(const char* (*told)(), const char* (*launches)(),
                             const std::filesystem::path& log) {
  const auto needs =
      reinterpret_cast<void (*)(std::int64_t)>(dlsym(RTLD_DEFAULT, "fake_cudnn_workspace"));
  const auto large = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "fake_cudnn_large_plans"));
  check(needs && large, "the fakes are not loaded");
  Device& device = cuda_plugin().open(0);
  const auto run_gradient = [&](std::int64_t samples, std::int64_t heads, std::int64_t key_heads) {
    const TensorType q{DType::kBFloat16, Shape{samples, heads, 129, 64}},
        k{DType::kBFloat16, Shape{samples, key_heads, 129, 64}},
        lse{DType::kFloat32, Shape{samples, heads, 129}}, none;
    launches();
    run_node(device, "AttentionGrad", {{"scale", 0.125}}, {q, q, k, k, none, none, q, lse},
             {q, k, k}, {true, true, true});
  };
  const std::size_t before = get_file(log).size();
  needs(1 << 30);  // twice the limit
  // Thirds of eight samples are two: 2 * 129 * 4 bytes are no multiple of 16, those of four are.
  large(1);
  run_gradient(8, 1, 1);
  std::string words = told();
  check(words == "plan\nplan\nrun\nrun\n", "attention in groups of four samples: " + words);
  check(get_file(log).size() == before, get_file(log).substr(before));
  // One sample of four heads is aligned; the two heads that share a key head are not.
  large(-1);
  run_gradient(3, 4, 2);
  words = told();
  check(words == "plan\nplan\n", "attention that cannot be split further: " + words);
  check(std::string(launches()).find("hand-written kernel\n") == 0, "no hand-written kernel ran");
  words = get_file(log).substr(before);
  check(words.find("AttentionGrad (AttentionGrad) runs with a hand-written kernel, since cuDNN has "
                   "no plan for it: its parts would not begin at multiples of 16 bytes") !=
                std::string::npos &&
            std::count(words.begin(), words.end(), '\n') == 1,
        words);
  needs(0);
}

/// Norms and attention then run with hand-written kernels, with one warning per shape.
void run_without_plans(const char* (*told)(), const char* (*launches)(),
                       const std::filesystem::path& log) {
  Device& device = cuda_plugin().open(0);
  const TensorType x{DType::kBFloat16, Shape{2, 4, 32, 64}}, lse{DType::kFloat32, Shape{2, 4, 32}},
      feature_map{DType::kFloat32, Shape{2, 12, 4, 4}}, channel{DType::kFloat32, Shape{12}}, none;
  const Attributes attention{{"scale", 0.125}}, norm{{"epsilon", 1e-5}};
  const std::size_t before = get_file(log).size();
  launches();
  run_node(device, "Attention", attention, {x, x, x}, {x, lse}, {true, true});
  run_node(device, "AttentionGrad", attention, {x, x, x, x, none, none, x, lse}, {x, x, x},
           {true, true, true});
  run_node(device, "BatchNorm", norm, {feature_map, channel, channel},
           {feature_map, channel, channel}, {true, true, true});
  run_node(device, "BatchNormGrad", norm, {feature_map, feature_map, channel, channel, channel},
           {feature_map, channel, channel}, {true, true, true});
  check(std::string(told()).empty(), "a plan was made or run");
  check(std::string(launches()).find("hand-written kernel\n") == 0, "no hand-written kernel ran");
  const std::string words = get_file(log).substr(before);
  for (const char* op : {"Attention", "AttentionGrad", "BatchNorm", "BatchNormGrad"}) {
    const std::string said =
        std::string("warning: ") + op + " (" + op +
        ") runs with a hand-written kernel, since cuDNN has no plan for it: No ";
    check(words.find(said) != std::string::npos, said + "is not in " + words);
  }
  check(std::count(words.begin(), words.end(), '\n') == 4, words);
}

void run_all(const std::filesystem::path& folder) {
  const auto told = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "fake_cudnn_events"));
  const auto offers = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "fake_cudnn_offers"));
  check(told && offers, "the fakes are not loaded");
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
  // Streams that exist at the same time have separate handles and plans.
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
  // The last streams had no plan for sixteen channels.
  {
    const auto one = device.make_stream(), two = device.make_stream();
    const auto first = device.make_kernel(*one, sixteen.request()),
               second = device.make_kernel(*two, sixteen.request());
    expect("plan\nplan\n", "what no stream has kept");
  }
  run_attention(device);
  const auto launches = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "fake_launches"));
  check(launches != nullptr, "the fakes are not loaded");
  run_unread(told, launches);
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
  run_without_plans(told, launches, folder / "log");
  offers(1);
  run_unaligned_attention(told, launches, folder / "log");
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
