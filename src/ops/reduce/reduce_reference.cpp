// Reductions as plain loops over the input in memory order.
#include <limits>

#include "ops/kernel/type_switch.h"
#include "ops/reduce/reduce.h"

namespace pipetrain::reduce {
namespace {

using Made = std::unique_ptr<Kernel>;

/// Calls visit(input offset, output offset) for every element of the input.
template <class Visit>
void for_elements(const ReducePlan& plan, Visit visit, std::size_t axis = 0, std::int64_t from = 0,
                  std::int64_t to = 0) {
  if (axis == plan.dims.size()) return visit(from, to);
  const ReducePlan::Dimension& dim = plan.dims[axis];
  for (std::int64_t i = 0; i < dim.size; ++i) {
    for_elements(plan, visit, axis + 1, from + i * dim.input_stride, to + i * dim.output_stride);
  }
}

template <class T, class F>
Made reduction(ReducePlan plan, T start, F combine, bool mean = false) {
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        const T* x = in[0].as<T>();
        T* y = out[0].as<T>();
        for (std::int64_t i = 0; i < plan.kept; ++i) y[i] = start;
        if (plan.reduced * plan.kept > 0) {
          for_elements(
              plan, [&](std::int64_t from, std::int64_t to) { y[to] = combine(y[to], x[from]); });
        }
        for (std::int64_t i = 0; mean && i < plan.kept; ++i) {
          y[i] = plan.reduced ? static_cast<T>(y[i] / static_cast<T>(plan.reduced))
                              : std::numeric_limits<T>::quiet_NaN();
        }
      });
}

Made make_reduce(const KernelRequest& request) {
  const std::string_view op = request.node.op->name;
  Made made;
  const bool truth = request.inputs[0].dtype == DType::kBool;
  visit_number(truth ? DType::kUint8 : request.inputs[0].dtype, [&]<class T>(T) {
    using Limits = std::numeric_limits<T>;
    const T lowest = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    const T highest = truth ? T(1) : (Limits::has_infinity ? Limits::infinity() : Limits::max());
    const ReducePlan plan = plan_of(request);
    const auto add = [](T a, T b) { return static_cast<T>(a + b); };
    if (op == "ReduceSum" || op == "SumTo") made = reduction<T>(plan, T(0), add);
    if (op == "ReduceMean") made = reduction<T>(plan, T(0), add, /*mean=*/true);
    if (op == "ReduceProd") {
      made = reduction<T>(plan, T(1), [](T a, T b) { return static_cast<T>(a * b); });
    }
    // NaN wins.
    if (op == "ReduceMax") {
      made = reduction<T>(plan, lowest, [](T a, T b) { return b > a || b != b ? b : a; });
    }
    if (op == "ReduceMin") {
      made = reduction<T>(plan, highest, [](T a, T b) { return b < a || b != b ? b : a; });
    }
  });
  return made;
}

/// ArgMax, ArgMin: the first of equal elements, or the last with select_last_index.
Made make_arg(const KernelRequest& request) {
  const auto [outer, size, inner, maximum, last] = arg_rule(request);
  Made made;
  visit_number(request.inputs[0].dtype, [&]<class T>(T) {
    made = make_kernel(
        [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
          for (std::int64_t o = 0; o < outer; ++o) {
            for (std::int64_t i = 0; i < inner; ++i) {
              const T* x = in[0].as<T>() + o * size * inner + i;
              std::int64_t best = 0;
              for (std::int64_t k = 1; k < size; ++k) {
                const T a = x[k * inner];
                const T b = x[best * inner];
                if ((maximum ? a > b : a < b) || (last && a == b)) best = k;
              }
              out[0].as<std::int64_t>()[o * inner + i] = best;
            }
          }
        });
  });
  return made;
}

constexpr KernelEntry kReduceReferenceKernels[] = {
    {"ArgMax", make_arg},        {"ArgMin", make_arg},       {"ReduceMax", make_reduce},
    {"ReduceMean", make_reduce}, {"ReduceMin", make_reduce}, {"ReduceProd", make_reduce},
    {"ReduceSum", make_reduce},  {"SumTo", make_reduce},
};

}  // namespace

std::span<const KernelEntry> reference_kernels() { return kReduceReferenceKernels; }

}  // namespace pipetrain::reduce
