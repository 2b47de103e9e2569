// Fused programs over float32, bool and int64, and over bfloat16 and float16, whose blocks are
// floats that are rounded where a step is stored: all steps run on one block of elements before the
// next block, so that intermediate results stay in the L1 cache. Each step runs the loop of its
// operator, so that fusing changes no bit. Where everything is bfloat16, loops convert within
// registers, and blocks are as narrow as tensors.
#include <omp.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "graph/op.h"
#include "ops/elementwise/elementwise_functors.h"
#include "ops/elementwise/elementwise_loops_cpu.h"
#include "ops/fused/fused.h"
#include "ops/kernel/broadcast_plan.h"
#include "ops/kernel/narrow_cpu.h"
#include "ops/random/dropout.h"

namespace pipetrain {
namespace {

using elementwise::find_gradient_loop;
using elementwise::find_unary_loop;

constexpr std::int64_t kBlock = 1024;  // a multiple of kDropoutGroup
constexpr std::int64_t kBlockBytes = kBlock * 8;
// Blocks that a program holds at a time.
constexpr int kMostBlocks = 24;
constexpr std::size_t kMostResults = 4;

template <class In, class Out, class F>
void binary_loop(const ErasedFunction& function, const void* left, const void* right, void* out,
                 std::int64_t count) {
  const F f = function.as<F>();
  const In* __restrict a = static_cast<const In*>(left);
  const In* __restrict b = static_cast<const In*>(right);
  Out* __restrict y = static_cast<Out*>(out);
  for (std::int64_t i = 0; i < count; ++i) y[i] = static_cast<Out>(f(a[i], b[i]));
}

BinaryLoop find_arithmetic_loop(std::string_view op, const Attributes& attributes,
                                ErasedFunction& function) {
  BinaryLoop loop = nullptr;
  elementwise::visit_arithmetic<float>(op, attributes, [&]<class F>(F f) {
    loop = binary_loop<float, float, F>;
    function = ErasedFunction(f);
  });
  return loop;
}

using Bool = std::uint8_t;

/// Comparisons and logic.
BinaryLoop find_mask_loop(std::string_view op, DType in) {
  using namespace elementwise;
  BinaryLoop loop = nullptr;
  if (in == DType::kFloat32)
    visit_comparison<float>(op, [&]<class F>(F) { loop = binary_loop<float, Bool, F>; });
  if (in == DType::kInt64) {
    visit_comparison<std::int64_t>(op,
                                   [&]<class F>(F) { loop = binary_loop<std::int64_t, Bool, F>; });
  }
  if (in == DType::kBool) {
    visit_logic(op, [&]<class F>(F) { loop = binary_loop<Bool, Bool, F>; });
    if (op == "Equal") return binary_loop<Bool, Bool, Equal<Bool>>;
  }
  return loop;
}

/// y[i] = condition[i] ? a[i] : b[i].
using Choice = void (*)(const Bool* condition, const void* a, const void* b, void* y,
                        std::int64_t count);

template <class T>
void choose(const Bool* __restrict condition, const void* yes, const void* no, void* out,
            std::int64_t count) {
  const T* __restrict a = static_cast<const T*>(yes);
  const T* __restrict b = static_cast<const T*>(no);
  T* __restrict y = static_cast<T*>(out);
  for (std::int64_t i = 0; i < count; ++i) {
    // Both are loaded first, so that the compiler emits a blend and not a branch.
    const T here = a[i], there = b[i];
    y[i] = condition[i] ? here : there;
  }
}

/// Calls body with an unsigned number of `size` bytes.
template <class Body>
void with_size(std::int64_t size, Body body) {
  if (size == 1) return body(std::uint8_t{});
  if (size == 2) return body(std::uint16_t{});
  if (size == 4) return body(std::uint32_t{});
  body(std::uint64_t{});
}

/// Blocks hold floats where tensors hold narrower ones.
DType computed_in(DType dtype) { return narrow_conversion(dtype) ? DType::kFloat32 : dtype; }

void copy_floats(const ErasedFunction&, const void* from, void* to, std::int64_t count) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
}

struct Step {
  UnaryLoop unary = nullptr;
  BinaryLoop binary = nullptr;
  Choice choice = nullptr;
  ErasedFunction function;
  std::int64_t size = 4;    // bytes of an element of its result, as it is stored
  NarrowConversion narrow;  // its result is written to a block, then converted to the output
  bool is_dropout = false;
  DropoutParameters dropout;
  PhiloxKey key;              // of this run
  std::vector<int> operands;  // inputs, then steps
  int result = -1;            // index of the output, or
  int block = -1;             // index of the block
};

/// A step over bfloat16; without a loop where there is none.
Step bfloat16_step(const FusedStep& from) {
  Step step;
  step.operands = from.operands;
  const std::string_view op = from.op == "Sum" ? "Add" : std::string_view(from.op);
  if (from.operands.size() == 1) {
    step.unary = elementwise::find_bfloat16_unary_loop(op, from.attributes, step.function);
  } else if (from.operands.size() == 2) {
    step.binary = elementwise::find_bfloat16_arithmetic_loop(op, from.attributes, step.function);
    if (!step.binary)
      step.binary = elementwise::find_bfloat16_gradient_loop(op, from.attributes, step.function);
  }
  return step;
}

/// Whether bfloat16_step() has every step, over inputs and results that are all bfloat16.
bool is_bfloat16(const KernelRequest& request, const FusedProgram& program) {
  const auto narrow = [](const TensorType& type) { return type.dtype == DType::kBFloat16; };
  bool all = std::ranges::all_of(request.inputs, narrow);
  for (std::size_t k = 0; all && k < program.steps.size(); ++k) {
    const Step step = bfloat16_step(program.steps[k]);
    all = program.stored(static_cast<int>(k), request.inputs) == DType::kBFloat16 &&
          (step.unary || step.binary);
  }
  return all;
}

/// How a block of an input is loaded, broadcast to the result's elements.
struct Operand {
  enum class Kind : std::uint8_t { kWhole, kScalar, kRepeated } kind = Kind::kWhole;
  std::int64_t size = 4;  // bytes of an element
  NarrowConversion narrow;
  int block = -1;      // kScalar, kRepeated, or narrow
  BroadcastPlan plan;  // kRepeated
};

/// Blocks for values that are not outputs; freed blocks are reused first.
class BlockPool {
 public:
  int take() {
    if (free_.empty()) return count_++;
    const int block = free_.back();
    free_.pop_back();
    return block;
  }
  void give_back(int block) { free_.push_back(block); }
  int count() const { return count_; }

