#include "ops/registry/narrow_kernel.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "graph/op.h"
#include "ops/kernel/narrow_cpu.h"
#include "ops/kernel/workspace.h"
#include "ops/registry/narrow_chunks.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kParallelElements = 1 << 15;
constexpr std::int64_t kStretch = 8192;  // elements per conversion task

bool is_narrow(DType dtype) { return dtype == DType::kBFloat16 || dtype == DType::kFloat16; }

template <float (*widened)(std::uint16_t)>
void widen_one_by_one(const std::uint16_t* from, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = widened(from[i]);
}
template <std::uint16_t (*rounded)(float)>
void round_one_by_one(const float* from, std::uint16_t* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = rounded(from[i]);
}

using Conversion = NarrowConversion;

Conversion conversion_of(Backend backend, DType narrow) {
  if (backend == Backend::kCpu) return narrow_conversion(narrow);
  const bool brain = narrow == DType::kBFloat16;
  return brain
             ? Conversion{widen_one_by_one<bfloat16_to_float>, round_one_by_one<float_to_bfloat16>}
             : Conversion{widen_one_by_one<half_to_float>, round_one_by_one<float_to_half>};
}

/// Converts a run of elements; a long one is split into chunks for several threads.
template <class From, class To>
void convert(void (*conversion)(const From*, To*, std::int64_t), const From* from, To* to,
             std::int64_t count) {
  if (count <= kStretch) return conversion(from, to, count);
  const std::int64_t stretches = (count + kStretch - 1) / kStretch;
#pragma omp parallel for schedule(static) if (count > kParallelElements)
  for (std::int64_t s = 0; s < stretches; ++s)
    conversion(from + s * kStretch, to + s * kStretch, std::min(kStretch, count - s * kStretch));
}

/// One tensor of the node, and how the float kernel accesses it.
struct NarrowOperand {
  Share share;
  std::int64_t element_bytes = 0;
  bool converted = false;         // narrow outside, float inside
  Conversion conversion;          // valid if converted
  bool copied = false;            // not contiguous: copied to scratch memory and back
  std::size_t scratch = 0;        // offset in the scratch memory of a chunk
  std::size_t whole_scratch = 0;  // offset in the workspace, for operands that all chunks read
};

/// The float kernel for chunks of `units` units.
struct Inner {
  std::int64_t units = 0;
  Node node;  // with attributes for the chunk's shape
  std::vector<TensorType> inputs, outputs;
  std::unique_ptr<Kernel> kernel;
  /// Inputs and outputs for each thread: allocated once, so that a run allocates nothing.
  std::vector<std::vector<Tensor>> tensors;
};

class NarrowKernel final : public Kernel {
 public:
  NarrowKernel(Backend backend, const KernelRequest& request)
      : chunks_(chunks_of(request)), threads_(omp_get_max_threads()) {
    const std::int64_t units = std::min(chunks_.units, chunks_.units_per_chunk);
    make_inner(backend, request, units, body_);
    const std::int64_t rest = chunks_.units % units;
    if (rest > 0) make_inner(backend, request, rest, tail_);
    place(backend, request);
  }

  std::size_t workspace_bytes() const override {
    return whole_bytes_ + chunk_bytes_ * static_cast<std::size_t>(teams());
  }

  void run(std::span<const Tensor> in, std::span<const Tensor> out,
           const RunContext& context) override {
    for (std::size_t i = 0; i < in.size(); ++i) {
      const NarrowOperand& operand = inputs_[i];
      if (in[i] && operand.share.whole && operand.converted)
        convert(operand.conversion.widen, in[i].as<const std::uint16_t>(),
                reinterpret_cast<float*>(context.workspace + operand.whole_scratch), in[i].count());
    }
    const std::int64_t count = (chunks_.units + body_.units - 1) / body_.units;
    // Single-threaded: a nested parallel region is more expensive.
    if (!chunks_.side_by_side || threads_ == 1) {
      for (std::int64_t chunk = 0; chunk < count; ++chunk) run_chunk(chunk, in, out, context, 0);
      return;
    }
#pragma omp parallel for schedule(static) \
    num_threads(threads_) if (count > 1 && out[0].type.count() > kParallelElements)
    for (std::int64_t chunk = 0; chunk < count; ++chunk) {
      run_chunk(chunk, in, out, context, static_cast<std::size_t>(omp_get_thread_num()));
    }
  }

 private:
  int teams() const { return chunks_.side_by_side ? threads_ : 1; }

  static TensorType chunk_type(const TensorType& type, const Share& share, std::int64_t units) {
    if (type.dtype == DType::kUndefined) return type;
    TensorType out{is_narrow(type.dtype) ? DType::kFloat32 : type.dtype, share.unit_shape,
                   share.unit_shape.rank() == type.shape.rank() ? type.layout : Layout::kRowMajor};
    if (!share.whole) out.shape[share.axis] *= units;
    return out;
  }

