// Optimizer steps on the CPU: the rules of element_rules.h over whole tensors.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>

#include "base/error.h"
#include "optim/element_rules.h"
#include "optim/optimizer_table.h"
#include "optim/parameter_pass.h"
#include "optim/update.h"

namespace pipetrain {
namespace {

template <class T>
struct ParameterArrays {
  T* parameter;
  const T* gradient;
  T* state0;
  T* state1;
  std::size_t count;
};

/// Computes the norms of this parameter for a rule that uses them.
template <class Rule, class T>
void take_norms(Rule& rule, const ParameterArrays<T>& arrays) {
  const T* __restrict p = arrays.parameter;
  const T* __restrict g = arrays.gradient;
  T* __restrict state0 = arrays.state0;
  T* __restrict state1 = arrays.state1;
  const double parameter_norm =
      std::sqrt(sum_of_squares_of(arrays.count, [=](std::size_t i) { return p[i]; }));
  const double measured_norm = std::sqrt(sum_of_squares_of(arrays.count, [=](std::size_t i) {
    return measured_at(rule, p[i], g[i], state0, state1, i);
  }));
  rule.normalise(parameter_norm, measured_norm);
}

template <class Rule, class T>
void update_range(const Rule& rule, const ParameterArrays<T>& arrays, std::size_t first,
                  std::size_t last) {
  // Local copies, so that their members stay in registers.
  const Rule r = rule;
  T* __restrict p = arrays.parameter;
  const T* __restrict g = arrays.gradient;
  T* __restrict state0 = arrays.state0;
  T* __restrict state1 = arrays.state1;
#pragma omp simd
  for (std::size_t i = first; i < last; ++i) p[i] = call_at(r, p[i], g[i], state0, state1, i);
}

/// The rows of a parameter that are updated; none are named: all elements.
struct UpdatedRows {
  std::optional<std::span<const std::int64_t>> rows = {};
  std::size_t row_floats = 0;
};

template <class Rule, class T>
void update_elements(const Rule& rule, const ParameterArrays<T>& arrays, const UpdatedRows& only) {
  if (!only.rows) {
    for_chunks(arrays.count, [&rule, arrays](std::size_t first, std::size_t last) {
      update_range(rule, arrays, first, last);
    });
    return;
  }
  const std::span<const std::int64_t> rows = *only.rows;
  const std::size_t width = only.row_floats;
#pragma omp parallel for schedule(static) if (rows.size() * width >= kParallelElements)
  for (std::ptrdiff_t k = 0; k < static_cast<std::ptrdiff_t>(rows.size()); ++k) {
    const std::size_t first = static_cast<std::size_t>(rows[static_cast<std::size_t>(k)]) * width;
    update_range(rule, arrays, first, first + width);
  }
}

template <class T>
void run(const OptimizerSettings& settings, double learning_rate, std::int64_t step,
         double gradient_scale, std::span<T> parameter, std::span<const T> gradient,
         std::span<T> state0, std::span<T> state1, const UpdatedRows& only = {}) {
  const OptimizerVariant& variant = variant_of(settings);
  const int slots = variant.state_count();
  PT_CHECK(step >= 1, kInternal, "optimizer steps count from 1, got {}", step);
  PT_CHECK(gradient.size() == parameter.size() &&
               (slots < 1 || state0.size() == parameter.size()) &&
               (slots < 2 || state1.size() == parameter.size()),
           kInternal, "{} of {} elements got {} gradients and states of {} and {}",
           name_of(settings.kind), parameter.size(), gradient.size(), state0.size(), state1.size());
  const ParameterArrays<T> arrays{parameter.data(), gradient.data(), state0.data(), state1.data(),
                                  parameter.size()};
  const RuleInput input = rule_input(settings, learning_rate, step, gradient_scale);
  visit_rule<T>(ElementRules{}, variant.rule, [&](auto type) {
    typename decltype(type)::type rule(input);
    if constexpr (is_normalised<decltype(rule)>()) take_norms(rule, arrays);
    update_elements(rule, arrays, only);
  });
}

}  // namespace

void update(const OptimizerSettings& settings, double learning_rate, std::int64_t step,
            double gradient_scale, std::span<float> parameter, std::span<const float> gradient,
            std::span<float> state0, std::span<float> state1) {
  run(settings, learning_rate, step, gradient_scale, parameter, gradient, state0, state1);
}

void update(const OptimizerSettings& settings, double learning_rate, std::int64_t step,
            double gradient_scale, std::span<double> parameter, std::span<const double> gradient,
            std::span<double> state0, std::span<double> state1) {
  run(settings, learning_rate, step, gradient_scale, parameter, gradient, state0, state1);
}

bool keeps_without_gradient(const OptimizerSettings& settings, double learning_rate,
                            double gradient_scale) {
  const bool divides = row_of(settings.kind).epsilon.has_value();
  return !looks_at_norms(settings) && settings.weight_decay == 0 &&
         std::isfinite(static_cast<float>(learning_rate)) &&
         std::isfinite(static_cast<float>(gradient_scale)) &&
         (!divides || static_cast<float>(settings.epsilon) > 0);
}

void update_all(std::int64_t step, double gradient_scale,
                std::span<const ParameterUpdate> parameters) {
  const auto update_one = [&](const ParameterUpdate& one) {
    run(*one.settings, one.learning_rate, step, gradient_scale, one.parameter, one.gradient,
        one.state0, one.state1,
        one.has_rows ? UpdatedRows{one.rows, one.row_floats} : UpdatedRows{});
  };
  std::size_t small = 0;
  for (const ParameterUpdate& one : parameters) {
    if (one.parameter.size() >= kParallelElements) {
      update_one(one);
    } else {
      small += one.parameter.size();
    }
  }
  const auto count = static_cast<std::ptrdiff_t>(parameters.size());
#pragma omp parallel for schedule(dynamic) if (small >= kParallelElements / 8)
  for (std::ptrdiff_t k = 0; k < count; ++k) {
    const ParameterUpdate& one = parameters[static_cast<std::size_t>(k)];
    if (one.parameter.size() < kParallelElements) update_one(one);
  }
}

void update_average(double decay, std::span<float> average, std::span<const float> parameter) {
  const auto enter = static_cast<float>(1 - decay);
  for_chunks(average.size(), [=](std::size_t first, std::size_t last) {
    float* __restrict to = average.data();
    const float* __restrict from = parameter.data();
#pragma omp simd
    for (std::size_t i = first; i < last; ++i) to[i] += enter * (from[i] - to[i]);
  });
}

void update_average(double decay, std::int64_t step, std::span<float> average,
                    std::span<const float> parameter) {
  if (step == 1) std::copy(parameter.begin(), parameter.end(), average.begin());
  update_average(decay, average, parameter);
}

double sum_of_squares(std::span<const float> values) {
  return sum_of_squares_of(values.size(), [=](std::size_t i) { return values[i]; });
}
double sum_of_squares(std::span<const double> values) {
  return sum_of_squares_of(values.size(), [=](std::size_t i) { return values[i]; });
}

double clip_factor(double norm, double limit) {
  if (limit <= 0) return 1;
  const double factor = limit / (norm + 1e-6);
  return factor > 1 ? 1 : factor;  // NaN stays, so that no step is unclipped
}

}  // namespace pipetrain
