// Operators of two broadcast operands, and Where, for every element type: blocks of the operands
// are copied to contiguous buffers (by element size), and one loop per function and type runs over
// them.
#include <type_traits>

#include "base/error.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/elementwise_functors.h"
#include "ops/kernel/broadcast_plan.h"
#include "ops/kernel/element_loop.h"
#include "ops/kernel/type_switch.h"

namespace pipetrain::elementwise {
namespace {

constexpr std::int64_t kBroadcastBlock = 512;
constexpr std::size_t kLargestElement = 8;

template <class In, class Out, class F>
void binary_loop(const ErasedFunction& function, const void* left, const void* right, void* out,
                 std::int64_t count) {
  const F f = function.as<F>();
  const auto* a = static_cast<const In*>(left);
  const auto* b = static_cast<const In*>(right);
  auto* y = static_cast<Out*>(out);
  for (std::int64_t i = 0; i < count; ++i) y[i] = f(a[i], b[i]);
}

using Gather = void (*)(PlanCursor& at, const void* a, const void* b, void* block_a, void* block_b,
                        std::int64_t count);

template <class T>
void gather(PlanCursor& at, const void* a, const void* b, void* block_a, void* block_b,
            std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i, at.next()) {
    static_cast<T*>(block_a)[i] = static_cast<const T*>(a)[at.offset(0)];
    static_cast<T*>(block_b)[i] = static_cast<const T*>(b)[at.offset(1)];
  }
}

std::unique_ptr<Kernel> broadcast_kernel(const KernelRequest& request, BinaryLoop loop,
                                         ErasedFunction function) {
  if (loop == nullptr) return nullptr;
  Gather collect = nullptr;
  visit_size(request.inputs[0].dtype, [&]<class T>(T) { collect = gather<T>; });
  return make_kernel(
      [=, plan = plan_broadcast(request.outputs[0], request.inputs)](
          std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        alignas(64) std::byte a[kBroadcastBlock * kLargestElement];
        alignas(64) std::byte b[kBroadcastBlock * kLargestElement];
        PlanCursor at(plan, plan.dims.size());
        const auto size = static_cast<std::int64_t>(size_of(out[0].type.dtype));
        const std::int64_t total = out[0].count();
        for (std::int64_t first = 0; first < total; first += kBroadcastBlock) {
          const std::int64_t count = std::min(kBroadcastBlock, total - first);
          collect(at, in[0].data, in[1].data, a, b, count);
          loop(function, a, b, out[0].as<std::byte>() + first * size, count);
        }
      });
}

}  // namespace

std::unique_ptr<Kernel> make_reference_broadcast(const KernelRequest& request) {
  const std::string_view op = request.node.op->name;
  const DType in = request.inputs[0].dtype;
  BinaryLoop loop = nullptr;
  ErasedFunction function;
  const auto set = [&]<class In, class Out, class F>(In, Out, F f) {
    loop = binary_loop<In, Out, F>;
    function = ErasedFunction(f);
  };
  const auto compare = [&]<class T>(T zero) {
    visit_comparison<T>(op, [&](auto f) { set(zero, std::uint8_t{}, f); });
  };
  if (in == DType::kBool) {
    visit_logic(op, [&](auto f) { set(std::uint8_t{}, std::uint8_t{}, f); });
    compare(std::uint8_t{});
  } else if (request.outputs[0].dtype == DType::kBool) {
    visit_number(in, compare);
  } else {
    visit_number(in, [&]<class T>(T zero) {
      visit_arithmetic<T>(op, request.node.attributes, [&](auto f) { set(zero, zero, f); });
    });
    visit_integer(
        in, [&]<class T>(T zero) { visit_bitwise<T>(op, [&](auto f) { set(zero, zero, f); }); });
  }
  return broadcast_kernel(request, loop, function);
}

std::unique_ptr<Kernel> make_reference_where(const KernelRequest& request) {
  const BroadcastPlan plan = plan_broadcast(request.outputs[0], request.inputs);
  std::unique_ptr<Kernel> made;
  visit_size(request.outputs[0].dtype, [&]<class T>(T) {
    made = make_kernel(
        [plan](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
          const auto* condition = in[0].as<std::uint8_t>();
          const T* a = in[1].as<T>();
          const T* b = in[2].as<T>();
          T* y = out[0].as<T>();
          PlanCursor at(plan, plan.dims.size());
          for (std::int64_t i = 0; i < out[0].count(); ++i, at.next()) {
            y[i] = condition[at.offset(0)] ? a[at.offset(1)] : b[at.offset(2)];
          }
        });
  });
  return made;
}

}  // namespace pipetrain::elementwise
