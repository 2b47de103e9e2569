// A Kernel is one node at fixed shapes on one device. All choices and allocations are made on
// construction; run() allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "tensor/tensor.h"

namespace pipetrain {

/// Arguments of a run besides its tensors.
struct RunContext {
  std::byte* workspace =
      nullptr;  // at least workspace_bytes() of the kernel, 64-byte aligned, content undefined
  std::uint64_t seed = 0;
  std::uint64_t step = 0;         // optimizer step (mini-batch index)
  std::int64_t first_sample = 0;  // index of the micro-batch's first sample in the mini-batch
  std::int64_t samples = 1;       // samples in the micro-batch
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  /// Computes every output from the inputs. Absent optional inputs are empty tensors; so are unused
  /// outputs (a kernel must accept that for every output but the first one in use). Outputs are
  /// overwritten.
  virtual void run(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                   const RunContext& context) = 0;
  virtual std::size_t workspace_bytes() const { return 0; }
};

struct KernelRequest {
  const Node& node;
  std::vector<TensorType> inputs;  // kUndefined if absent
  std::vector<TensorType> outputs;
};

using MakeKernel = std::unique_ptr<Kernel> (*)(const KernelRequest&);

struct KernelEntry {
  std::string_view op;
  MakeKernel make;
};

/// A kernel made from a function object `f(inputs, outputs, context)`.
template <class F>
std::unique_ptr<Kernel> make_kernel(F run, std::size_t workspace_bytes = 0) {
  class FunctionKernel final : public Kernel {
   public:
    FunctionKernel(F run, std::size_t bytes) : run_(std::move(run)), bytes_(bytes) {}
    void run(std::span<const Tensor> in, std::span<const Tensor> out,
             const RunContext& context) override {
      run_(in, out, context);
    }
    std::size_t workspace_bytes() const override { return bytes_; }

   private:
    F run_;
    std::size_t bytes_;
  };
  return std::make_unique<FunctionKernel>(std::move(run), workspace_bytes);
}

}  // namespace pipetrain
