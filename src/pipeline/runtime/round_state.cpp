#include "pipeline/runtime/round_state.h"

#include "pipeline/program/annotate.h"
#include "pipeline/program/program_cut.h"

namespace pipetrain {

RoundState::RoundState(const RuntimeSetup& runtime_setup, int devices_here)
    : setup(runtime_setup),
      micro_batches(at(setup.stages())),
      micro_batch_events(at(setup.stages())),
      barrier(devices_here),
      squared_norms(setup.variants[0].training->parameters.size(), 0),
      nonfinite(setup.stages()) {
  loss_scale.value = setup.options.loss_scaling.initial;
}

void RoundState::start(const Program& round_program, const ProgramCut* round_cut,
                       MicroBatchSource& micro_batch_source) {
  program = &round_program;
  cut = round_cut;
  source = &micro_batch_source;
  early_end.reset();
  barrier.reset();
  const std::size_t count = at(program->micro_batches);
  results.assign(count, nullptr);
  if (stages_left.size() < count) stages_left = std::vector<std::atomic<int>>(count);
  for (int micro_batch = 0; micro_batch < program->micro_batches; ++micro_batch) {
    int here = program->stages;
    for (int s = 0; setup.options.processes && s < program->stages; ++s)
      here -= setup.is_here(program->device_of(s, micro_batch)) ? 0 : 1;
    stages_left[at(micro_batch)] = here;
  }
  for (auto& of_stage : micro_batches) {
    if (of_stage.size() < count) of_stage.resize(count);
  }
  for (auto& events : micro_batch_events) {
    if (!setup.options.devices.empty() && events.size() < count) events.resize(count);
  }
  group_version = versions_of_groups(*program);
  gradient_norm = 0;
  skips = false;
  const RuntimeOptions& options = setup.options;
  // While a smaller loss scale can be tried, gradients that overflow are nothing to look for.
  finds_nonfinite = options.finds_nonfinite && program->rule != UpdateRule::kNone &&
                    options.devices.empty() && options.emulated_stages.empty() &&
                    !(options.loss_scaling.adapts && loss_scale.value > options.loss_scaling.least);
}

bool RoundState::is_replayed(int stage, int micro_batch) const {
  return cut && cut->replayed[at(stage)][at(micro_batch)];
}

const ProgramCut& RoundState::end_after(int micro_batches_done) {
  const std::lock_guard lock(mutex_);
  if (!early_end)
    early_end = std::make_unique<const ProgramCut>(cut_program(*program, micro_batches_done));
  return *early_end;
}

void RoundState::leave(int micro_batch) {
  if (--stages_left[at(micro_batch)] == 0) source->release(micro_batch);
}

}  // namespace pipetrain
