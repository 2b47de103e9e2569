// A plugin to rehearse scripts/gpu-check on a machine without a GPU: one recorded device
// (support/recorded_devices.h) with the hand-written GPU kernels under the emulator if operands are
// small enough, and CPU kernels in place of NVIDIA's libraries. PIPETRAIN_REHEARSED_FAULT injects
// one fault, for tests of the check:
//   wrong-gradient   the weight gradients of convolutions are 10 % too large
//   no-graphs        convolutions have no kernel, as in a plugin without cuDNN's graphs
//   missing-kernel   LayerNorm has none
//   missing-plan     batch norms run with a hand-written kernel, since cuDNN has no plan
//   old-cudnn        says that it found cuDNN 8.9
//   missing-nccl     says that there is no NCCL
//   missing-nvrtc    warns that there is no NVRTC
//   no-recordings    no pass becomes a CUDA graph
//   crash-at-exit    aborts when the program ends
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "device/build_id.h"
#include "device/plugin.h"
#include "graph/op.h"
#include "ops/conv/depthwise_cuda.h"
#include "ops/kernel/logged_kernel.h"
#include "ops/registry/registry.h"
#include "support/emulated_kernels.h"
#include "support/recorded_devices.h"

namespace {

using namespace pipetrain;

constexpr int kFoundProblems = 99;
/// Operand size up to which the emulator is fast enough.
constexpr std::int64_t kMostEmulated = 4096;

bool has_fault(std::string_view name) {
  static const char* const fault = std::getenv("PIPETRAIN_REHEARSED_FAULT");
  return fault && name == fault;
}

template <std::size_t N>
bool is_one_of(std::string_view op, const std::array<std::string_view, N>& ops) {
  return std::find(ops.begin(), ops.end(), op) != ops.end();
}

/// Whether all present tensors from `first` on are float32.
bool are_float(const std::vector<TensorType>& types, std::size_t first) {
  for (std::size_t i = first; i < types.size(); ++i) {
    if (types[i].dtype != DType::kFloat32 && types[i].dtype != DType::kUndefined) return false;
  }
  return true;
}

/// Whether a node uses NVIDIA's libraries: products, and most convolutions, always; batch
/// normalization and attention for the types of training (norm_cuda.cpp, sdpa_cuda.cpp).
bool is_of_library(const KernelRequest& request) {
  constexpr std::array<std::string_view, 6> always = {
      "Conv", "ConvInputGrad", "ConvWeightGrad", "MatMul", "MatMulActivation", "MatMulSums"};
  const std::string_view op = request.node.op->name;
  const bool is_narrow = request.inputs[0].dtype != DType::kFloat32;
  if (op == "BatchNorm" && request.inputs.size() > 3) return false;
  if (op.starts_with("BatchNorm") && (request.inputs[0].layout == Layout::kChannelsLast ||
                                      request.outputs[0].layout == Layout::kChannelsLast))
    return false;
  if (op == "BatchNorm" || op == "BatchNormGrad")
    return are_float(request.inputs, op.ends_with("Grad") ? 2 : 1) && are_float(request.outputs, 1);
  if (op == "Conv" && has_depthwise_kernel(request)) return false;
  if (op == "Attention") return is_narrow && are_float(request.outputs, 1);
  if (op == "AttentionGrad") return is_narrow && are_float(request.inputs, 7);
  return is_one_of(op, always);
}

class WrongKernel final : public Kernel {
 public:
  explicit WrongKernel(std::unique_ptr<Kernel> kernel) : kernel_(std::move(kernel)) {}
  void run(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
           const RunContext& context) override {
    kernel_->run(inputs, outputs, context);
    if (!outputs[0] || outputs[0].type.dtype != DType::kFloat32) return;
    for (std::int64_t i = 0; i < outputs[0].count(); ++i) outputs[0].as<float>()[i] *= 1.1F;
  }
  std::size_t workspace_bytes() const override { return kernel_->workspace_bytes(); }

 private:
  std::unique_ptr<Kernel> kernel_;
};

std::unique_ptr<Kernel> make_rehearsed_kernel(const KernelRequest& request) {
  const std::string_view op = request.node.op->name;
  if ((has_fault("no-graphs") && op.starts_with("Conv")) ||
      (has_fault("missing-kernel") && op == "LayerNorm"))
    return nullptr;
  const bool lacks_plan = has_fault("missing-plan") && op == "BatchNorm";
  if (lacks_plan)
    log_warning("gpu",
                "{} ({}) runs with a hand-written kernel, since cuDNN has no plan for it: none",
                printable(request.node.name), op);
  if (is_of_library(request) && !lacks_plan) {
    // The CPU's kernel has float32 for weight gradients, as training has.
    if (op == "ConvWeightGrad" && request.outputs[0].dtype != DType::kFloat32) return nullptr;
    std::unique_ptr<Kernel> kernel = make_kernel(Backend::kCpu, request);
    if (has_fault("wrong-gradient") && op == "ConvWeightGrad")
      kernel = std::make_unique<WrongKernel>(std::move(kernel));
    return logged(std::move(kernel), request, "library");
  }
  std::unique_ptr<Kernel> kernel = test::make_emulated_kernel(request);
  if (!kernel) return nullptr;
  std::int64_t elements = 0;
  for (const auto* types : {&request.inputs, &request.outputs}) {
    for (const TensorType& type : *types)
      elements += type.dtype == DType::kUndefined ? 0 : type.count();
  }
  if (elements > kMostEmulated) kernel = make_kernel(Backend::kCpu, request);
  return logged(std::move(kernel), request, "own");
}

class Rehearsal final : public DevicePlugin {
 public:
  Rehearsal() {
    machine_.use_kernels(make_rehearsed_kernel);
    const char* const graphs = std::getenv("PIPETRAIN_CUDA_GRAPHS");
    if (!(graphs && std::string_view(graphs) == "off") && !has_fault("no-recordings"))
      machine_.allow_recordings();
    log_kernel(fmt::format("device rehearsal, driver 13000, CUDA 13000, cuBLASLt 130101, cuDNN {}",
                           has_fault("old-cudnn") ? 8907 : 91900));
    if (has_fault("missing-nvrtc"))
      log_warning("cuda", "element-wise chains run node by node: NVRTC cannot be loaded");
  }
  std::vector<std::string> devices() override { return {"rehearsal of a GPU"}; }
  Device& open(int index) override { return machine_.device(index); }
  bool reaches(int, int) override { return true; }
  Collectives& collectives() override {
    PT_CHECK(!has_fault("missing-nccl"), kResource, "NCCL cannot be loaded");
    return machine_.collectives();
  }
  std::vector<std::string> problems() const { return machine_.problems(); }

 private:
  test::RecordedMachine machine_{1, 1};
};

Rehearsal& rehearsal() {
  static auto* const plugin = new Rehearsal;  // the program's runtime may outlive static objects
  return *plugin;
}

DevicePlugin* plugin() {
  Rehearsal& plugin = rehearsal();
  static const bool registered = std::atexit([] {
                                   if (has_fault("crash-at-exit")) std::abort();
                                   const std::vector<std::string> problems = rehearsal().problems();
                                   for (const std::string& problem : problems)
                                     std::fprintf(stderr, "%s\n", problem.c_str());
                                   std::fflush(stderr);
                                   if (!problems.empty()) std::_Exit(kFoundProblems);
                                 }) == 0;
  return registered ? &plugin : nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const pipetrain::PluginEntry pipetrain_plugin;
const pipetrain::PluginEntry pipetrain_plugin = {pipetrain::kBuildId.data(), plugin};
