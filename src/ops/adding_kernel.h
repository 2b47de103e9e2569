// A kernel that can add to what its output holds, so that a gradient summed over micro-batches
// needs no pass of its own through memory.
#pragma once

#include "ops/kernel.h"

namespace pipetrain {

class AddingKernel : public Kernel {
 public:
  /// Adds to the outputs what run() would write there: the bits of run() and an addition behind it.
  virtual void run_adding(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                          const RunContext& context) = 0;
};

/// An AddingKernel made from `f(inputs, outputs, context, add)`.
template <class F>
std::unique_ptr<Kernel> make_adding_kernel(F run, std::size_t workspace_bytes) {
  class FunctionKernel final : public AddingKernel {
   public:
    FunctionKernel(F run, std::size_t bytes) : run_(std::move(run)), bytes_(bytes) {}
    void run(std::span<const Tensor> in, std::span<const Tensor> out,
             const RunContext& context) override {
      run_(in, out, context, /*add=*/false);
    }
    void run_adding(std::span<const Tensor> in, std::span<const Tensor> out,
                    const RunContext& context) override {
      run_(in, out, context, /*add=*/true);
    }
    std::size_t workspace_bytes() const override { return bytes_; }

   private:
    F run_;
    std::size_t bytes_;
  };
  return std::make_unique<FunctionKernel>(std::move(run), workspace_bytes);
}

}  // namespace pipetrain
