// Times the planner on chains of realistic length: prints one line for each size. Usage:
// planner_bench [OPERATORS DEVICES [GROUP [SCHEDULE [MICRO_BATCHES]]]]
#include <fmt/core.h>

#include <cstdlib>
#include <random>

#include "base/error.h"
#include "partition/plan.h"
#include "pipeline/schedule/generate.h"

namespace {

using namespace pipetrain;

// Times within a factor of 100 of each other, some operators without parameters, and activations
// that fit only if some stages recompute.
ChainCosts synthetic_chain(int count) {
  std::mt19937 random(7);
  const auto uniform = [&] { return static_cast<double>(random()) / 4294967296.0; };
  const auto bytes = [&](double most) { return static_cast<std::size_t>(uniform() * most); };
  ChainCosts chain;
  for (int i = 0; i < count; ++i) {
    ChainCost element;
    element.name = fmt::format("node{}", i);
    element.forward_seconds = 1e-4 * (0.02 + uniform() * uniform() * 2);
    element.input_gradient_seconds = element.forward_seconds * (0.9 + 0.2 * uniform());
    element.weight_gradient_seconds = element.forward_seconds * (0.9 + 0.2 * uniform());
    if (uniform() < 0.5) element.parameter_bytes = bytes(8e6);
    element.saved_bytes = bytes(60e6);
    element.transient_bytes = bytes(20e6);
    chain.elements.push_back(element);
  }
  for (int i = 0; i <= count; ++i) {
    chain.forward_bytes.push_back(bytes(2e6));
    chain.backward_bytes.push_back(chain.forward_bytes.back());
  }
  return chain;
}

void measure(int operators, int devices, int group, const char* schedule, int micro_batches) {
  const ChainCosts chain = synthetic_chain(operators);
  PlanRequest request;
  request.stages = 0;
  request.devices = devices;
  request.schedule = planned_schedule(schedule);
  request.micro_batches = micro_batches;
  request.transfer = {2e-6, 50e9};
  if (group > 1) {
    request.topology.levels = {{"inner", group, 300e9, 2e-6},
                               {"outer", (devices + group - 1) / group, 50e9, 5e-6}};
  }
  request.memory_limit_bytes = std::size_t{16} << 30;
  try {
    const Plan plan = plan_devices(chain, request);
    int recomputed = 0, most = 0;
    for (const StagePlan& stage : plan.stages) {
      recomputed += stage.recompute;
      most = std::max(most, stage.replicas);
    }
    fmt::print(
        "{} operators, {} devices in groups of {}, {} with {} micro-batches: {:.3f} s; {} stages "
        "on "
        "{} devices, up to {} replicas, {} recompute; bottleneck {:.6f} ms, gap {:.1f} %\n",
        operators, devices, group, schedule, micro_batches, plan.planning_seconds,
        plan.stages.size(), plan.devices(), most, recomputed, plan.bottleneck_seconds * 1e3,
        plan.gap() * 100);
  } catch (const Error& error) {
    fmt::print("{} operators, {} devices, {}: {}\n", operators, devices, schedule, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2) {
    const int group = argc > 3 ? std::atoi(argv[3]) : 1;
    measure(std::atoi(argv[1]), std::atoi(argv[2]), group, argc > 4 ? argv[4] : "pipedream",
            argc > 5 ? std::atoi(argv[5]) : 1);
    return 0;
  }
  measure(1000, 64, 1, "pipedream", 1);
  measure(1000, 1024, 1, "pipedream", 1);
  measure(5000, 4096, 1, "pipedream", 1);
  measure(1000, 1024, 8, "pipedream", 1);
  measure(300, 64, 8, "1f1b", 256);
  return 0;
}
