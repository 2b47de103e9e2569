#include "optim/update_cuda.h"

#include <cmath>

#include "optim/update_launch_cuda.h"

namespace pipetrain {
namespace {

UpdateNumbers numbers_of(const OptimizerSettings& s, double learning_rate, std::int64_t step,
                         double gradient_scale) {
  const auto number = [](double value) { return static_cast<float>(value); };
  const bool decoupled = s.kind == OptimizerKind::kAdamW || s.kind == OptimizerKind::kLion;
  UpdateNumbers n{};
  n.scale = number(gradient_scale);
  n.decay = number(decoupled ? 0 : s.weight_decay);
  n.rate = number(learning_rate);
  n.epsilon = number(s.epsilon);
  n.shrink = number(decoupled ? 1 - learning_rate * s.weight_decay : 1);
  switch (s.kind) {
    case OptimizerKind::kSgd:
      n.rule = state_slots(s) == 0 ? UpdateRuleCuda::kSgd : UpdateRuleCuda::kMomentum;
      n.keep = number(step == 1 ? 0 : s.momentum);
      n.enter = number(step == 1 ? 1 : 1 - s.dampening);
      n.direct = s.nesterov ? 1.0F : 0.0F;
      n.ahead = number(s.nesterov ? s.momentum : 1);
      break;
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      n.rule = UpdateRuleCuda::kAdam;
      n.rate = number(learning_rate / (1 - std::pow(s.beta1, static_cast<double>(step))));
      n.root_scale = number(1 / std::sqrt(1 - std::pow(s.beta2, static_cast<double>(step))));
      n.enter = number(1 - s.beta1);
      n.keep2 = number(s.beta2);
      n.enter2 = number(1 - s.beta2);
      break;
    case OptimizerKind::kRmsProp:
      n.rule = s.centered        ? UpdateRuleCuda::kCenteredRmsProp
               : s.momentum != 0 ? UpdateRuleCuda::kRmsPropMomentum
                                 : UpdateRuleCuda::kRmsProp;
      n.keep = number(s.alpha);
      n.enter = number(1 - s.alpha);
      n.momentum = number(s.momentum);
      break;
    case OptimizerKind::kAdagrad:
      n.rule = UpdateRuleCuda::kAdagrad;
      break;
    case OptimizerKind::kLion:
      n.rule = UpdateRuleCuda::kLion;
      n.keep = number(s.beta1);
      n.enter = number(1 - s.beta1);
      n.keep2 = number(s.beta2);
      n.enter2 = number(1 - s.beta2);
      break;
    case OptimizerKind::kLamb:
    case OptimizerKind::kLars:
      break;
  }
  return n;
}

}  // namespace

bool update_cuda(const OptimizerSettings& settings, double learning_rate, std::int64_t step,
                 double gradient_scale, std::span<float> parameter, std::span<const float> gradient,
                 std::span<float> state0, std::span<float> state1, const CudaQueue& queue) {
  if (settings.kind == OptimizerKind::kLamb || settings.kind == OptimizerKind::kLars) return false;
  launch_update(numbers_of(settings, learning_rate, step, gradient_scale), parameter.data(),
                gradient.data(), state0.data(), state1.data(),
                static_cast<std::int64_t>(parameter.size()), queue);
  return true;
}

}  // namespace pipetrain
