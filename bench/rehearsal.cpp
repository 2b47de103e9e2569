// Measured against simulated: every schedule runs on stages that sleep for given, uneven times
// instead of computing. What is left between the two is what the runtime itself costs.
//
//   rehearsal_bench MODEL.onnx [DEVICES [MICRO_BATCHES [MILLISECONDS]]]
//
// The model needs 2 * DEVICES nodes; its arithmetic is not run.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "base/error.h"
#include "base/statistics.h"
#include "passes/linearise.h"
#include "pipeline/check.h"
#include "pipeline/generate.h"
#include "pipeline/lower.h"
#include "pipeline/warm_up.h"
#include "train/session.h"

namespace pipetrain {
namespace {

/// Units without data.
class NoData final : public UnitSource {
 public:
  NoData(int units, std::size_t columns) {
    static float nothing[1] = {};
    units_.resize(static_cast<std::size_t>(units));
    for (RoundUnit& unit : units_)
      unit.columns.assign(columns, reinterpret_cast<const std::byte*>(nothing));
  }
  RoundUnit& acquire(int unit) override { return units_[static_cast<std::size_t>(unit)]; }
  void release(int) override {}
  double learning_rate(int) const override { return 0; }
  std::int64_t updates_before() const override { return 0; }

 private:
  std::vector<RoundUnit> units_;
};

std::vector<StageSeconds> uneven_stages(int stages, double seconds) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> factor(0.6, 1.0);
  std::vector<StageSeconds> out;
  for (int s = 0; s < stages; ++s) {
    StageSeconds stage;
    stage.forward = seconds * factor(random);
    stage.backward_input = seconds * factor(random);
    stage.backward_weight = seconds * factor(random);
    stage.backward = stage.backward_input + stage.backward_weight;
    stage.recompute = stage.forward;
    stage.update = 0.1 * seconds;
    out.push_back(stage);
  }
  return out;
}

void rehearse(const TrainingGraph& graph, const std::string& name, int devices, int units,
              double seconds) {
  const int per_device = stages_per_device(name, 2);
  const int stages = devices * per_device;
  const Chain chain = linearise(graph);
  PT_CHECK(static_cast<int>(chain.order.size()) >= stages, kUsage,
           "the model has {} nodes, too few for {} stages", chain.order.size(), stages);
  std::vector<int> starts;
  for (int s = 0; s < stages; ++s)
    starts.push_back(static_cast<int>(chain.order.size()) * s / stages);
  const std::vector<int> stage_of = stages_of_chain(graph, chain, starts);
  std::vector<Edge> edges;
  for (const ValueEdge& edge : slice_stages(graph, stage_of, stages).edges)
    edges.push_back({edge.from, edge.to, static_cast<std::int64_t>(edge.bytes), edge.gradient});

  RuntimeOptions options;
  options.backend = Backend::kReference;
  options.pin = false;
  options.rehearsal = uneven_stages(stages, seconds / per_device);
  ScheduleOptions schedule;
  schedule.name = name;
  schedule.stages = stages;
  schedule.units = units;
  schedule.units_per_update = name == "pipedream-2bw" ? units / 2 : 0;
  if (name == "1f1b-auto") {
    WarmUpCosts warm;
    for (const StageSeconds& stage : options.rehearsal) {
      warm.forward_seconds.push_back(stage.forward);
      warm.backward_seconds.push_back(stage.backward);
    }
    warm.hop_seconds.assign(static_cast<std::size_t>(stages - 1), 0);
    schedule.warm = balanced_warm_up(warm);
  }
  const Program program = lower(generate(schedule), edges);
  check(program);
  Costs costs;
  costs.stage = options.rehearsal;
  const double simulated = simulate(program, costs).makespan;

  Runtime runtime({{&graph, stage_of}}, {&program}, options);
  NoData data(units, graph.inputs.size() + 1);
  std::vector<double> measured;
  for (int round = 0; round < 5; ++round) measured.push_back(runtime.run(program, data).seconds);
  std::printf("| %s | %d | %d | %.2f | %.2f | %+.2f %% |\n", name.c_str(), devices, units,
              simulated * 1e3, median(measured) * 1e3, (median(measured) / simulated - 1) * 100);
  std::fflush(stdout);
}

int run(int count, char** arguments) {
  PT_CHECK(count >= 2, kUsage, "rehearsal_bench MODEL.onnx [DEVICES [MICRO_BATCHES [MS]]]");
  const int devices = count > 2 ? std::atoi(arguments[2]) : 4;
  const int units = count > 3 ? std::atoi(arguments[3]) : 2 * devices;
  const double seconds = (count > 4 ? std::atof(arguments[4]) : 20) * 1e-3;
  RunConfig config;
  config.model.path = arguments[1];
  config.data.path = "synthetic";
  config.optimization.batch_size = 1;
  config.optimization.max_steps = 1;
  Session session(config);
  session.open();
  std::printf("| schedule | devices | micro-batches | simulated ms | measured ms | difference |\n");
  std::printf("|---|---:|---:|---:|---:|---:|\n");
  for (const ScheduleDescription& schedule : schedules()) {
    if (schedule.rule == UpdateRule::kNone) continue;
    rehearse(session.graph(), schedule.name, devices, units, seconds);
  }
  return 0;
}

}  // namespace
}  // namespace pipetrain

int main(int count, char** arguments) {
  try {
    return pipetrain::run(count, arguments);
  } catch (const pipetrain::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.kind());
  }
}
