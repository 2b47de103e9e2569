// Plain loops for GroupNorm and its gradient, group by group and in two passes.
#include <cmath>
#include <vector>

#include "ops/kernel/element_types.h"
#include "ops/norm/batch_norm_behind_reference.h"
#include "ops/norm/group_norm.h"

namespace pipetrain {
namespace {

/// Calls `visit(element, channel)` for every element of group `g` of sample `n`.
template <class Visit>
void for_each_of_group(const GroupNormShape& shape, std::int64_t n, std::int64_t g, Visit visit) {
  for (std::int64_t c = g * shape.width(); c < (g + 1) * shape.width(); ++c) {
    const std::int64_t begin = (n * shape.channels + c) * shape.positions;
    for (std::int64_t i = begin; i < begin + shape.positions; ++i) visit(i, c);
  }
}

template <class T>
std::unique_ptr<Kernel> make_group_norm(const KernelRequest& request) {
  const GroupNormShape shape(request.node.attributes, request.inputs[0].shape);
  const BatchNormLimits limits(request.node.attributes);
  const behind::Activation<T> activation(request.node.attributes);
  return make_kernel([=](std::span<const Tensor> in, std::span<const Tensor> out,
                         const RunContext&) {
    const T* x = in[0].as<T>();
    T* means = data_or_null<T>(out, 1);
    T* inverses = data_or_null<T>(out, 2);
    for (std::int64_t group = 0; group < shape.samples * shape.groups; ++group) {
      const std::int64_t n = group / shape.groups, g = group % shape.groups;
      double sum = 0, squares = 0;
      for_each_of_group(shape, n, g, [&](std::int64_t i, std::int64_t) { sum += x[i]; });
      const double mean = sum / shape.population();
      for_each_of_group(shape, n, g, [&](std::int64_t i, std::int64_t) {
        squares += (x[i] - mean) * (x[i] - mean);
      });
      const double inverse = 1 / std::sqrt(squares / shape.population() + shape.epsilon);
      if (means) means[group] = static_cast<T>(mean);
      if (inverses) inverses[group] = static_cast<T>(inverse);
      if (!out[0]) continue;
      for_each_of_group(shape, n, g, [&](std::int64_t i, std::int64_t c) {
        const T y = static_cast<T>((x[i] - mean) * inverse * in[1].as<T>()[c]) + in[2].as<T>()[c];
        out[0].as<T>()[i] = activation.function ? activation.function(y) : behind::clip(y, limits);
      });
    }
  });
}

/// With n = (x - mean) inverse_std and g = dy scale: dx = inverse_std (g - mean(g) - n mean(g n)).
template <class T>
std::unique_ptr<Kernel> make_group_norm_gradient(const KernelRequest& request) {
  const GroupNormShape shape(request.node.attributes, request.inputs[1].shape);
  const BatchNormLimits limits(request.node.attributes);
  const behind::Activation<T> activation(request.node.attributes);
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        const T *dy = in[0].as<T>(), *x = in[1].as<T>(), *scale = in[2].as<T>();
        std::vector<double> dscale(static_cast<std::size_t>(shape.channels));
        std::vector<double> dbias(static_cast<std::size_t>(shape.channels));
        for (std::int64_t group = 0; group < shape.samples * shape.groups; ++group) {
          const std::int64_t n = group / shape.groups, g = group % shape.groups;
          const double mean = in[3].as<T>()[group], inverse = in[4].as<T>()[group];
          const auto normal = [&](std::int64_t i) { return (x[i] - mean) * inverse; };
          const auto passed = [&](std::int64_t i, std::int64_t c) -> double {
            if (!limits.any() && !activation.gradient) return dy[i];
            return behind::gradient(limits, activation, dy[i],
                                    static_cast<T>(normal(i) * scale[c] + in[5].as<T>()[c]));
          };
          double sum = 0, weighted = 0;
          for (std::int64_t c = g * shape.width(); c < (g + 1) * shape.width(); ++c)
            dscale[static_cast<std::size_t>(c)] = dbias[static_cast<std::size_t>(c)] = 0;
          for_each_of_group(shape, n, g, [&](std::int64_t i, std::int64_t c) {
            dbias[static_cast<std::size_t>(c)] += passed(i, c);
            dscale[static_cast<std::size_t>(c)] += passed(i, c) * normal(i);
            sum += passed(i, c) * scale[c];
            weighted += passed(i, c) * scale[c] * normal(i);
          });
          for (std::int64_t c = g * shape.width(); c < (g + 1) * shape.width(); ++c) {
            const std::int64_t at = n * shape.channels + c;
            if (out[1]) out[1].as<T>()[at] = static_cast<T>(dscale[static_cast<std::size_t>(c)]);
            if (out[2]) out[2].as<T>()[at] = static_cast<T>(dbias[static_cast<std::size_t>(c)]);
          }
          if (!out[0]) continue;
          for_each_of_group(shape, n, g, [&](std::int64_t i, std::int64_t c) {
            const double shift = (sum + normal(i) * weighted) / shape.population();
            out[0].as<T>()[i] = static_cast<T>(inverse * (passed(i, c) * scale[c] - shift));
          });
        }
      });
}

template <MakeKernel make_float, MakeKernel make_double>
std::unique_ptr<Kernel> group_norm_by_type(const KernelRequest& request) {
  if (!is_row_major(request)) return nullptr;
  if (request.inputs[0].dtype == DType::kFloat32) return make_float(request);
  if (request.inputs[0].dtype == DType::kFloat64) return make_double(request);
  return nullptr;
}

constexpr KernelEntry kGroupNormReferenceKernels[] = {
    {"GroupNorm", group_norm_by_type<make_group_norm<float>, make_group_norm<double>>},
    {"GroupNormGrad",
     group_norm_by_type<make_group_norm_gradient<float>, make_group_norm_gradient<double>>},
};

}  // namespace

std::span<const KernelEntry> group_norm_reference_kernels() { return kGroupNormReferenceKernels; }

}  // namespace pipetrain
