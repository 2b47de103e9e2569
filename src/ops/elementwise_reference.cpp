// Element-wise operators as plain loops over every element type: what folding uses and what other
// kernels are compared with.
#include <type_traits>

#include "base/error.h"
#include "ops/broadcast_plan.h"
#include "ops/elementwise.h"
#include "ops/elementwise_functors.h"
#include "ops/type_switch.h"

namespace pipetrain::elementwise {
namespace {

using Made = std::unique_ptr<Kernel>;

template <class In, class Out, class F>
Made map_kernel(F f) {
  return make_kernel(
      [f](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        const In* x = in[0].as<In>();
        Out* y = out[0].as<Out>();
        for (std::int64_t i = 0; i < out[0].count(); ++i) y[i] = f(x[i]);
      });
}

/// Broadcasts both operands; all three types are plain.
template <class In, class Out, class F>
Made broadcast_kernel(const KernelRequest& request, F f) {
  const BroadcastPlan plan = plan_broadcast(request.outputs[0], request.inputs);
  return make_kernel(
      [f, plan](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        const In* a = in[0].as<In>();
        const In* b = in[1].as<In>();
        Out* y = out[0].as<Out>();
        PlanCursor at(plan, plan.dims.size());
        for (std::int64_t i = 0; i < out[0].count(); ++i, at.next())
          y[i] = f(a[at.offset(0)], b[at.offset(1)]);
      });
}

Made make_unary(const KernelRequest& request) {
  const std::string_view op = request.node.op->name;
  const Attributes& attributes = request.node.attributes;
  const DType dtype = request.inputs[0].dtype;
  Made made;
  visit_float(dtype, [&]<class T>(T) {
    visit_unary<T, StandardMath>(op, attributes, [&](auto f) { made = map_kernel<T, T>(f); });
  });
  if (made) return made;
  visit_integer(dtype, [&]<class T>(T) {
    using Math = StandardMath;
    if (op == "Abs") made = map_kernel<T, T>(Abs<T, Math>{});
    if (op == "Neg") made = map_kernel<T, T>(Neg<T, Math>{});
    if (op == "Sign") made = map_kernel<T, T>(Sign<T, Math>{});
    if (op == "Relu") made = map_kernel<T, T>(Relu<T, Math>{});
    if (op == "Clip") made = map_kernel<T, T>(clip_from<T, Math, Clip>(attributes));
  });
  return made;
}

Made make_gradient(const KernelRequest& request) {
  Made made;
  visit_float(request.inputs[0].dtype, [&]<class T>(T) {
    visit_gradient<T, StandardMath>(request.node.op->name, request.node.attributes, [&](auto f) {
      made = make_kernel(
          [f](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
            const T* dy = in[0].as<T>();
            const T* v = in[1].as<T>();
            T* dx = out[0].as<T>();
            for (std::int64_t i = 0; i < out[0].count(); ++i) dx[i] = f(dy[i], v[i]);
          });
    });
  });
  return made;
}

Made make_arithmetic(const KernelRequest& request) {
  Made made;
  visit_number(request.inputs[0].dtype, [&]<class T>(T) {
    visit_arithmetic<T>(request.node.op->name, request.node.attributes,
                        [&](auto f) { made = broadcast_kernel<T, T>(request, f); });
  });
  return made;
}

Made make_comparison(const KernelRequest& request) {
  Made made;
  const auto visit = [&]<class T>(T) {
    visit_comparison<T>(request.node.op->name,
                        [&](auto f) { made = broadcast_kernel<T, std::uint8_t>(request, f); });
  };
  if (request.inputs[0].dtype == DType::kBool)
    visit(std::uint8_t{});
  else
    visit_number(request.inputs[0].dtype, visit);
  return made;
}

Made make_logical(const KernelRequest& request) {
  using Bool = std::uint8_t;
  const std::string_view op = request.node.op->name;
  if (op == "And") {
    return broadcast_kernel<Bool, Bool>(request,
                                        [](Bool a, Bool b) -> Bool { return a != 0 && b != 0; });
  }
  if (op == "Or") {
    return broadcast_kernel<Bool, Bool>(request,
                                        [](Bool a, Bool b) -> Bool { return a != 0 || b != 0; });
  }
  return broadcast_kernel<Bool, Bool>(request,
                                      [](Bool a, Bool b) -> Bool { return (a != 0) != (b != 0); });
}

Made make_not(const KernelRequest&) {
  using Bool = std::uint8_t;
  return map_kernel<Bool, Bool>([](Bool x) -> Bool { return x == 0; });
}

Made make_is_nan(const KernelRequest& request) {
  Made made;
  visit_float(request.inputs[0].dtype, [&]<class T>(T) {
    made = map_kernel<T, std::uint8_t>([](T x) -> std::uint8_t { return x != x; });
  });
  return made;
}

Made make_sum(const KernelRequest& request) {
  Made made;
  visit_number(request.inputs[0].dtype, [&]<class T>(T) {
    made =
        make_kernel([](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
          T* y = out[0].as<T>();
          for (std::int64_t i = 0; i < out[0].count(); ++i) {
            T sum = in[0].as<T>()[i];
            for (std::size_t k = 1; k < in.size(); ++k)
              sum = static_cast<T>(sum + in[k].as<T>()[i]);
            y[i] = sum;
          }
        });
  });
  return made;
}

Made make_where(const KernelRequest& request) {
  const BroadcastPlan plan = plan_broadcast(request.outputs[0], request.inputs);
  Made made;
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

// --- Cast: through one common type would lose bits of int64, so every pair is its own loop ---

/// How a type lies in memory, and how one of its elements is read and written as a number.
template <class T>
struct Plain {
  using Stored = T;
  static T load(Stored x) { return x; }
  template <class From>
  static Stored store(From x) {
    return static_cast<T>(x);
  }
};
struct Bool {
  using Stored = std::uint8_t;
  static int load(Stored x) { return x != 0; }
  template <class From>
  static Stored store(From x) {
    return x != From(0);
  }
};
struct Half {
  using Stored = std::uint16_t;
  static float load(Stored x) { return half_to_float(x); }
  template <class From>
  static Stored store(From x) {
    return float_to_half(static_cast<float>(x));
  }
};
struct BFloat {
  using Stored = std::uint16_t;
  static float load(Stored x) { return bfloat16_to_float(x); }
  template <class From>
  static Stored store(From x) {
    return float_to_bfloat16(static_cast<float>(x));
  }
};

template <class Visit>
void visit_stored(DType dtype, Visit visit) {
  if (dtype == DType::kBool) return visit(Bool{});
  if (dtype == DType::kFloat16) return visit(Half{});
  if (dtype == DType::kBFloat16) return visit(BFloat{});
  visit_number(dtype, [&]<class T>(T) { visit(Plain<T>{}); });
}

using CastLoop = void (*)(const void* in, void* out, std::int64_t count);

template <class From, class To>
void cast_loop(const void* in, void* out, std::int64_t count) {
  const auto* x = static_cast<const typename From::Stored*>(in);
  auto* y = static_cast<typename To::Stored*>(out);
  for (std::int64_t i = 0; i < count; ++i) y[i] = To::store(From::load(x[i]));
}

Made make_cast(const KernelRequest& request) {
  CastLoop loop = nullptr;
  visit_stored(request.inputs[0].dtype, [&]<class From>(From) {
    visit_stored(request.outputs[0].dtype, [&]<class To>(To) { loop = cast_loop<From, To>; });
  });
  if (!loop) return nullptr;
  return make_kernel([loop](std::span<const Tensor> in, std::span<const Tensor> out,
                            const RunContext&) { loop(in[0].data, out[0].data, out[0].count()); });
}

constexpr KernelEntry kKernels[] = {
    {"Abs", make_unary},
    {"Ceil", make_unary},
    {"Clip", make_unary},
    {"Cos", make_unary},
    {"Elu", make_unary},
    {"Erf", make_unary},
    {"Exp", make_unary},
    {"Floor", make_unary},
    {"Gelu", make_unary},
    {"HardSigmoid", make_unary},
    {"HardSwish", make_unary},
    {"IsNaN", make_is_nan},
    {"LeakyRelu", make_unary},
    {"Log", make_unary},
    {"Neg", make_unary},
    {"Not", make_not},
    {"PowScalar", make_unary},
    {"Reciprocal", make_unary},
    {"Relu", make_unary},
    {"Round", make_unary},
    {"Sigmoid", make_unary},
    {"Sign", make_unary},
    {"Silu", make_unary},
    {"Sin", make_unary},
    {"Softplus", make_unary},
    {"Sqrt", make_unary},
    {"Tanh", make_unary},
    {"ClipGrad", make_gradient},
    {"EluGrad", make_gradient},
    {"ErfGrad", make_gradient},
    {"GeluGrad", make_gradient},
    {"HardSigmoidGrad", make_gradient},
    {"HardSwishGrad", make_gradient},
    {"LeakyReluGrad", make_gradient},
    {"PowScalarGrad", make_gradient},
    {"ReciprocalGrad", make_gradient},
    {"ReluGrad", make_gradient},
    {"SigmoidGrad", make_gradient},
    {"SiluGrad", make_gradient},
    {"SoftplusGrad", make_gradient},
    {"SqrtGrad", make_gradient},
    {"TanhGrad", make_gradient},
    {"Add", make_arithmetic},
    {"Div", make_arithmetic},
    {"Max", make_arithmetic},
    {"Min", make_arithmetic},
    {"Mod", make_arithmetic},
    {"Mul", make_arithmetic},
    {"Pow", make_arithmetic},
    {"Sub", make_arithmetic},
    {"Equal", make_comparison},
    {"Greater", make_comparison},
    {"GreaterOrEqual", make_comparison},
    {"Less", make_comparison},
    {"LessOrEqual", make_comparison},
    {"And", make_logical},
    {"Or", make_logical},
    {"Xor", make_logical},
    {"Cast", make_cast},
    {"Sum", make_sum},
    {"Where", make_where},
};

}  // namespace

std::span<const KernelEntry> reference_kernels() { return kKernels; }

}  // namespace pipetrain::elementwise
