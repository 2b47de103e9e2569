#include "support/process_runs.h"

#include <gtest/gtest.h>

#include "pipeline/program/check.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "support/cut_graphs.h"

namespace pipetrain::test {

SharedRun::SharedRun(const std::string& schedule, int stages, bool clip, std::vector<int> replicas,
                     bool tied, int micro_batches)
    : model(difficult_network(tied)) {
  for (const std::int64_t size : kMicroBatchSizes) graphs.push_back(training_graph(model, size));
  CutGraphs cut = cut_graphs(graphs, even_starts(linearise(*graphs[0]), stages));
  variants = std::move(cut.variants);
  ScheduleOptions options;
  options.name = schedule;
  options.stages = stages;
  options.micro_batches = micro_batches;
  if (schedule == "pipedream-2bw") options.micro_batches_per_update = 4;
  options.replicas = std::move(replicas);
  options.gradient_sync = cut.has_tied_stages || clip;
  program = lower(generate(options), cut.edges);
  check(program);
  runtime.backend = Backend::kReference;
  runtime.optimizer = default_settings(OptimizerKind::kAdamW);
  runtime.clip_norm = clip ? 0.5 : 0;
  runtime.timeout_seconds = 20;
  runtime.pin = false;
}

RuntimeOptions SharedRun::of_process(ProcessGroup& group, int processes) const {
  RuntimeOptions options = runtime;
  options.processes = &group;
  for (int device = 0; device < program.devices; ++device)
    options.process_of_device.push_back(device * processes / program.devices);
  return options;
}

void add_values(const std::vector<StageContent>& contents, SharedOutcome& outcome) {
  const auto add = [&](const std::string& kind, const auto& tensors) {
    for (const auto& [name, value] : tensors)
      outcome.values[kind + name].assign(static_cast<const char*>(value.view().data),
                                         value.type().bytes());
  };
  for (const StageContent& content : contents) {
    add("", content.weights);
    add("state 0 ", content.states[0]);
    add("state 1 ", content.states[1]);
    add("average ", content.averages);
  }
}

SharedOutcome four_steps(const SharedRun& run, const RuntimeOptions& options) {
  Runtime runtime(run.variants, {&run.program}, options);
  FixedData data(4 * kSamples, 5);
  SharedOutcome outcome;
  for (std::int64_t step = 0; step < 4; ++step) {
    data.set_mini_batch(step * kSamples, kSamples, kSamplesPerMicroBatch, step, kMicroBatchSizes);
    const RoundResult result = runtime.run(run.program, data);
    double loss = 0;
    for (const MicroBatch& micro_batch : data.micro_batches())
      loss += micro_batch.loss_sum * micro_batch.loss_scale;
    outcome.losses.push_back(loss);
    outcome.norms.push_back(result.gradient_norm);
    for (std::size_t d = 0; d < result.events.size(); ++d)
      EXPECT_EQ(result.events[d].size(), run.program.device[d].size());
    for (const double seconds : result.busy_seconds) EXPECT_GT(seconds, 0);
  }
  EXPECT_GT(runtime.memory(runtime.stages() - 1).parameters, 0U);
  add_values(runtime.contents(), outcome);
  return outcome;
}

}  // namespace pipetrain::test
