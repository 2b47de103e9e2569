// Cumulative sums and products, one line at a time.
#include "graph/op.h"
#include "ops/kernel/type_switch.h"
#include "ops/reduce/cumulative.h"

namespace pipetrain {
namespace {

using Tensors = std::span<const Tensor>;

template <class T>
void run(const CumulativeAxis& axis, bool product, Tensors in, Tensors out) {
  const T* x = in[0].as<T>();
  T* y = out[0].as<T>();
  for (std::int64_t o = 0; o < axis.outer; ++o) {
    for (std::int64_t i = 0; i < axis.inner; ++i) {
      T total = product ? T(1) : T(0);
      for (std::int64_t step = 0; step < axis.size; ++step) {
        const std::int64_t at = axis.at(o, step, i);
        const T next = static_cast<T>(product ? total * x[at] : total + x[at]);
        y[at] = axis.exclusive ? total : next;
        total = next;
      }
    }
  }
}

// dx[i] = (x[0] … x[i-1]) s[i] with s[i] = dy[i] + x[i+1] s[i+1]; exclusive: s[i] = dy[i+1] +
// x[i+1] s[i+1]. There is no division, so zeros are harmless.
template <class T>
void run_gradient(const CumulativeAxis& axis, Tensors in, Tensors out) {
  const T* dy = in[0].as<T>();
  const T* x = in[1].as<T>();
  T* dx = out[0].as<T>();
  for (std::int64_t o = 0; o < axis.outer; ++o) {
    for (std::int64_t i = 0; i < axis.inner; ++i) {
      T sum = 0;
      for (std::int64_t step = axis.size; step-- > 0;) {
        const std::int64_t at = axis.at(o, step, i);
        const T after = step + 1 < axis.size ? x[axis.at(o, step + 1, i)] * sum : T(0);
        if (axis.exclusive) {
          sum = step + 1 < axis.size ? dy[axis.at(o, step + 1, i)] + after : T(0);
        } else {
          sum = dy[at] + after;
        }
        dx[at] = sum;
      }
      T before = 1;
      for (std::int64_t step = 0; step < axis.size; ++step) {
        const std::int64_t at = axis.at(o, step, i);
        dx[at] *= before;
        before *= x[at];
      }
    }
  }
}

std::unique_ptr<Kernel> make_cumulative(const KernelRequest& request) {
  std::unique_ptr<Kernel> made;
  visit_number(request.inputs[0].dtype, [&]<class T>(T) {
    made = make_kernel(
        [axis = cumulative_axis(request), product = request.node.op->name == "CumProd"](
            Tensors in, Tensors out, const RunContext&) { run<T>(axis, product, in, out); });
  });
  return made;
}

std::unique_ptr<Kernel> make_gradient(const KernelRequest& request) {
  std::unique_ptr<Kernel> made;
  visit_float(request.inputs[0].dtype, [&]<class T>(T) {
    made =
        make_kernel([axis = cumulative_axis(request)](Tensors in, Tensors out, const RunContext&) {
          run_gradient<T>(axis, in, out);
        });
  });
  return made;
}

constexpr KernelEntry kCumulativeReferenceKernels[] = {
    {"CumProd", make_cumulative},
    {"CumProdGrad", make_gradient},
    {"CumSum", make_cumulative},
};

}  // namespace

std::span<const KernelEntry> cumulative_reference_kernels() { return kCumulativeReferenceKernels; }

}  // namespace pipetrain
