// Fused programs by the plain loops of their steps: every step writes a separate tensor.
#include <algorithm>

#include "graph/op.h"
#include "ops/fused/fused.h"
#include "ops/registry/registry.h"

namespace pipetrain {
namespace {

class StepwiseKernel final : public Kernel {
 public:
  explicit StepwiseKernel(const KernelRequest& request)
      : program_(fused_program(request.node.attributes, static_cast<int>(request.inputs.size()))),
        inputs_(request.inputs.size()) {
    std::vector<TensorType> types = request.inputs;
    for (const FusedStep& step : program_.steps) {
      Node node;
      node.op = find_op(step.op);
      node.attributes = step.attributes;
      node.name = request.node.name;
      std::vector<TensorType> operands;
      for (const int operand : step.operands)
        operands.push_back(types[static_cast<std::size_t>(operand)]);
      TensorType result = request.outputs[0];
      result.dtype = program_.stored(static_cast<int>(kernels_.size()), request.inputs);
      kernels_.push_back(make_kernel(Backend::kReference, {node, operands, {result}}));
      results_.emplace_back(result);
      types.push_back(result);
    }
  }

  std::size_t workspace_bytes() const override {
    std::size_t most = 0;
    for (const auto& kernel : kernels_) most = std::max(most, kernel->workspace_bytes());
    return most;
  }

  void run(std::span<const Tensor> in, std::span<const Tensor> out,
           const RunContext& context) override {
    std::vector<Tensor> values(in.begin(), in.end());
    for (std::size_t k = 0; k < kernels_.size(); ++k) {
      std::vector<Tensor> operands;
      for (const int operand : program_.steps[k].operands)
        operands.push_back(values[static_cast<std::size_t>(operand)]);
      const Tensor result = results_[k].view();
      kernels_[k]->run(operands, {&result, 1}, context);
      values.push_back(result);
    }
    for (std::size_t k = 0; k < program_.results.size(); ++k) {
      if (!out[k].data) continue;
      const Tensor& from = values[inputs_ + static_cast<std::size_t>(program_.results[k])];
      std::copy_n(from.as<std::byte>(), from.type.bytes(), out[k].as<std::byte>());
    }
  }

 private:
  FusedProgram program_;
  std::size_t inputs_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::vector<HostTensor> results_;
};

std::unique_ptr<Kernel> make_stepwise(const KernelRequest& request) {
  return std::make_unique<StepwiseKernel>(request);
}

constexpr KernelEntry kFusedReferenceKernels[] = {{"Fused", make_stepwise}};

}  // namespace

std::span<const KernelEntry> fused_reference_kernels() { return kFusedReferenceKernels; }

}  // namespace pipetrain
