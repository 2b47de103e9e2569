#include "support/placed_runtime.h"

#include "passes/batch_weight_gradients.h"
#include "passes/pack_weights.h"
#include "pipeline/program/check.h"
#include "pipeline/schedule/lower.h"
#include "support/cut_graphs.h"

namespace pipetrain::test {

Pipeline::Pipeline(bool tied, int stages, std::vector<std::int64_t> sizes)
    : Pipeline(difficult_network(tied), stages, sizes) {}

Pipeline::Pipeline(OnnxModel network, int stages, const std::vector<std::int64_t>& sizes,
                   std::int64_t micro_batches, DType precision, bool for_gpus,
                   const ParameterOptions& parameters)
    : model(std::move(network)), stages(stages) {
  for (const std::int64_t size : sizes) {
    graphs.push_back(for_gpus
                         ? graph_for_gpus(model, size, precision)
                         : training_graph(model, size, /*training=*/true, precision, parameters));
    if (micro_batches == 0) continue;
    packed_weights += pack_weights(*graphs.back());
    if (graphs.size() == 1) {
      batch_gradients = batch_weight_gradients(*graphs.back(), micro_batches);
    } else {
      batch_weight_gradients_like(*graphs.front(), *graphs.back());
    }
  }
  CutGraphs cut = cut_graphs(graphs, even_starts(linearise(*graphs[0]), stages));
  variants = std::move(cut.variants);
  edges = std::move(cut.edges);
  tied_stages = cut.has_tied_stages;
}

Program Pipeline::program(const std::string& schedule, int micro_batches, bool recompute,
                          bool clip) const {
  ScheduleOptions options;
  options.name = schedule;
  options.micro_batches = micro_batches;
  options.recompute.assign(static_cast<std::size_t>(stages), recompute);
  return program(options, clip);
}

Program Pipeline::program(ScheduleOptions options, bool clip) const {
  options.stages = stages;
  options.gradient_sync = tied_stages || clip;
  Program program = lower(generate(options), edges);
  check(program);
  return program;
}

RuntimeOptions runtime_options(Place place, double clip) {
  RuntimeOptions options;
  options.backend = place == Place::kReference ? Backend::kReference : Backend::kCpu;
  options.optimizer = default_settings(OptimizerKind::kAdamW);
  options.clip_norm = clip;
  options.timeout_seconds = 20;
  return options;
}

namespace {

/// By the devices' clocks each device did one thing after the other, and each took a moment.
void check_times(const Program& program, const RoundResult& result) {
  for (std::size_t d = 0; d < program.device.size(); ++d) {
    double busy = 0, last = 0;
    for (std::size_t i = 0; i < program.device[d].size(); ++i) {
      const Kind kind = program.device[d][i].kind;
      if (!is_compute(kind) && kind != Kind::kUpdate) continue;
      const Event& event = result.events[d][i];
      EXPECT_EQ(event.index, static_cast<int>(i));
      EXPECT_GE(event.start, last - 1e-9) << to_text(program, program.device[d][i]);
      EXPECT_GE(event.end, event.start);  // some halves of backwards have nothing to do
      if (kind == Kind::kForward) EXPECT_GT(event.end, event.start + 0.9e-6);
      busy += event.end - event.start;
      last = event.end;
    }
    EXPECT_NEAR(result.busy_seconds[d], busy, 1e-9);
  }
}

}  // namespace

PlacedRuntime::PlacedRuntime(const Pipeline& pipeline, const Program& program, Place place,
                             double clip, const LossScaling& scaling) {
  RuntimeOptions options = runtime_options(place, clip);
  options.loss_scaling = scaling;
  if (place != Place::kReference && place != Place::kCpu) {
    const bool one = place == Place::kOneDevice;
    machine = std::make_unique<RecordedMachine>(one ? 1 : program.devices, ++machines);
    // Of three machines one records all it can, one fails to now and then, one does not.
    if (machines % 3 > 0) machine->allow_recordings(machines % 3 == 1 ? 0 : 3);
    for (int d = 0; d < program.devices; ++d)
      options.devices.push_back(&machine->device(one ? 0 : d));
  }
  if (place == Place::kExchanging) options.collectives = &machine->collectives();
  runtime =
      std::make_unique<Runtime>(pipeline.variants, std::vector<const Program*>{&program}, options);
}

PlacedRuntime::~PlacedRuntime() {
  runtime.reset();
  if (!machine) return;
  for (const std::string& problem : machine->problems()) ADD_FAILURE() << problem;
  EXPECT_GT(machine->operations(), 0U);
  operations += machine->operations();
  compared += machine->compared();
  groups += machine->groups();
  exchanged += machine->exchanged();
  replayed += machine->replayed();
}

RoundResult PlacedRuntime::run(const Program& program, MicroBatchSource& source) {
  RoundResult result = runtime->run(program, source);
  if (machine) check_times(program, result);
  return result;
}

}  // namespace pipetrain::test
