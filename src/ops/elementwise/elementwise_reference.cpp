// Element-wise operators of one input, their gradients and Sum as plain loops over every element
// type: what folding uses and what other kernels are compared with.
#include <algorithm>

#include "base/error.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/elementwise_functors.h"
#include "ops/kernel/element_loop.h"
#include "ops/kernel/type_switch.h"

namespace pipetrain::elementwise {
namespace {

using Made = std::unique_ptr<Kernel>;

template <class In, class Out, class F>
void unary_loop(const ErasedFunction& function, const void* in, void* out, std::int64_t count) {
  const F f = function.as<F>();
  const auto* x = static_cast<const In*>(in);
  auto* y = static_cast<Out*>(out);
  for (std::int64_t i = 0; i < count; ++i) y[i] = f(x[i]);
}

template <class T, class F>
void binary_loop(const ErasedFunction& function, const void* left, const void* right, void* out,
                 std::int64_t count) {
  const F f = function.as<F>();
  const auto* a = static_cast<const T*>(left);
  const auto* b = static_cast<const T*>(right);
  auto* y = static_cast<T*>(out);
  for (std::int64_t i = 0; i < count; ++i) y[i] = f(a[i], b[i]);
}

Made map_kernel(UnaryLoop loop, ErasedFunction function) {
  if (loop == nullptr) return nullptr;
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        loop(function, in[0].data, out[0].data, out[0].count());
      });
}

Made make_unary(const KernelRequest& request) {
  const std::string_view op = request.node.op->name;
  const Attributes& attributes = request.node.attributes;
  const DType dtype = request.inputs[0].dtype;
  UnaryLoop loop = nullptr;
  ErasedFunction function;
  visit_number(dtype, [&]<class T>(T) {
    visit_unary<T, StandardMath>(op, attributes, [&]<class F>(F f) {
      loop = unary_loop<T, T, F>;
      function = ErasedFunction(f);
    });
  });
  return map_kernel(loop, function);
}

Made make_gradient(const KernelRequest& request) {
  BinaryLoop loop = nullptr;
  ErasedFunction function;
  visit_float(request.inputs[0].dtype, [&]<class T>(T) {
    visit_gradient<T, StandardMath>(request.node.op->name, request.node.attributes,
                                    [&]<class F>(F f) {
                                      loop = binary_loop<T, F>;
                                      function = ErasedFunction(f);
                                    });
  });
  if (loop == nullptr) return nullptr;
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        loop(function, in[0].data, in[1].data, out[0].data, out[0].count());
      });
}

struct LogicalNot {
  std::uint8_t operator()(std::uint8_t x) const { return x == 0; }
};
template <class T>
struct IsNaN {
  std::uint8_t operator()(T x) const { return x != x; }
};

Made make_not(const KernelRequest&) {
  return map_kernel(unary_loop<std::uint8_t, std::uint8_t, LogicalNot>,
                    ErasedFunction(LogicalNot{}));
}

Made make_is_nan(const KernelRequest& request) {
  Made made;
  visit_float(request.inputs[0].dtype, [&]<class T>(T) {
    made = map_kernel(unary_loop<T, std::uint8_t, IsNaN<T>>, ErasedFunction(IsNaN<T>{}));
  });
  return made;
}

Made make_sum(const KernelRequest& request) {
  BinaryLoop loop = nullptr;
  visit_number(request.inputs[0].dtype, [&]<class T>(T) { loop = binary_loop<T, Add<T>>; });
  if (loop == nullptr) return nullptr;
  return make_kernel(
      [loop](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        const ErasedFunction add;
        std::copy_n(in[0].as<std::byte>(), in[0].bytes(), out[0].as<std::byte>());
        for (const Tensor& term : in.subspan(1)) {
          loop(add, out[0].data, term.data, out[0].data, out[0].count());
        }
      });
}

/// The same bits under another type of the same size.
Made make_bit_cast(const KernelRequest&) {
  return make_kernel(
      [](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        std::copy_n(in[0].as<std::byte>(), in[0].bytes(), out[0].as<std::byte>());
      });
}

constexpr KernelEntry kElementwiseReferenceKernels[] = {
// clang-format off
#define PT_ENTRY(Operator, ...) {#Operator, make_unary},
    PT_UNARY_WITH_GRADIENT(PT_ENTRY)
    PT_UNARY(PT_ENTRY)
    PT_UNARY_OF_LIBRARY(PT_ENTRY)
#undef PT_ENTRY
#define PT_ENTRY(Operator, ...) {#Operator "Grad", make_gradient},
    PT_UNARY_WITH_GRADIENT(PT_ENTRY)
#undef PT_ENTRY
#define PT_ENTRY(Operator, ...) {#Operator, make_reference_broadcast},
    PT_ARITHMETIC(PT_ENTRY)
    PT_COMPARISONS(PT_ENTRY)
    PT_LOGIC(PT_ENTRY)
    PT_BITWISE(PT_ENTRY)
#undef PT_ENTRY
    {"BitCast", make_bit_cast},
    {"Cast", make_reference_cast},
    {"IsNaN", make_is_nan},
    {"Not", make_not},
    {"Sum", make_sum},
    {"Where", make_reference_where},
    // clang-format on
};

}  // namespace

std::span<const KernelEntry> reference_kernels() { return kElementwiseReferenceKernels; }

}  // namespace pipetrain::elementwise
