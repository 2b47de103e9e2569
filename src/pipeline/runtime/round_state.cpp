#include "pipeline/runtime/round_state.h"

#include "pipeline/program/annotate.h"
#include "pipeline/program/program_cut.h"

namespace pipetrain {

RoundState::RoundState(const RuntimeSetup& runtime_setup, int devices_here)
    : setup(runtime_setup),
      units(at(setup.stages())),
      unit_events(at(setup.stages())),
      barrier(devices_here),
      squared_norms(setup.variants[0].training->parameters.size(), 0) {
  loss_scale.value = setup.options.loss_scaling.initial;
}

void RoundState::start(const Program& round_program, const ProgramCut* round_cut,
                       UnitSource& unit_source) {
  program = &round_program;
  cut = round_cut;
  source = &unit_source;
  barrier.reset();
  const std::size_t count = at(program->units);
  results.assign(count, nullptr);
  if (stages_left.size() < count) stages_left = std::vector<std::atomic<int>>(count);
  for (int unit = 0; unit < program->units; ++unit) {
    int here = program->stages;
    for (int s = 0; setup.options.processes && s < program->stages; ++s)
      here -= setup.is_here(program->device_of(s, unit)) ? 0 : 1;
    stages_left[at(unit)] = here;
  }
  for (auto& of_stage : units) {
    if (of_stage.size() < count) of_stage.resize(count);
  }
  for (auto& events : unit_events) {
    if (!setup.options.devices.empty() && events.size() < count) events.resize(count);
  }
  group_version = versions_of_groups(*program);
  gradient_norm = 0;
  skips = false;
}

bool RoundState::is_replayed(int stage, int unit) const {
  return cut && cut->replayed[at(stage)][at(unit)];
}

void RoundState::leave(int unit) {
  if (--stages_left[at(unit)] == 0) source->release(unit);
}

}  // namespace pipetrain
