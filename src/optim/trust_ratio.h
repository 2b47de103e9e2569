// Optimizers that scale the step of every tensor by the ratio of its norm to the norm of its step.
#pragma once

#include <cstdint>

#include "optim/optimizer.h"
#include "optim/parameter_pass.h"

namespace pipetrain {

/// LAMB, You et al. 2020, algorithm 2. States: mean, mean square. pass.decay is not read.
template <class T>
void lamb(const ParameterPass<T>& pass, const OptimizerSettings& settings, double learning_rate,
          std::int64_t step);
extern template void lamb(const ParameterPass<float>&, const OptimizerSettings&, double,
                          std::int64_t);
extern template void lamb(const ParameterPass<double>&, const OptimizerSettings&, double,
                          std::int64_t);

/// Eta of the LARS paper. Another value is another learning rate.
inline constexpr double kTrustCoefficient = 1e-3;

/// LARS, You et al. 2017, algorithm 1: the learning rate enters the momentum buffer, the only
/// state, which is not there when the momentum is 0.
template <class T>
void lars(const ParameterPass<T>& pass, const OptimizerSettings& settings, double learning_rate);
extern template void lars(const ParameterPass<float>&, const OptimizerSettings&, double);
extern template void lars(const ParameterPass<double>&, const OptimizerSettings&, double);

}  // namespace pipetrain