  void make_inner(Backend backend, const KernelRequest& request, std::int64_t units,
                  Inner& inner) const {
    inner.units = units;
    inner.node = request.node;
    for (std::size_t i = 0; i < request.inputs.size(); ++i)
      inner.inputs.push_back(chunk_type(request.inputs[i], chunks_.inputs[i], units));
    for (std::size_t i = 0; i < request.outputs.size(); ++i)
      inner.outputs.push_back(chunk_type(request.outputs[i], chunks_.outputs[i], units));
    if (chunks_.units > 1 && !chunks_.side_by_side) {
      // Gradients have the shape of their result as an attribute.
      for (const char* name : {"output_shape", "shape"}) {
        if (inner.node.attributes.has(name))
          inner.node.attributes.set(name, inner.outputs[0].shape.dims());
      }
    }
    inner.kernel = make_kernel(backend, {inner.node, inner.inputs, inner.outputs});
    std::vector<Tensor> tensors;
    for (const auto* types : {&inner.inputs, &inner.outputs}) {
      for (const TensorType& type : *types) tensors.push_back({type, nullptr});
    }
    inner.tensors.assign(static_cast<std::size_t>(teams()), tensors);
  }

  NarrowOperand operand_of(Backend backend, const TensorType& type, const Share& share,
                           const TensorType& chunk) {
    NarrowOperand out;
    out.share = share;
    if (type.dtype == DType::kUndefined) return out;
    out.element_bytes = static_cast<std::int64_t>(size_of(type.dtype));
    out.converted = is_narrow(type.dtype);
    if (out.converted) out.conversion = conversion_of(backend, type.dtype);
    out.copied = !share.whole && share.outer > 1;
    if (share.summed) {
      out.scratch = chunk_bytes_;
      chunk_bytes_ += aligned_part(chunk.bytes());
    } else if (share.whole && out.converted) {
      out.whole_scratch = whole_bytes_;
      whole_bytes_ += aligned_part(chunk.bytes());
    } else if (out.converted || out.copied) {
      out.scratch = chunk_bytes_;
      chunk_bytes_ += aligned_part(chunk.bytes());
    }
    return out;
  }

  void place(Backend backend, const KernelRequest& request) {
    for (std::size_t i = 0; i < request.inputs.size(); ++i)
      inputs_.push_back(operand_of(backend, request.inputs[i], chunks_.inputs[i], body_.inputs[i]));
    for (std::size_t i = 0; i < request.outputs.size(); ++i)
      outputs_.push_back(
          operand_of(backend, request.outputs[i], chunks_.outputs[i], body_.outputs[i]));
    inner_workspace_ = chunk_bytes_;
    std::size_t inner = body_.kernel->workspace_bytes();
    if (tail_.kernel) inner = std::max(inner, tail_.kernel->workspace_bytes());
    chunk_bytes_ += aligned_part(inner);
  }

  static void add(const Tensor& part, const Tensor& sum) {
    const float* __restrict from = part.as<float>();
    float* __restrict to = sum.as<float>();
    const std::int64_t count = sum.count();
#pragma omp parallel for simd schedule(static) if (count > kParallelElements)
    for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
  }

  /// Calls body(offset in the tensor, offset in the chunk, length) for the runs of a chunk.
  template <class Body>
  static void for_runs(const NarrowOperand& operand, std::int64_t first, std::int64_t count,
                       Body body) {
    const std::int64_t length = count / operand.share.outer;
    for (std::int64_t run = 0; run < operand.share.outer; ++run)
      body(first + run * operand.share.stride, run * length, length);
  }

  void run_chunk(std::int64_t chunk, std::span<const Tensor> in, std::span<const Tensor> out,
                 const RunContext& context, std::size_t thread) {
    std::byte* const scratch = context.workspace + whole_bytes_ + thread * chunk_bytes_;
    const std::int64_t unit = chunk * body_.units;
    Inner& inner = chunks_.units - unit >= body_.units ? body_ : tail_;
    std::vector<Tensor>& tensors = inner.tensors[thread];
    const std::size_t inputs = in.size();
    for (std::size_t i = 0; i < inputs; ++i)
      tensors[i].data = input(inputs_[i], in[i], tensors[i], unit, context.workspace, scratch);
    for (std::size_t i = 0; i < out.size(); ++i)
      tensors[inputs + i].data = output(outputs_[i], out[i], unit, context.workspace, scratch);
    RunContext inside = context;
    inside.workspace = scratch + inner_workspace_;
    inner.kernel->run(std::span(tensors).first(inputs), std::span(tensors).subspan(inputs), inside);
    for (std::size_t i = 0; i < out.size(); ++i)
      give_back(outputs_[i], out[i], tensors[inputs + i], unit);
  }

