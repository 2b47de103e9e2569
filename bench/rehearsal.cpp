// Measured against simulated step times: every schedule runs on stages that sleep for given, uneven
// times instead of computing. The difference is the overhead of the runtime.
//
//   rehearsal_bench MODEL.onnx [DEVICES [MICRO_BATCHES [MILLISECONDS]]]
//   rehearsal_bench MODEL.onnx warm-up       # 1f1b and 1f1b-auto on five uneven pipelines, without
//                                            # and with a latency between their stages
//
// The model needs 2 * DEVICES nodes; it is not computed. On a busy machine use real-time scheduling
// (chrt -f 1): otherwise waits for the CPU are measured as well.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "base/error.h"
#include "base/statistics.h"
#include "passes/linearise.h"
#include "pipeline/program/check.h"
#include "pipeline/runtime/runtime.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/schedule/warm_up.h"
#include "train/network.h"

namespace pipetrain {
namespace {

/// Micro-batches without data.
class NoData final : public MicroBatchSource {
 public:
  NoData(int units, std::size_t columns) {
    static float nothing[1] = {};
    units_.resize(static_cast<std::size_t>(units));
    for (MicroBatch& unit : units_)
      unit.columns.assign(columns, reinterpret_cast<const std::byte*>(nothing));
  }
  MicroBatch& acquire(int unit) override { return units_[static_cast<std::size_t>(unit)]; }
  void release(int) override {}
  double learning_rate(int) const override { return 0; }
  std::int64_t updates_before() const override { return 0; }