 private:
  int count_ = 0;
  std::vector<int> free_;
};

class FusedKernel final : public Kernel {
 public:
  FusedKernel(const KernelRequest& request, const FusedProgram& program)
      : count_(request.outputs[0].count()), results_(program.results.size()) {
    const bool narrow = is_bfloat16(request, program);
    BlockPool pool;
    std::vector<DType> types;  // of inputs, then steps
    for (const TensorType& type : request.inputs) {
      Operand operand;
      operand.size = static_cast<std::int64_t>(size_of(type.dtype));
      if (!narrow) operand.narrow = narrow_conversion(type.dtype);
      types.push_back(computed_in(type.dtype));
      if (type.shape != request.outputs[0].shape) {
        operand.kind = type.count() == 1 ? Operand::Kind::kScalar : Operand::Kind::kRepeated;
        if (type.count() != 1)
          operand.plan = plan_broadcast(request.outputs[0], std::span(&type, 1));
      }
      if (operand.kind != Operand::Kind::kWhole || operand.narrow) operand.block = pool.take();
      operands_.push_back(std::move(operand));
    }
    for (const FusedStep& from : program.steps) {
      const DType out = program.stored(static_cast<int>(steps_.size()), request.inputs);
      steps_.push_back(narrow ? bfloat16_step(from) : step_of(from, types, computed_in(out)));
      steps_.back().size = static_cast<std::int64_t>(size_of(out));
      if (!narrow) steps_.back().narrow = narrow_conversion(out);
      types.push_back(computed_in(out));
    }
    place_steps(program, pool);
    blocks_ = pool.count();
  }

  /// False when a step has no CPU loop, or there are too few blocks.
  bool is_complete() const {
    return blocks_ <= kMostBlocks && results_ <= kMostResults &&
           std::all_of(steps_.begin(), steps_.end(), [](const Step& step) {
             const std::size_t n = step.operands.size();
             return (step.unary && n == 1) || (step.binary && n == 2) || (step.choice && n == 3) ||
                    (step.is_dropout && n == 1) || is_sum(step);
           });
  }

  void run(std::span<const Tensor> in, std::span<const Tensor> out,
           const RunContext& context) override {
    for (Step& step : steps_) {
      if (step.is_dropout) step.key = dropout_key(context, step.dropout.node_key);
    }
    // An output may reuse the memory of an input that is no longer needed.
    bool in_place = false;
    for (const Tensor& y : out) {
      for (const Tensor& x : in) in_place = in_place || (x.data == y.data && y.data);
    }
    const std::int64_t blocks = (count_ + kBlock - 1) / kBlock;
#pragma omp parallel if (count_ > elementwise::kParallelElements)
    {
      alignas(64) std::byte memory[kMostBlocks][kBlockBytes];
      alignas(64) std::byte results[kMostResults][kBlockBytes];
      const void* values[kMostFusedOperands];
      for (std::size_t i = 0; i < operands_.size(); ++i) {
        if (operands_[i].kind != Operand::Kind::kScalar) continue;
        values[i] = memory[operands_[i].block];
        fill_block(operands_[i], in[i], memory[operands_[i].block]);
      }
#pragma omp for schedule(static)
      for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t first = block * kBlock;
        run_block(in, out, context, first, std::min(kBlock, count_ - first), memory, results,
                  in_place, values);
      }
    }
  }

