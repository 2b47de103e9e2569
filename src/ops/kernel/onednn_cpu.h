// What the CPU kernels share of oneDNN: the engine, memory descriptors of our types, and sequences
// of primitives that become a Kernel. Only *_cpu.cpp files include this header, because it pulls in
// dnnl.hpp.
#pragma once

#include <cstddef>
#include <dnnl.hpp>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/kernel/kernel.h"

namespace pipetrain {

/// The CPU engine of the process.
const dnnl::engine& onednn_engine();
/// float32 → f32, int32 → s32, …; Error (kInternal) for types that oneDNN does not have, such as
/// float64.
dnnl::memory::data_type onednn_data_type(DType dtype);
/// The memory of a tensor, layout included; a scalar becomes (1).
dnnl::memory::desc onednn_desc(const TensorType& type);
/// Row-major memory of this shape.
dnnl::memory::desc onednn_row_major(const Shape& shape, DType dtype = DType::kFloat32);
/// A shape whose memory format the primitive chooses.
dnnl::memory::desc onednn_any(const Shape& shape, DType dtype = DType::kFloat32);
/// Attributes with a user-provided scratchpad, so that a primitive does not allocate one.
dnnl::primitive_attr onednn_user_scratchpad();

/// Primitives that run one after the other on a kernel's inputs, outputs and workspace:
///
///   PrimitiveSequence sequence;
///   // convert() adds a reorder if the formats differ.
///   const auto x = sequence.convert(sequence.input(0, x_desc), pd.src_desc());
///   const auto y = sequence.temporary(pd.dst_desc());
///   sequence.add(dnnl::convolution_forward(pd), pd, {{DNNL_ARG_SRC, x}, …, {DNNL_ARG_DST, y}});
///   sequence.reorder(y, sequence.output(0, y_desc));
///   return std::make_unique<SequenceKernel>(std::move(sequence));
///
/// Everything is built here; run() only sets pointers.
class PrimitiveSequence {
 public:
  /// Memory that primitives read or write.
  using Slot = int;
  using Arguments = std::initializer_list<std::pair<int, Slot>>;

  PrimitiveSequence();

  Slot input(std::size_t index, const dnnl::memory::desc& desc);
  /// An absent output is replaced by workspace, so that primitives that always write it can run.
  Slot output(std::size_t index, const dnnl::memory::desc& desc);
  Slot temporary(const dnnl::memory::desc& desc);
  const dnnl::memory::desc& desc(Slot slot) const {
    return slots_[static_cast<std::size_t>(slot)].desc;
  }

  /// The same tensor in another format: `slot` itself when it has that format, else a temporary and
  /// a reorder into it.
  Slot convert(Slot slot, const dnnl::memory::desc& desc);
  void reorder(Slot from, Slot to);
  /// Appends a primitive whose descriptor was made with onednn_user_scratchpad().
  template <class PrimitiveDesc>
  void add(const dnnl::primitive& primitive, const PrimitiveDesc& desc, Arguments arguments) {
    append(primitive, desc.scratchpad_desc(), desc.impl_info_str(), arguments);
  }

  std::size_t workspace_bytes() const { return workspace_bytes_; }
  void run(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
           const RunContext& context);
  /// Names of the implementations in order, "jit:avx2, jit:uni": for tests that refuse reference
  /// implementations.
  const std::string& implementations() const { return implementations_; }

 private:
  enum class Source { kInput, kOutput, kWorkspace };
  struct Memory {
    Source source;
    std::size_t index;   // of the input or output
    std::size_t offset;  // into the workspace
    dnnl::memory::desc desc;
    dnnl::memory memory;
    void* bound = nullptr;
  };
  struct Step {
    dnnl::primitive primitive;
    std::vector<dnnl_exec_arg_t> arguments;
  };

  Slot append_slot(Source source, std::size_t index, const dnnl::memory::desc& desc);
  std::size_t reserve(std::size_t bytes);
  void append(const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad,
              const char* implementation, Arguments arguments);

  std::vector<Memory> slots_;
  std::vector<Step> steps_;
  dnnl::stream stream_;
  std::size_t workspace_bytes_ = 0;
  std::string implementations_;
};

/// A kernel that is a sequence of primitives and nothing else.
class SequenceKernel final : public Kernel {
 public:
  explicit SequenceKernel(PrimitiveSequence sequence) : sequence_(std::move(sequence)) {}
  void run(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
           const RunContext& context) override {
    sequence_.run(inputs, outputs, context);
  }
  std::size_t workspace_bytes() const override { return sequence_.workspace_bytes(); }
  const PrimitiveSequence& sequence() const { return sequence_; }

 private:
  PrimitiveSequence sequence_;
};

/// The kernel that `build` fills; null (the caller then falls back to the reference kernel) when
/// oneDNN has no implementation for the request.
template <class Build>
std::unique_ptr<Kernel> make_sequence_kernel(Build build) {
  try {
    PrimitiveSequence sequence;
    build(sequence);
    return std::make_unique<SequenceKernel>(std::move(sequence));
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) return nullptr;
    throw;
  }
}

}  // namespace pipetrain