  static std::byte* at(const Tensor& tensor, std::int64_t bytes) {
    return tensor.as<std::byte>() + bytes;
  }

  /// The float kernel's view of an input.
  void* input(const NarrowOperand& operand, const Tensor& from, const Tensor& part,
              std::int64_t unit, std::byte* workspace, std::byte* scratch) const {
    if (!from) return nullptr;
    if (operand.share.whole)
      return operand.converted ? workspace + operand.whole_scratch : from.data;
    const std::int64_t first = unit * operand.share.step;
    if (!operand.converted && !operand.copied) return at(from, first * operand.element_bytes);
    std::byte* const to = scratch + operand.scratch;
    for_runs(operand, first, part.count(),
             [&](std::int64_t source, std::int64_t place, std::int64_t length) {
               if (operand.converted) {
                 convert(operand.conversion.widen, from.as<const std::uint16_t>() + source,
                         reinterpret_cast<float*>(to) + place, length);
               } else {
                 std::memcpy(to + place * operand.element_bytes,
                             at(from, source * operand.element_bytes),
                             static_cast<std::size_t>(length * operand.element_bytes));
               }
             });
    return to;
  }

  /// The float kernel's view of an output.
  void* output(const NarrowOperand& operand, const Tensor& to, std::int64_t unit,
               std::byte* workspace, std::byte* scratch) const {
    if (!to) return nullptr;
    if (operand.share.summed) return unit == 0 ? to.data : scratch + operand.scratch;
    if (operand.share.whole) return operand.converted ? workspace + operand.whole_scratch : to.data;
    if (operand.converted || operand.copied) return scratch + operand.scratch;
    return at(to, unit * operand.share.step * operand.element_bytes);
  }

  void give_back(const NarrowOperand& operand, const Tensor& to, const Tensor& made,
                 std::int64_t unit) const {
    if (to && operand.share.summed && unit > 0) return add(made, to);
    if (!to || (!operand.converted && !operand.copied)) return;
    if (operand.share.whole)
      return convert(operand.conversion.round, made.as<const float>(), to.as<std::uint16_t>(),
                     made.count());
    for_runs(operand, unit * operand.share.step, made.count(),
             [&](std::int64_t target, std::int64_t place, std::int64_t length) {
               if (operand.converted) {
                 convert(operand.conversion.round, made.as<const float>() + place,
                         to.as<std::uint16_t>() + target, length);
               } else {
                 std::memcpy(at(to, target * operand.element_bytes),
                             at(made, place * operand.element_bytes),
                             static_cast<std::size_t>(length * operand.element_bytes));
               }
             });
  }

  Chunks chunks_;
  int threads_;
  Inner body_, tail_;
  std::vector<NarrowOperand> inputs_, outputs_;
  std::size_t whole_bytes_ = 0, chunk_bytes_ = 0, inner_workspace_ = 0;
};

/// Cast between float and a narrow type.
std::unique_ptr<Kernel> make_cast(const KernelRequest& request) {
  const bool widens = is_narrow(request.inputs[0].dtype);
  if ((widens ? request.outputs : request.inputs)[0].dtype != DType::kFloat32) return nullptr;
  const Conversion conversion =
      conversion_of(Backend::kCpu, (widens ? request.inputs : request.outputs)[0].dtype);
  return make_kernel([widens, conversion](std::span<const Tensor> in, std::span<const Tensor> out,
                                          const RunContext&) {
    const std::int64_t count = out[0].count();
    if (widens) {
      convert(conversion.widen, in[0].as<const std::uint16_t>(), out[0].as<float>(), count);
    } else {
      convert(conversion.round, in[0].as<const float>(), out[0].as<std::uint16_t>(), count);
    }
  });
}

}  // namespace

bool has_narrow(const KernelRequest& request) {
  const auto narrow = [](const TensorType& type) { return is_narrow(type.dtype); };
  return std::any_of(request.inputs.begin(), request.inputs.end(), narrow) ||
         std::any_of(request.outputs.begin(), request.outputs.end(), narrow);
}

bool only_moves_narrow(const KernelRequest& request) {
  if (request.node.op->traits.chunks.kind != ChunkRule::kCopies) return false;
  const auto moved = [](const TensorType& type) {
    return !is_float(type.dtype) || is_narrow(type.dtype);
  };
  return std::all_of(request.inputs.begin(), request.inputs.end(), moved) &&
         std::all_of(request.outputs.begin(), request.outputs.end(), moved);
}

std::unique_ptr<Kernel> make_narrow_kernel(Backend backend, const KernelRequest& request) {
  if (request.node.op->name == "Cast") {
    return backend == Backend::kCpu ? make_cast(request) : nullptr;
  }
  return std::make_unique<NarrowKernel>(backend, request);
}

}  // namespace pipetrain
