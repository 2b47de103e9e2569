// One optimizer step: passes over a parameter, its gradient and its state.
#pragma once

#include <cstdint>
#include <span>

#include "optim/optimizer.h"

namespace pipetrain {

/// Updates a parameter in place from gradient * gradient_scale. `step` counts the updates of this
/// parameter from 1. All spans have one length, except that states beyond state_slots() may be
/// empty; states start at zero. The parameter is a whole tensor: some optimizers use its norm. The
/// result does not depend on the number of OpenMP threads. The formulas: element_rules.h.
void update(const OptimizerSettings& settings, double learning_rate, std::int64_t step,
            double gradient_scale, std::span<float> parameter, std::span<const float> gradient,
            std::span<float> state0, std::span<float> state1);
void update(const OptimizerSettings& settings, double learning_rate, std::int64_t step,
            double gradient_scale, std::span<double> parameter, std::span<const double> gradient,
            std::span<double> state0, std::span<double> state1);

/// One parameter of a batched update: the arguments of update().
struct ParameterUpdate {
  const OptimizerSettings* settings;
  double learning_rate;
  std::span<float> parameter;
  std::span<const float> gradient;
  std::span<float> state0, state1;
  /// Optional: the rows to update, of `row_floats` each. The others have no gradient and no state,
  /// and keeps_without_gradient() holds.
  bool has_rows = false;
  std::span<const std::int64_t> rows = {};
  std::size_t row_floats = 0;
};

/// Whether an element whose gradient and states are zero keeps its value and its states. Not so for
/// optimizers that use norms, with decay, or where zero times a factor is not zero.
bool keeps_without_gradient(const OptimizerSettings& settings, double learning_rate,
                            double gradient_scale);

/// Calls update() for each of them, with the same bits: threads split the elements of a large
/// tensor, and distribute the small ones.
void update_all(std::int64_t step, double gradient_scale,
                std::span<const ParameterUpdate> parameters);

/// Moves an average towards a parameter: average += (1 - decay) (parameter - average).
void update_average(double decay, std::span<float> average, std::span<const float> parameter);
/// The same after an update, which counts from 1. The first is copied.
void update_average(double decay, std::int64_t step, std::span<float> average,
                    std::span<const float> parameter);

/// Sum of squares in double, added up in an order that depends on the length only.
double sum_of_squares(std::span<const float> values);
double sum_of_squares(std::span<const double> values);

/// The factor that limits the global norm of gradients to `limit`; 1 when limit is 0 (off).
/// PyTorch's clip_grad_norm_: limit / (norm + 1e-6).
double clip_factor(double norm, double limit);

}  // namespace pipetrain