 private:
  /// Fills a block with the single element of an input.
  static void fill_block(const Operand& operand, const Tensor& x, std::byte* block) {
    if (operand.narrow) {
      float number = 0;
      operand.narrow.widen(x.as<const std::uint16_t>(), &number, 1);
      std::fill_n(reinterpret_cast<float*>(block), kBlock, number);
      return;
    }
    with_size(operand.size,
              [&]<class T>(T) { std::fill_n(reinterpret_cast<T*>(block), kBlock, *x.as<T>()); });
  }

  static bool is_sum(const Step& step) {
    return !step.unary && !step.binary && !step.choice && !step.is_dropout &&
           step.operands.size() > 2;
  }

  /// `types`: computation types of the inputs and of the steps so far; `out`: that of the result.
  static Step step_of(const FusedStep& from, const std::vector<DType>& types, DType out) {
    const DType in = types[static_cast<std::size_t>(from.operands.back())];
    Step step;
    step.operands = from.operands;
    if (from.op == "Dropout") {
      step.is_dropout = true;
      step.dropout = dropout_parameters(from.attributes);
    } else if (from.op == "Sum") {
      if (from.operands.size() == 2) step.binary = find_arithmetic_loop("Add", {}, step.function);
    } else if (from.op == "Where") {
      with_size(static_cast<std::int64_t>(size_of(out)),
                [&]<class T>(T) { step.choice = choose<T>; });
    } else if (from.op == "Cast" && in == DType::kFloat32 && out == in) {
      step.unary = copy_floats;  // rounded as it is stored
    } else if (from.operands.size() == 1) {
      step.unary = find_unary_loop(from.op, from.attributes, in, out, step.function);
    } else if (out == DType::kBool) {
      step.binary = find_mask_loop(from.op, in);
    } else {
      step.binary = find_arithmetic_loop(from.op, from.attributes, step.function);
      if (!step.binary) step.binary = find_gradient_loop(from.op, from.attributes, step.function);
    }
    return step;
  }

  /// Outputs are written to their tensors; all other results (and outputs in narrow types) to
  /// blocks, which are freed after their last use.
  void place_steps(const FusedProgram& program, BlockPool& pool) {
    const auto inputs = operands_.size();
    std::vector<std::size_t> last(steps_.size(), 0);
    for (std::size_t k = 0; k < steps_.size(); ++k) {
      for (const int operand : steps_[k].operands) {
        if (operand >= static_cast<int>(inputs))
          last[static_cast<std::size_t>(operand) - inputs] = k;
      }
    }
    for (std::size_t r = 0; r < program.results.size(); ++r)
      steps_[static_cast<std::size_t>(program.results[r])].result = static_cast<int>(r);
    for (std::size_t k = 0; k < steps_.size(); ++k) {
      if (steps_[k].result < 0 || steps_[k].narrow) steps_[k].block = pool.take();
      for (std::size_t j = 0; j < k; ++j) {
        if (last[j] == k && steps_[j].block >= 0) pool.give_back(steps_[j].block);
      }
    }
  }

