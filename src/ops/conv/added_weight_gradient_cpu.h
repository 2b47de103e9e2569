// Adds the gradients of weights that another kernel can only write. Include it from *_cpu.cpp files
// only.
#pragma once

#include <memory>
#include <vector>

#include "ops/kernel/adding_kernel.h"
#include "ops/kernel/workspace.h"

namespace pipetrain {

/// Lets a kernel that only writes add: what it writes goes by the workspace, behind its own.
class AddedWeightGradient final : public AddingKernel {
 public:
  AddedWeightGradient(std::unique_ptr<Kernel> kernel, const std::vector<TensorType>& outputs)
      : kernel_(std::move(kernel)) {
    std::size_t end = aligned_part(kernel_->workspace_bytes());
    for (const TensorType& type : outputs) {
      written_.push_back({type});
      places_.push_back(end);
      end += aligned_part(type.bytes());
    }
    bytes_ = end;
  }
  void run(std::span<const Tensor> in, std::span<const Tensor> out,
           const RunContext& context) override {
    kernel_->run(in, out, context);
  }
  void run_adding(std::span<const Tensor> in, std::span<const Tensor> out,
                  const RunContext& context) override {
    for (std::size_t i = 0; i < out.size(); ++i)
      written_[i].data = out[i].data ? context.workspace + places_[i] : nullptr;
    kernel_->run(in, written_, context);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (!out[i].data) continue;
      auto* __restrict to = out[i].as<float>();
      const auto* __restrict from = written_[i].as<float>();
      const std::int64_t count = out[i].type.count();
      for (std::int64_t k = 0; k < count; ++k) to[k] += from[k];
    }
  }
  std::size_t workspace_bytes() const override { return bytes_; }

 private:
  std::unique_ptr<Kernel> kernel_;
  std::vector<Tensor> written_;
  std::vector<std::size_t> places_;
  std::size_t bytes_ = 0;
};

}  // namespace pipetrain
