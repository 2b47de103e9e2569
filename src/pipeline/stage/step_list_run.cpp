#include "pipeline/stage/step_list_run.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"

namespace pipetrain {

StepListRun::StepListRun(const TrainingGraph& training, std::vector<StageStep>& steps,
                         const StageAddresses& addresses, bool first, StageGradients& gradients,
                         const StageExecutor& executor)
    : training_(&training),
      first_(first),
      addresses_(addresses),
      gradients_(&gradients),
      executor_(&executor) {
  const auto independent = std::find_if(steps.begin(), steps.end(),
                                        [](const StageStep& step) { return step.independent; });
  dependent_ = {steps.begin(), independent};
  independent_ = {independent, steps.end()};
}

void StepListRun::run_dependent() {
  for (StageStep& step : dependent_) run_step(step, executor_->workspace().data);
}

void StepListRun::run_independent() {
  for (StageStep& step : independent_) run_step(step, executor_->workspace().data);
}

void StepListRun::run_step(StageStep& step, std::byte* workspace) {
  const double start = steady_seconds();
  RunContext context;
  context.workspace = workspace;
  context.seed = addresses_.micro_batch->seed;
  context.step = addresses_.micro_batch->step;
  context.first_sample = addresses_.micro_batch->first_sample;
  context.samples = training_->micro_batch;
  for (std::size_t i = 0; i < step.in.size(); ++i)
    step.in[i].data = address(step.in_at[i], step.in_direct[i], false);
  for (std::size_t i = 0; i < step.out.size(); ++i)
    step.out[i].data = address(step.out_at[i], step.out_direct[i], step.adding != nullptr);
  with_context([&] { return "running node " + printable(step.name); },
               [&] {
                 if (step.adding && !first_) {
                   step.adding->run_adding(step.in, step.out, context);
                 } else {
                   step.kernel->run(step.in, step.out, context);
                 }
               });
  for (const StageStepAddition& addition : step.additions)
    gradients_->add(addition, addresses_, first_);
  step.last_seconds = steady_seconds() - start;
  step.seconds += step.last_seconds;
}

}  // namespace pipetrain