  void run_block(std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context,
                 std::int64_t first, std::int64_t count, std::byte (*memory)[kBlockBytes],
                 std::byte (*results)[kBlockBytes], bool in_place, const void** values) const {
    alignas(64) std::uint16_t stored[kBlock];  // staging for narrow results
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      const Operand& operand = operands_[i];
      if (operand.kind == Operand::Kind::kScalar) continue;
      const std::byte* from = in[i].as<std::byte>() + first * operand.size;
      if (operand.kind == Operand::Kind::kRepeated) {
        auto* to = operand.narrow ? reinterpret_cast<std::byte*>(stored) : memory[operand.block];
        with_size(operand.size, [&]<class T>(T) {
          expand(operand.plan, in[i].as<const T>(), first, count, reinterpret_cast<T*>(to));
        });
        from = to;
      }
      values[i] = from;
      if (!operand.narrow) continue;
      operand.narrow.widen(reinterpret_cast<const std::uint16_t*>(from),
                           reinterpret_cast<float*>(memory[operand.block]), count);
      values[i] = memory[operand.block];
    }
    const std::size_t inputs = operands_.size();
    for (std::size_t k = 0; k < steps_.size(); ++k) {
      const Step& step = steps_[k];
      std::byte* result = reinterpret_cast<std::byte*>(stored);
      if (step.result >= 0) {
        auto* to = out[static_cast<std::size_t>(step.result)].as<std::byte>();
        result = in_place || !to ? results[step.result] : to + first * step.size;
      }
      std::byte* y = step.block < 0 ? result : memory[step.block];
      const auto x = [&](std::size_t o) {
        return values[static_cast<std::size_t>(step.operands[o])];
      };
      if (step.unary) {
        step.unary(step.function, x(0), y, count);
      } else if (step.binary) {
        step.binary(step.function, x(0), x(1), y, count);
      } else if (step.choice) {
        step.choice(static_cast<const Bool*>(x(0)), x(1), x(2), y, count);
      } else if (step.is_dropout) {
        drop_out(step.dropout, step.key, context.first_sample, elements_per_sample(count_, context),
                 first, count, static_cast<const float*>(x(0)), reinterpret_cast<float*>(y));
      } else {
        sum(step, values, reinterpret_cast<float*>(y), count);
      }
      if (step.narrow) {
        auto* block = reinterpret_cast<float*>(y);
        auto* rounded = reinterpret_cast<std::uint16_t*>(result);
        step.narrow.round(block, rounded, count);
        step.narrow.widen(rounded, block, count);
      }
      values[inputs + k] = y;
    }
    if (!in_place) return;
    for (const Step& step : steps_) {
      if (step.result < 0) continue;
      auto* to = out[static_cast<std::size_t>(step.result)].as<std::byte>();
      if (to) std::copy_n(results[step.result], count * step.size, to + first * step.size);
    }
  }

  static void sum(const Step& step, const void* const* values, float* __restrict y,
                  std::int64_t count) {
    const auto operand = [&](std::size_t o) {
      return static_cast<const float*>(values[static_cast<std::size_t>(step.operands[o])]);
    };
    const float* __restrict a = operand(0);
    const float* __restrict b = operand(1);
    for (std::int64_t i = 0; i < count; ++i) y[i] = a[i] + b[i];
    for (std::size_t o = 2; o < step.operands.size(); ++o) {
      const float* __restrict c = operand(o);
      for (std::int64_t i = 0; i < count; ++i) y[i] += c[i];
    }
  }

  /// The operand's elements for the result's elements [first, first + count).
  template <class T>
  static void expand(const BroadcastPlan& plan, const T* from, std::int64_t first,
                     std::int64_t count, T* to) {
    const std::size_t inner = plan.dims.size() - 1;
    const std::int64_t columns = plan.dims[inner];
    const std::int64_t stride = plan.strides[0][inner];
    std::int64_t column = first % columns, row = first / columns;
    for (std::int64_t done = 0; done < count; ++row) {
      const std::int64_t size = std::min(columns - column, count - done);
      const T* at = from + column * stride;
      std::int64_t rest = row;
      for (std::size_t axis = inner; axis-- > 0;) {
        at += rest % plan.dims[axis] * plan.strides[0][axis];
        rest /= plan.dims[axis];
      }
      if (stride == 0) {
        std::fill_n(to + done, size, *at);
      } else if (stride == 1) {
        std::memcpy(to + done, at, static_cast<std::size_t>(size) * sizeof(T));
      } else {
        for (std::int64_t i = 0; i < size; ++i) to[done + i] = at[i * stride];
      }
      done += size;
      column = 0;
    }
  }

  std::int64_t count_;
  std::size_t results_;
  std::vector<Operand> operands_;
  std::vector<Step> steps_;
  int blocks_ = 0;
};

std::unique_ptr<Kernel> make_fused(const KernelRequest& request) {
  const FusedProgram program =
      fused_program(request.node.attributes, static_cast<int>(request.inputs.size()));
  const auto is_taken = [](DType dtype) {
    return computed_in(dtype) == DType::kFloat32 || dtype == DType::kBool || dtype == DType::kInt64;
  };
  for (const auto* types : {&request.inputs, &request.outputs}) {
    for (const TensorType& type : *types) {
      if (!is_taken(type.dtype)) return nullptr;
    }
  }
  for (const FusedStep& step : program.steps) {
    if (step.stored != DType::kUndefined && !is_taken(step.stored)) return nullptr;
  }
  auto kernel = std::make_unique<FusedKernel>(request, program);
  if (!kernel->is_complete()) return nullptr;
  return kernel;
}

constexpr KernelEntry kKernels[] = {{"Fused", make_fused}};

}  // namespace

std::span<const KernelEntry> fused_cpu_kernels() { return kKernels; }

}  // namespace pipetrain
