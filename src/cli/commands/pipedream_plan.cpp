#include "cli/commands/pipedream_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/document.h"
#include "base/error.h"
#include "base/units.h"
#include "cli/output/output.h"
#include "partition/pipedream_graph.h"
#include "partition/topology_file.h"
#include "pipeline/schedule/generate.h"

namespace pipetrain {
namespace {

// Planning time grows with the square of this.
constexpr std::size_t kMaximumLayers = 20'000;

// Everything that is printed.
struct Comparison {
  PipeDreamProfile profile;
  PlanRequest request;
  GraphPlan own;
  std::optional<CompatPlan> compat;
  std::optional<GraphPlan> priced;  // the same in our model
  double compat_planning_seconds = 0;
  double single_seconds = 0;
  double data_parallel_seconds = 0;  // of all devices, in our model
};

PlanRequest request_of(const PipeDreamPlanOptions& options) {
  PlanRequest request;
  request.schedule = planned_schedule("pipedream");
  request.stages = options.stages;
  request.replication = options.replication;
  request.recompute = Recompute::kNone;
  request.devices = options.devices;
  PT_CHECK(options.bytes_per_second > 0, kUsage, "a bandwidth must be above 0 bytes/s, got {}",
           options.bytes_per_second);
  request.transfer.bytes_per_second = options.bytes_per_second;
  if (!options.topology.empty()) {
    const Topology topology = named_topology(options.topology);
    if (request.devices == 0) request.devices = topology.devices();
    request.topology = first_devices(topology, request.devices);
  }
  PT_CHECK(request.devices >= 1, kUsage,
           "no devices given; use --gpus N, or --topology FILE for all of its devices");
  return request;
}

CompatRequest compat_request_of(const PipeDreamPlanOptions& options, const PlanRequest& request) {
  CompatRequest out;
  out.straight = !options.replication;
  out.fewer_machines = options.fewer_machines;
  out.activation_compression = options.activation_compression;
  out.levels.clear();
  int machines = 1;
  for (const TopologyLevel& level : request.topology.levels) {
    if (level.count == 1) continue;
    out.levels.push_back({level.count, level.bytes_per_second});
    machines *= level.count;
  }
  if (out.levels.empty()) {
    out.levels.push_back({request.devices, options.bytes_per_second});
    machines = request.devices;
  }
  PT_CHECK(machines == request.devices, kUsage,
           "PipeDream's planner needs whole groups of machines, and {} devices of this topology "
           "are not; use {}, or plan without --compat pipedream",
           request.devices, machines);
  return out;
}

Comparison compare(const PipeDreamPlanOptions& options) {
  Comparison out;
  out.profile = read_pipedream_profile(options.profile);
  PT_CHECK(out.profile.nodes.size() <= kMaximumLayers, kResource,
           "{} has {} layers; at most {} can be planned", printable(options.profile),
           out.profile.nodes.size(), kMaximumLayers);
  out.request = request_of(options);
  const CostGraph graph = cost_graph_of(out.profile);
  for (const CostNode& node : graph.nodes) {
    out.single_seconds +=
        node.forward_seconds + node.input_gradient_seconds + node.weight_gradient_seconds;
  }
  if (options.compat) {
    const double start = steady_seconds();
    out.compat = plan_like_pipedream(out.profile, compat_request_of(options, out.request));
    out.compat_planning_seconds = steady_seconds() - start;
    out.priced = price_compat_plan(out.profile, graph, *out.compat, out.request);
  }
  out.own = out.priced && options.stages == 0
                ? plan_not_slower_than(*out.priced, graph, out.request)
                : plan_graph(graph, out.request);
  const DeviceRange all{0, out.request.devices};
  out.data_parallel_seconds =
      plan_with_cuts(out.own.chain, out.request, {}, {}, std::span(&all, 1)).bottleneck_seconds;
  return out;
}

std::string bandwidth_text(const Comparison& comparison) {
  const Topology& topology = comparison.request.topology;
  if (topology.levels.empty()) {
    return fmt::format("{:.3g} GB/s", comparison.request.transfer.bytes_per_second / 1e9);
  }
  std::string out = printable(topology.name);
  for (const TopologyLevel& level : topology.levels) {
    out += fmt::format(", {} x {:.3g} GB/s", level.count, level.bytes_per_second / 1e9);
  }
  return out;
}

std::string stage_table(const GraphPlan& planned) {
  std::string out = fmt::format("{:>5} {:>8} {:>7}{:>12}{:>12}{:>12}{:>12}{:>12}  {}\n", "stage",
                                "devices", "layers", "compute", "transfers", "all-reduce",
                                "per batch", "weights", "first layer");
  for (std::size_t i = 0; i < planned.plan.stages.size(); ++i) {
    const StagePlan& stage = planned.plan.stages[i];
    const std::string& name = planned.chain.elements[static_cast<std::size_t>(stage.first)].name;
    out += fmt::format("{:>5} {:>8} {:>7}{:>12}{:>12}{:>12}{:>12}{:>12}  {}\n", i, stage.replicas,
                       stage.last - stage.first,
                       seconds_text(stage.forward_seconds + stage.backward_seconds),
                       seconds_text(stage.transfer_seconds), seconds_text(stage.all_reduce_seconds),
                       seconds_text(stage.seconds), bytes_text(stage.parameter_bytes),
                       first_characters(printable(name), 40));
  }
  return out;
}

std::string speed_text(double single, double data_parallel, double seconds) {
  return fmt::format("{:>10} per mini-batch, {:.3g} x one device, {:.3g} x data parallelism",
                     seconds_text(seconds), single / seconds, data_parallel / seconds);
}

std::string table_of(const Comparison& comparison, const PipeDreamPlanOptions& options) {
  const Plan& plan = comparison.own.plan;
  std::string out = fmt::format(
      "{}: {} layers, {} edges, {} per mini-batch on one device; {} device{}, {}\n",
      printable(options.profile), comparison.profile.nodes.size(), comparison.profile.edges.size(),
      seconds_text(comparison.single_seconds), comparison.request.devices,
      comparison.request.devices == 1 ? "" : "s", bandwidth_text(comparison));
  out += stage_table(comparison.own);
  out += fmt::format("pipetrain  {}\n",
                     speed_text(comparison.single_seconds, comparison.data_parallel_seconds,
                                plan.bottleneck_seconds));
  out +=
      fmt::format("bound      {:>10} ({}); gap {:.2f} %{}\n",
                  seconds_text(plan.lower_bound_seconds), plan.lower_bound_reason, plan.gap() * 100,
                  comparison.own.exact ? "; optimal over all orders of the layers" : "");
  out += fmt::format("planned in {:>10}, {} orders tried\n", seconds_text(plan.planning_seconds),
                     comparison.own.orders);
  for (const std::string& note : plan.notes) out += "note       " + note + "\n";
  if (!comparison.compat) return out;
  const CompatPlan& compat = *comparison.compat;
  out += "\nPipeDream's plan, priced as above\n" + stage_table(*comparison.priced);
  out += fmt::format("PipeDream  {}\n",
                     speed_text(comparison.single_seconds, comparison.data_parallel_seconds,
                                comparison.priced->plan.bottleneck_seconds));
  out += fmt::format("  estimate {}\n", speed_text(compat.single_machine_seconds,
                                                   compat.data_parallel_seconds, compat.seconds));
  out += fmt::format("planned in {:>10}, {} states\n",
                     seconds_text(comparison.compat_planning_seconds), compat.states);
  return out;
}

Json stages_json(const PipeDreamProfile& profile, const GraphPlan& planned) {
  Json out = Json::array();
  for (const StagePlan& stage : planned.plan.stages) {
    Json nodes = Json::array();
    for (int i = stage.first; i < stage.last; ++i) {
      const int node = planned.order[static_cast<std::size_t>(i)];
      nodes.push_back(profile.nodes[static_cast<std::size_t>(node)].id);
    }
    out.push_back({{"devices", stage.replicas},
                   {"first_device", stage.first_device},
                   {"seconds", stage.seconds},
                   {"compute_seconds", stage.forward_seconds + stage.backward_seconds},
                   {"transfer_seconds", stage.transfer_seconds},
                   {"all_reduce_seconds", stage.all_reduce_seconds},
                   {"parameter_bytes", stage.parameter_bytes},
                   {"nodes", std::move(nodes)}});
  }
  return out;
}

Json json_of(const Comparison& comparison, const PipeDreamPlanOptions& options) {
  const Plan& plan = comparison.own.plan;
  Json out = {{"profile", options.profile},
              {"devices", comparison.request.devices},
              {"single_device_seconds", comparison.single_seconds},
              {"data_parallel_seconds", comparison.data_parallel_seconds},
              {"seconds", plan.bottleneck_seconds},
              {"lower_bound_seconds", plan.lower_bound_seconds},
              {"lower_bound_reason", plan.lower_bound_reason},
              {"gap", plan.gap()},
              {"exact", comparison.own.exact},
              {"planning_seconds", plan.planning_seconds},
              {"stages", stages_json(comparison.profile, comparison.own)},
              {"notes", plan.notes}};
  if (comparison.compat) {
    const CompatPlan& compat = *comparison.compat;
    out["pipedream"] = {
        {"states", compat.states},
        {"seconds", compat.seconds},
        {"single_machine_seconds", compat.single_machine_seconds},
        {"data_parallel_seconds", compat.data_parallel_seconds},
        {"planning_seconds", comparison.compat_planning_seconds},
        {"seconds_in_our_model", comparison.priced->plan.bottleneck_seconds},
        {"stages", stages_json(comparison.profile, *comparison.priced)},
    };
  }
  return out;
}

/// The profile with the stage of every layer.
std::string staged_text(const Comparison& comparison) {
  PipeDreamProfile staged = comparison.profile;
  const GraphPlan& planned = comparison.priced ? *comparison.priced : comparison.own;
  for (std::size_t s = 0; s < planned.plan.stages.size(); ++s) {
    const StagePlan& stage = planned.plan.stages[s];
    for (int i = stage.first; i < stage.last; ++i) {
      const int node = planned.order[static_cast<std::size_t>(i)];
      staged.nodes[static_cast<std::size_t>(node)].stage = static_cast<int>(s);
    }
  }
  return pipedream_text(staged);
}

}  // namespace

int plan_pipedream_profile(const PipeDreamPlanOptions& options) {
  const Comparison comparison = compare(options);
  if (options.output == "-") {
    print(staged_text(comparison));
    return 0;
  }
  if (!options.output.empty()) write_file(options.output, staged_text(comparison));
  const std::string text =
      options.json ? document_text("pipetrain.pipedream-plan/1", json_of(comparison, options))
                   : table_of(comparison, options);
  print(text);
  return 0;
}

}  // namespace pipetrain
