// Element-wise operators on GPUs: maps nodes to the functions of the lists.
#include <optional>

#include "graph/op.h"
#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/elementwise/elementwise_functors.h"
#include "ops/elementwise/elementwise_list_cuda.h"
#include "ops/elementwise/padded_rows_launch_cuda.h"
#include "ops/kernel/broadcast_plan.h"
#include "ops/kernel/element_types.h"

namespace pipetrain::elementwise {
namespace {

using Made = std::unique_ptr<Kernel>;
using In = std::span<const Tensor>;

bool all_float(const KernelRequest& request) {
  for (const auto* types : {&request.inputs, &request.outputs}) {
    for (const TensorType& type : *types) {
      if (!is_stored_float(type.dtype)) return false;
    }
  }
  return lies_alike(request);
}

/// A function of the C library, as the list of unary functions has it.
Coded of_library(std::string_view op) {
#define PT_OF_LIBRARY(Function, ...) \
  if (op == #Function) return encode(Function##OfLibrary(), UnaryFunctions());
  PT_UNARY_OF_LIBRARY(PT_OF_LIBRARY)
#undef PT_OF_LIBRARY
  return {};
}

std::optional<Integral> integral_type(DType type) {
  if (type == DType::kBool) return Integral::kBool;
  if (type == DType::kInt32) return Integral::kInt32;
  if (type == DType::kInt64) return Integral::kInt64;
  return std::nullopt;
}

Made make_integral_unary(const KernelRequest& request, const CudaQueue& queue) {
  if (!lies_alike(request)) return nullptr;
  Coded function;
  const auto find = [&]<class T>(T) {
#define PT_FIND(Function, ...)            \
  if (request.node.op->name == #Function) \
    function = encode(Function<T, DeviceMath>(), IntegralUnaryFunctions());
    PT_UNARY(PT_FIND)
#undef PT_FIND
  };
  if (request.inputs[0].dtype == DType::kInt32) find(std::int32_t{});
  if (request.inputs[0].dtype == DType::kInt64) find(std::int64_t{});
  if (function.place < 0) return nullptr;
  return make_kernel([=](In in, In out, const RunContext&) {
    if (out[0].count() > 0)
      launch_integral(function, in[0].data, out[0].data, out[0].count(), queue);
  });
}

Made make_unary(const KernelRequest& request, const CudaQueue& queue) {
  if (integral_type(request.inputs[0].dtype)) return make_integral_unary(request, queue);
  if (!all_float(request)) return nullptr;
  Coded function;
  visit_unary<float, DeviceMath>(request.node.op->name, request.node.attributes, [&](auto f) {
    if constexpr (std::is_same_v<decltype(f), LibraryFunction<float>>) {
      function = of_library(request.node.op->name);
    } else {
      function = encode(f, UnaryFunctions());
    }
  });
  if (function.place < 0) return nullptr;
  return make_kernel([=](In in, In out, const RunContext&) {
    if (out[0].count() > 0)
      launch_unary(function, numbers_at(in, 0), places_at(out, 0), out[0].count(), queue);
  });
}

Made make_gradient(const KernelRequest& request, const CudaQueue& queue) {
  if (!all_float(request)) return nullptr;
  Coded function;
  visit_gradient<float, DeviceMath>(request.node.op->name, request.node.attributes,
                                    [&](auto f) { function = encode(f, GradientFunctions()); });
  if (function.place < 0) return nullptr;
  return make_kernel([=](In in, In out, const RunContext&) {
    if (out[0].count() > 0)
      launch_gradient(function, numbers_at(in, 0), numbers_at(in, 1), places_at(out, 0),
                      out[0].count(), queue);
  });
}

/// The plan as a kernel argument; none when it has too many dimensions.
bool strided(const KernelRequest& request, Strided& out) {
  const BroadcastPlan plan = plan_broadcast(request.outputs[0], request.inputs);
  if (plan.dims.size() > kMostDimensions) return false;
  out.dimensions = static_cast<int>(plan.dims.size());
  for (std::size_t d = 0; d < plan.dims.size(); ++d) {
    out.sizes[d] = plan.dims[d];
    for (std::size_t k = 0; k < plan.strides.size(); ++k) out.strides[k][d] = plan.strides[k][d];
  }
  return true;
}

/// Of integers and bools.
Made make_integral(const KernelRequest& request, const CudaQueue& queue) {
  Strided plan;
  const DType type = request.inputs[0].dtype;
  if (request.inputs[1].dtype != type || !lies_alike(request) || !strided(request, plan))
    return nullptr;
  const std::string_view op = request.node.op->name;
  Coded function;
  const auto found = [&](auto f) { function = encode(f, IntegralFunctions()); };
  const auto find = [&]<class T>(T) {
    visit_arithmetic<T>(op, request.node.attributes, found) || visit_bitwise<T>(op, found) ||
        visit_comparison<T>(op, found);
  };
  if (type == DType::kBool) visit_logic(op, found) || visit_comparison<std::uint8_t>(op, found);
  if (type == DType::kInt32) find(std::int32_t{});
  if (type == DType::kInt64) find(std::int64_t{});
  if (function.place < 0) return nullptr;
  return make_kernel([=](In in, In out, const RunContext&) {
    if (out[0].count() > 0)
      launch_integral(function, plan, in[0].data, in[1].data, out[0].data, out[0].count(), queue);
  });
}

Made make_arithmetic(const KernelRequest& request, const CudaQueue& queue) {
  if (integral_type(request.inputs[0].dtype)) return make_integral(request, queue);
  Strided plan;
  if (!all_float(request) || !strided(request, plan)) return nullptr;
  Coded function;
  visit_arithmetic<float>(request.node.op->name, request.node.attributes,
                          [&](auto f) { function = encode(f, ArithmeticFunctions()); });
  if (function.place < 0) return nullptr;
  return make_kernel([=](In in, In out, const RunContext&) {
    if (out[0].count() > 0)
      launch_arithmetic(function, plan, numbers_at(in, 0), numbers_at(in, 1), places_at(out, 0),
                        out[0].count(), queue);
  });
}

Made make_comparison(const KernelRequest& request, const CudaQueue& queue) {
  if (integral_type(request.inputs[0].dtype)) return make_integral(request, queue);
  Strided plan;
  if (!is_stored_float(request.inputs[0].dtype) || !is_stored_float(request.inputs[1].dtype) ||
      !lies_alike(request) || !strided(request, plan))
    return nullptr;
  Coded function;
  visit_comparison<float>(request.node.op->name,
                          [&](auto f) { function = encode(f, ComparisonFunctions()); });
  if (function.place < 0) return nullptr;
  return make_kernel([=](In in, In out, const RunContext&) {
    if (out[0].count() > 0)
      launch_comparison(function, plan, numbers_at(in, 0), numbers_at(in, 1),
                        out[0].as<std::uint8_t>(), out[0].count(), queue);
  });
}

Made make_where(const KernelRequest& request, const CudaQueue& queue) {
  Strided plan;
  const DType a = request.inputs[1].dtype, b = request.inputs[2].dtype;
  const DType y = request.outputs[0].dtype;
  const auto size = static_cast<int>(size_of(y));
  const bool alike = size <= 8 && a == y && b == y;
  const bool floats = is_stored_float(a) && is_stored_float(b) && is_stored_float(y);
  if ((!alike && !floats) || !lies_alike(request) || !strided(request, plan)) return nullptr;
  if (!alike) {
    return make_kernel([=](In in, In out, const RunContext&) {
      if (out[0].count() > 0)
        launch_where(plan, in[0].as<std::uint8_t>(), numbers_at(in, 1), numbers_at(in, 2),
                     places_at(out, 0), out[0].count(), queue);
    });
  }
  return make_kernel([=](In in, In out, const RunContext&) {
    if (out[0].count() > 0)
      launch_where(plan, in[0].as<std::uint8_t>(), in[1].data, in[2].data, out[0].data, size,
                   out[0].count(), queue);
  });
}

Made make_cast(const KernelRequest& request, const CudaQueue& queue) {
  using enum DType;
  const DType from = request.inputs[0].dtype, to = request.outputs[0].dtype;
  if (request.outputs[0].layout == Layout::kPaddedRows) {
    if (!is_stored_float(from) || !is_stored_float(to) ||
        request.inputs[0].layout != Layout::kRowMajor)
      return nullptr;
    const Shape& shape = request.outputs[0].shape;
    const std::int64_t columns = shape[shape.rank() - 1];
    static_assert(kRowMultiple == kWide);
    return make_kernel([=](In in, In out, const RunContext&) {
      if (out[0].count() > 0)
        launch_restore_rows(numbers_at(in, 0), places_at(out, 0), out[0].count() / columns, columns,
                            out[0].type.padded_rows(), queue);
    });
  }
  if (!lies_alike(request)) return nullptr;
  if (is_stored_float(from) && is_stored_float(to)) {
    return make_kernel([=](In in, In out, const RunContext&) {
      if (out[0].count() > 0)
        launch_restore(numbers_at(in, 0), places_at(out, 0), out[0].count(), queue);
    });
  }
  const std::optional<Integral> integral_from = integral_type(from),
                                integral_to = integral_type(to);
  if ((!integral_from && !is_stored_float(from)) || (!integral_to && !is_stored_float(to)))
    return nullptr;
  return make_kernel([=](In in, In out, const RunContext&) {
    const std::int64_t count = out[0].count();
    if (count == 0) return;
    if (integral_from && integral_to) {
      launch_cast(*integral_from, in[0].data, *integral_to, out[0].data, count, queue);
    } else if (integral_to) {
      launch_cast(numbers_at(in, 0), *integral_to, out[0].data, count, queue);
    } else {
      launch_cast(*integral_from, in[0].data, places_at(out, 0), count, queue);
    }
  });
}

Made make_not(const KernelRequest& request, const CudaQueue& queue) {
  if (!lies_alike(request)) return nullptr;
  return make_kernel([=](In in, In out, const RunContext&) {
    if (out[0].count() > 0)
      launch_not(in[0].as<std::uint8_t>(), out[0].as<std::uint8_t>(), out[0].count(), queue);
  });
}

Made make_is_nan(const KernelRequest& request, const CudaQueue& queue) {
  if (!is_stored_float(request.inputs[0].dtype) || !lies_alike(request)) return nullptr;
  return make_kernel([=](In in, In out, const RunContext&) {
    if (out[0].count() > 0)
      launch_is_nan(numbers_at(in, 0), out[0].as<std::uint8_t>(), out[0].count(), queue);
  });
}

/// In one kernel: the output may share memory with one of the inputs.
Made make_sum(const KernelRequest& request, const CudaQueue& queue) {
  if (!all_float(request) || request.inputs.size() > kMostSummands) return nullptr;
  return make_kernel([=](In in, In out, const RunContext&) {
    Summands summands;
    for (std::size_t k = 0; k < in.size(); ++k) summands.x[summands.count++] = numbers_at(in, k);
    if (out[0].count() > 0) launch_sum(summands, places_at(out, 0), out[0].count(), queue);
  });
}

constexpr CudaKernelEntry kKernels[] = {
// clang-format off
#define PT_ENTRY(Operator, ...) {#Operator, make_unary},
    PT_UNARY_WITH_GRADIENT(PT_ENTRY)
    PT_UNARY(PT_ENTRY)
    PT_UNARY_OF_LIBRARY(PT_ENTRY)
#undef PT_ENTRY
#define PT_ENTRY(Operator, ...) {#Operator "Grad", make_gradient},
    PT_UNARY_WITH_GRADIENT(PT_ENTRY)
#undef PT_ENTRY
#define PT_ENTRY(Operator, ...) {#Operator, make_arithmetic},
    PT_ARITHMETIC(PT_ENTRY)
#undef PT_ENTRY
#define PT_ENTRY(Operator, ...) {#Operator, make_comparison},
    PT_COMPARISONS(PT_ENTRY)
#undef PT_ENTRY
#define PT_ENTRY(Operator) {#Operator, make_integral},
    PT_LOGIC(PT_ENTRY)
    PT_BITWISE(PT_ENTRY)
#undef PT_ENTRY
    {"Cast", make_cast},
    {"IsNaN", make_is_nan},
    {"Not", make_not},
    {"Sum", make_sum},
    {"Where", make_where},
    // clang-format on
};

}  // namespace
}  // namespace pipetrain::elementwise

namespace pipetrain {

std::span<const CudaKernelEntry> elementwise_cuda_kernels() { return elementwise::kKernels; }

void launch_add(float* to, const float* from, std::int64_t count, const CudaQueue& queue) {
  using namespace elementwise;
  if (count == 0) return;  // a replica's share of a gradient with fewer values than replicas
  Strided flat;
  flat.dimensions = 1;
  flat.sizes[0] = count;
  flat.strides[0][0] = flat.strides[1][0] = 1;
  launch_arithmetic(encode(Add<float>(), ArithmeticFunctions()), flat, to, from, to, count, queue);
}

}  // namespace pipetrain