 private:
  std::vector<MicroBatch> units_;
};

std::vector<StageSeconds> uneven_stages(int stages, double seconds, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> factor(0.4, 1.0);
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

/// A model cut into stages of equally many nodes, to be run with sleeping stages.
struct Rehearsal {
  Rehearsal(const TrainingGraph& graph, int stages) : graph(graph) {
    const Chain chain = linearise(graph);
    PT_CHECK(static_cast<int>(chain.order.size()) >= stages, kUsage,
             "the model has {} nodes, too few for {} stages", chain.order.size(), stages);
    std::vector<int> starts;
    for (int s = 0; s < stages; ++s)
      starts.push_back(static_cast<int>(chain.order.size()) * s / stages);
    stage_of = stages_of_chain(graph, chain, starts);
    for (const ValueEdge& edge : slice_stages(graph, stage_of, stages).edges)
      edges.push_back({edge.from, edge.to, static_cast<std::int64_t>(edge.bytes), edge.gradient});
  }

  struct Times {
    double simulated = 0, measured = 0;  // of the round
    double simulated_unit = 0,
           measured_unit = 0;  // from one micro-batch to the next when the pipeline is full
  };

  Times run(const ScheduleOptions& schedule, const std::vector<StageSeconds>& stages,
            double latency = 0) const {
    const Program program = lower(generate(schedule), edges);
    check(program);
    Costs costs;
    costs.stage = stages;
    costs.link.latency_seconds = latency;
    const Simulation simulation = simulate(program, costs);
    RuntimeOptions options;
    options.backend = Backend::kReference;
    options.pin = false;
    options.emulated_stages = stages;
    options.emulated_latency_seconds = latency;
    Runtime runtime({{&graph, stage_of}}, {&program}, options);
    NoData data(program.micro_batches, graph.inputs.size() + 1);
    std::vector<double> rounds, units;
    for (int round = 0; round < 3; ++round) {
      const RoundResult result = runtime.run(program, data);
      rounds.push_back(result.seconds);
      units.push_back(unit_seconds_of(program, result.events));
    }
    return {simulation.makespan, median(rounds), simulation.micro_batch_period, median(units)};
  }

  /// Mean interval between the first stage's forwards in the second half of the run.
  static double unit_seconds_of(const Program& program,
                                const std::vector<std::vector<Event>>& all) {
    std::vector<double> starts;
    const auto device = static_cast<std::size_t>(program.placement[0][0]);
    for (std::size_t i = 0; i < program.device[device].size(); ++i) {
      const Instruction& instruction = program.device[device][i];
      if (instruction.kind == Kind::kForward && instruction.stage == 0)
        starts.push_back(all[device][i].start);
    }
    const std::size_t middle = starts.size() / 2;
    return (starts.back() - starts[middle]) / static_cast<double>(starts.size() - 1 - middle);
  }

  const TrainingGraph& graph;
  std::vector<int> stage_of;
  std::vector<Edge> edges;
};

std::vector<int> warm_up_for(const std::vector<StageSeconds>& stages, double latency = 0) {
  WarmUpCosts costs;
  for (const StageSeconds& stage : stages) {
    costs.forward_seconds.push_back(stage.forward);
    costs.backward_seconds.push_back(stage.backward);
  }
  costs.hop_seconds.assign(stages.size() - 1, latency);
  return balanced_warm_up(costs);
}

void rehearse(const TrainingGraph& graph, const std::string& name, int devices, int units,
              double seconds) {
  const int per_device = stages_per_device(name, 2);
  const Rehearsal rehearsal(graph, devices * per_device);
  const std::vector<StageSeconds> stages =
      uneven_stages(devices * per_device, seconds / per_device, 7);
  ScheduleOptions schedule;
  schedule.name = name;
  schedule.stages = devices * per_device;
  schedule.micro_batches = units;
  schedule.micro_batches_per_update = name == "pipedream-2bw" ? units / 2 : 0;
  if (name == "1f1b-auto") schedule.warm = warm_up_for(stages);
  const Rehearsal::Times times = rehearsal.run(schedule, stages);
  std::printf("| %s | %d | %d | %.2f | %.2f | %+.2f %% |\n", name.c_str(), devices, units,
              times.simulated * 1e3, times.measured * 1e3,
              (times.measured / times.simulated - 1) * 100);
  std::fflush(stdout);
}

/// The interval between micro-batches that a warm-up allows, relative to the slowest stage.
void compare_warm_ups(const TrainingGraph& graph, double latency) {
  std::printf("\nlatency of each link: %.0f ms\n\n", latency * 1e3);
  std::printf("| pipeline | slowest stage ms | 1f1b simulated | measured | 1f1b-auto simulated |");
  std::printf(" measured | warm-up of 1f1b-auto |\n");
  std::printf("|---|---:|---:|---:|---:|---:|---|\n");
  for (unsigned seed = 1; seed <= 5; ++seed) {
    const int devices = 3 + static_cast<int>(seed);
    const Rehearsal rehearsal(graph, devices);
    const std::vector<StageSeconds> stages = uneven_stages(devices, 0.012, seed);
    double slowest = 0;
    for (const StageSeconds& stage : stages)
      slowest = std::max(slowest, stage.forward + stage.backward);
    ScheduleOptions schedule;
    schedule.stages = devices;
    schedule.micro_batches = 6 * devices;
    schedule.name = "1f1b";
    const Rehearsal::Times plain = rehearsal.run(schedule, stages, latency);
    schedule.name = "1f1b-auto";
    schedule.warm = warm_up_for(stages, latency);
    const Rehearsal::Times balanced = rehearsal.run(schedule, stages, latency);
    std::printf("| %d stages | %.2f | %.3f | %.3f | %.3f | %.3f | %s |\n", devices, slowest * 1e3,
                plain.simulated_unit / slowest, plain.measured_unit / slowest,
                balanced.simulated_unit / slowest, balanced.measured_unit / slowest,
                fmt::format("{}", fmt::join(schedule.warm, " ")).c_str());
    std::fflush(stdout);
  }
}

int run(int count, char** arguments) {
  PT_CHECK(count >= 2, kUsage, "rehearsal_bench MODEL.onnx [DEVICES [MICRO_BATCHES [MS]]]");
  const bool warm_ups = count > 2 && std::string(arguments[2]) == "warm-up";
  const int devices = count > 2 && !warm_ups ? std::atoi(arguments[2]) : 4;
  const int units = count > 3 ? std::atoi(arguments[3]) : 2 * devices;
  const double seconds = (count > 4 ? std::atof(arguments[4]) : 20) * 1e-3;
  RunConfig config;
  config.model.path = arguments[1];
  config.data.path = "synthetic";
  config.optimization.batch_size = 1;
  config.optimization.max_steps = 1;
  const Network network(config);
  if (warm_ups) {
    for (const double latency : {0.0, 0.004, 0.008}) compare_warm_ups(network.graph(), latency);
    return 0;
  }
  std::printf("| schedule | devices | micro-batches | simulated ms | measured ms | difference |\n");
  std::printf("|---|---:|---:|---:|---:|---:|\n");
  for (const ScheduleDescription& schedule : schedules()) {
    if (schedule.rule == UpdateRule::kNone) continue;
    rehearse(network.graph(), schedule.name, devices, units, seconds);
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
