// Fused programs on GPUs: one kernel, generated and compiled at run time, or else the kernels of
// the steps one by one, with the same bits.
#include <algorithm>

#include "device/kernel_compiler_cuda.h"
#include "graph/op.h"
#include "ops/cuda/grid_size_cuda.h"
#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/elementwise/elementwise_list_cuda.h"
#include "ops/fused/fused.h"
#include "ops/fused/fused_operands_cuda.h"
#include "ops/fused/fused_source.h"
#include "ops/random/dropout.h"
#include "ops/registry/registry.h"

namespace pipetrain {
namespace {

static_assert(kMostFusedOperands <= kMostFusedInputs);  // every program fits

/// Whether an output shares memory with an input.
bool is_in_place(std::span<const Tensor> in, std::span<const Tensor> out) {
  return std::any_of(out.begin(), out.end(), [&](const Tensor& y) {
    return y.data &&
           std::any_of(in.begin(), in.end(), [&](const Tensor& x) { return x.data == y.data; });
  });
}

/// Every thread reads all operands of an element, or of eight, before it writes them: outputs may
/// alias inputs of the same type.
class CompiledProgram final : public Kernel {
 public:
  CompiledProgram(const FusedProgram& program, const FusedSource& source, std::int64_t count,
                  std::shared_ptr<CompiledKernel> kernel, const CudaQueue& queue)
      : wide_(source.wide), count_(count), kernel_(std::move(kernel)), queue_(queue) {
    for (const std::size_t step : source.dropouts)
      dropouts_.push_back(dropout_parameters(program.steps[step].attributes));
  }

  void run(std::span<const Tensor> in, std::span<const Tensor> out,
           const RunContext& context) override {
    FusedOperands operands{};
    bool wide = wide_;
    for (std::size_t k = 0; k < in.size(); ++k) {
      operands.in[k] = in[k].data;
      wide = wide && (in[k].count() == 1 || moves_wide(in[k].data));
    }
    for (std::size_t r = 0; r < out.size(); ++r) {
      operands.out[r] = out[r].data;
      wide = wide && moves_wide(out[r].data);
    }
    for (std::size_t d = 0; d < dropouts_.size(); ++d) {
      operands.masks[d] = {dropout_key(context, dropouts_[d].node_key), dropouts_[d].threshold,
                           static_cast<float>(dropouts_[d].scale), context.first_sample,
                           elements_per_sample(count_, context)};
    }
    operands.count = count_;
    operands.groups = wide ? count_ / kWide : 0;
    const std::int64_t chunks = operands.groups > 0 ? operands.groups : count_;
    kernel_->launch(blocks_for(chunks, queue_), kBlock, &operands, queue_);
  }

 private:
  bool wide_;
  std::int64_t count_;
  std::shared_ptr<CompiledKernel> kernel_;
  CudaQueue queue_;
  std::vector<DropoutParameters> dropouts_;
};

class ProgramInSteps final : public Kernel {
 public:
  ProgramInSteps(const KernelRequest& request, FusedProgram program, const CudaQueue& queue)
      : program_(std::move(program)), inputs_(request.inputs.size()), queue_(queue) {
    std::vector<TensorType> types = request.inputs;
    for (const FusedStep& step : program_.steps) {
      Node node;
      node.op = find_op(step.op);
      node.attributes = step.attributes;
      std::vector<TensorType> operands;
      for (const int operand : step.operands)
        operands.push_back(types[static_cast<std::size_t>(operand)]);
      TensorType result = request.outputs[0];
      result.dtype = program_.stored(static_cast<int>(kernels_.size()), request.inputs);
      kernels_.push_back(make_cuda_kernel({node, operands, {result}}, queue));
      types.push_back(result);
    }
    steps_.assign(types.begin() + static_cast<std::ptrdiff_t>(inputs_), types.end());
    place_steps();
  }

  bool is_complete() const {
    return std::none_of(kernels_.begin(), kernels_.end(),
                        [](const auto& kernel) { return kernel == nullptr; });
  }
  std::size_t workspace_bytes() const override { return places_ * place_bytes(); }

  void run(std::span<const Tensor> in, std::span<const Tensor> out,
           const RunContext& context) override {
    std::vector<Tensor> values(in.begin(), in.end());
    for (std::size_t k = 0; k < kernels_.size(); ++k) {
      values.push_back({steps_[k], context.workspace + place_[k] * place_bytes()});
    }
    if (!is_in_place(in, out)) {
      for (std::size_t r = 0; r < out.size(); ++r) {
        if (out[r].data) value_of(values, r).data = out[r].data;
      }
    }
    std::vector<Tensor> operands;
    for (std::size_t k = 0; k < kernels_.size(); ++k) {
      operands.clear();
      for (const int operand : program_.steps[k].operands)
        operands.push_back(values[static_cast<std::size_t>(operand)]);
      kernels_[k]->run(operands, {&values[inputs_ + k], 1}, context);
    }
    for (std::size_t r = 0; r < out.size(); ++r) {
      const Tensor& from = value_of(values, r);
      if (!out[r].data || out[r].data == from.data) continue;
      elementwise::launch_restore(numbers_at({&from, 1}, 0), places_at(out, r), from.count(),
                                  queue_);
    }
  }

 private:
  Tensor& value_of(std::vector<Tensor>& values, std::size_t result) const {
    return values[inputs_ + static_cast<std::size_t>(program_.results[result])];
  }
  std::size_t place_bytes() const {
    return (static_cast<std::size_t>(steps_[0].count()) * sizeof(float) + 63) / 64 * 64;
  }

  /// The memory of steps that are no longer read is reused by later ones; results are kept.
  void place_steps() {
    std::vector<std::size_t> last(steps_.size());
    for (std::size_t k = 0; k < steps_.size(); ++k) {
      last[k] = k;
      for (const int operand : program_.steps[k].operands) {
        if (operand >= static_cast<int>(inputs_))
          last[static_cast<std::size_t>(operand) - inputs_] = k;
      }
    }
    for (const int result : program_.results)
      last[static_cast<std::size_t>(result)] = steps_.size();
    std::vector<std::size_t> free;
    for (std::size_t k = 0; k < steps_.size(); ++k) {
      if (free.empty()) free.push_back(places_++);
      place_.push_back(free.back());
      free.pop_back();
      for (std::size_t j = 0; j <= k; ++j) {
        if (last[j] == k) free.push_back(place_[j]);
      }
    }
  }

  FusedProgram program_;
  std::size_t inputs_;
  CudaQueue queue_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::vector<TensorType> steps_;
  std::vector<std::size_t> place_;  // by step
  std::size_t places_ = 0;
};

std::unique_ptr<Kernel> make_fused(const KernelRequest& request, const CudaQueue& queue) {
  FusedProgram program =
      fused_program(request.node.attributes, static_cast<int>(request.inputs.size()));
  if (queue.compiler) {
    const FusedSource source = fused_source(program, request.inputs, request.outputs);
    std::shared_ptr<CompiledKernel> kernel;
    if (!source.text.empty())
      kernel = queue.compiler->compile(source.text, "fused", request.node.name);
    if (kernel)
      return std::make_unique<CompiledProgram>(program, source, request.outputs[0].count(),
                                               std::move(kernel), queue);
  }
  auto kernel = std::make_unique<ProgramInSteps>(request, std::move(program), queue);
  if (!kernel->is_complete()) return nullptr;
  return kernel;
}

constexpr CudaKernelEntry kKernels[] = {{"Fused", make_fused}};

}  // namespace

std::span<const CudaKernelEntry> fused_cuda_kernels() { return kKernels; }

}  // namespace pipetrain
