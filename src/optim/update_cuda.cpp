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

bool is_updated_on_gpu(const OptimizerSettings& settings) {
  return settings.kind != OptimizerKind::kLamb && settings.kind != OptimizerKind::kLars;
}

void update_cuda(std::int64_t step, double gradient_scale, double average_decay,
                 std::span<const DeviceUpdate> parameters, const CudaQueue& queue) {
  UpdateList list;
  list.first_step = step == 1;
  list.average_enter = static_cast<float>(1 - average_decay);
  const auto launch = [&] {
    launch_update(list, queue);
    list.count = 0;
  };
  for (const DeviceUpdate& one : parameters) {
    if (!is_updated_on_gpu(*one.settings) || one.parameter.empty()) continue;
    const auto count = static_cast<std::int64_t>(one.parameter.size());
    UpdatedTensor& tensor = list.tensors[list.count];
    tensor = {one.parameter.data(),
              one.gradient.data(),
              one.state0.data(),
              one.state1.data(),
              one.average.data(),
              count,
              numbers_of(*one.settings, one.learning_rate, step, gradient_scale)};
    const std::int64_t before = list.count == 0 ? 0 : list.pieces_until[list.count - 1];
    list.pieces_until[list.count++] = before + (count + kUpdatePiece - 1) / kUpdatePiece;
    if (list.count == kMostUpdated) launch();
  }
  launch();
}

}  // namespace pipetrain
