// A kernel that can accumulate into its output, so that a gradient summed over micro-batches needs
// no separate pass through memory.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/kernel/kernel.h"

namespace pipetrain {

class AddingKernel : public Kernel {
 public:
  /// Adds to the outputs what run() would write there, with the bits of run() followed by an
  /// addition.
  virtual void run_adding(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                          const RunContext& context) = 0;
};

/// Which rows of a tensor that starts at zero may be non-zero.
class TouchedRows {
 public:
  explicit TouchedRows(std::int64_t rows) : is_touched_(static_cast<std::size_t>(rows), false) {
    list_.reserve(is_touched_.size());
  }
  std::int64_t rows() const { return static_cast<std::int64_t>(is_touched_.size()); }
  /// Any row may have been written since clear().
  bool all() const { return all_; }
  void set_all() { all_ = true; }
  /// The rows added since clear(), in order.
  const std::vector<std::int64_t>& list() const { return list_; }
  void add(std::int64_t row) {
    if (is_touched_[static_cast<std::size_t>(row)]) return;
    is_touched_[static_cast<std::size_t>(row)] = true;
    list_.push_back(row);
  }
  void clear() {
    for (const std::int64_t row : list_) is_touched_[static_cast<std::size_t>(row)] = false;
    list_.clear();
    all_ = false;
  }

 private:
  bool all_ = false;
  std::vector<bool> is_touched_;
  std::vector<std::int64_t> list_;
};

/// An AddingKernel whose result is zero in most rows: the gradient of an embedding.
class RowAddingKernel : public AddingKernel {
 public:
  /// Rows of the result.
  virtual std::int64_t rows() const = 0;
  /// From now on only kernels that share `rows` (which outlives them) write the sum, which is zero
  /// elsewhere, or set_all() is called. They write only the rows that change; run() clears rows
  /// that are left from an earlier sum.
  virtual void share(TouchedRows& rows) = 0;
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
