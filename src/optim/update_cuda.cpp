#include "optim/update_cuda.h"

#include "optim/element_rules.h"
#include "optim/optimizer_table.h"
#include "optim/update_launch_cuda.h"

namespace pipetrain {
namespace {

AnyRule rule_of(const DeviceUpdate& one, std::int64_t step, double gradient_scale) {
  const RuleInput input = rule_input(*one.settings, one.learning_rate, step, gradient_scale);
  const int number = variant_of(*one.settings).rule;
  AnyRule out;
  visit_rule<float>(ElementRules{}, number, [&](auto type) {
    using Rule = typename decltype(type)::type;
    if constexpr (!is_normalised<Rule>()) out = AnyRule(number, Rule(input));
  });
  return out;
}

}  // namespace

bool is_updated_on_gpu(const OptimizerSettings& settings) { return !looks_at_norms(settings); }

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
              rule_of(one, step, gradient_scale)};
    const std::int64_t before = list.count == 0 ? 0 : list.chunks_until[list.count - 1];
    list.chunks_until[list.count++] = before + (count + kUpdateChunk - 1) / kUpdateChunk;
    if (list.count == kMostUpdated) launch();
  }
  launch();
}

}  // namespace pipetrain
