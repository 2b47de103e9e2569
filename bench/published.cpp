// Published results of pipeline systems next to what pipetrain's planner and simulator say of the
// same settings. Writes docs/published.md:
//
//   published TESTS_DATA_PIPEDREAM TOPOLOGIES > docs/published.md
//
// The prose stands in published_words.h, so that text and numbers are made together. Horovod has
// files of its own.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "partition/pipedream_graph.h"
#include "partition/topology_file.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/simulate/simulate.h"
#include "published_horovod.h"
#include "published_words.h"

namespace pipetrain {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// ---- GPipe ----

// Seconds of one mini-batch in M micro-batches over stages with these forwards (of the whole
// mini-batch); a backward is `backward` forwards and recomputes one.
double gpipe_seconds(const std::vector<double>& forward, const std::vector<double>& backward,
                     int micro_batches) {
  ScheduleOptions options;
  options.name = "gpipe";
  options.stages = static_cast<int>(forward.size());
  options.micro_batches = micro_batches;
  options.recompute.assign(forward.size(), true);
  const Program program = generate(options);
  Costs costs;
  for (std::size_t s = 0; s < forward.size(); ++s) {
    StageSeconds stage;
    stage.forward = stage.recompute = forward[s] / micro_batches;
    stage.backward = backward[s] / micro_batches;
    costs.stage.push_back(stage);
  }
  SimulateOptions once;
  once.keep_events = false;
  once.rounds = 1;
  return simulate(program, costs, once).makespan;
}

// Forward and backward seconds of each stage.
struct Stages {
  std::vector<double> forward, backward;
};

double seconds_of(const Stages& stages, int micro_batches) {
  return gpipe_seconds(stages.forward, stages.backward, micro_batches);
}

Stages equal_stages(int count) {
  return {std::vector<double>(at(count), 1.0 / count), std::vector<double>(at(count), 2.0 / count)};
}

// NASNet-A's cells: a node belongs to the cell after as many Concats as lie before it.
std::vector<int> cells_of(const PipeDreamProfile& profile) {
  std::vector<std::vector<int>> inputs(profile.nodes.size());
  for (const PipeDreamEdge& edge : profile.edges) inputs[at(edge.to)].push_back(edge.from);
  std::vector<int> cell(profile.nodes.size(), 0);
  for (const int node : topological_order(profile)) {
    for (const int input : inputs[at(node)]) {
      const bool joins = profile.nodes[at(input)].description.starts_with("Concat");
      cell[at(node)] = std::max(cell[at(node)], cell[at(input)] + (joins ? 1 : 0));
    }
  }
  return cell;
}

// GPipe's own cut: cell i goes where the forwards up to it, as a part of all, say.
Stages gpipes_cut(const PipeDreamProfile& profile, int count) {
  const std::vector<int> cell = cells_of(profile);
  const int cells = 1 + *std::max_element(cell.begin(), cell.end());
  std::vector<double> forward(at(cells), 0), backward(at(cells), 0);
  for (std::size_t i = 0; i < profile.nodes.size(); ++i) {
    if (profile.nodes[i].is_input()) continue;
    forward[at(cell[i])] += profile.nodes[i].forward_milliseconds;
    backward[at(cell[i])] += profile.nodes[i].backward_milliseconds;
  }
  const double all = std::accumulate(forward.begin(), forward.end(), 0.0);
  Stages out{std::vector<double>(at(count), 0), std::vector<double>(at(count), 0)};
  double sum = 0;
  for (int i = 0; i < cells; ++i) {
    sum += forward[at(i)];
    const int stage = std::min(static_cast<int>(sum / all * count), count - 1);
    out.forward[at(stage)] += forward[at(i)];
    out.backward[at(stage)] += backward[at(i)];
  }
  return out;
}

// The planner's cut, between any two layers, with links that cost nothing.
Stages planned_cut(const PipeDreamProfile& profile, int count) {
  PlanRequest request;
  request.schedule = planned_schedule("gpipe");
  request.stages = request.devices = count;
  request.replication = false;
  request.recompute = Recompute::kAll;
  request.objective = Objective::kThroughput;
  request.tolerance = 1e-4;
  Stages out;
  for (const StagePlan& stage : plan_graph(cost_graph_of(profile), request).plan.stages) {
    out.forward.push_back(stage.forward_seconds * 1e3);
    out.backward.push_back(stage.backward_seconds * 1e3);
  }
  return out;
}

struct Throughput {
  int micro_batches;
  double amoeba[3], transformer[3];
};
constexpr Throughput kTable2[] = {{1, {1, 1.13, 1.38}, {1, 1.07, 1.3}},
                                  {4, {1.07, 1.26, 1.72}, {1.7, 3.2, 4.8}},
                                  {32, {1.21, 1.84, 3.48}, {1.8, 3.4, 6.3}}};
constexpr int kPartitions[] = {2, 4, 8};

constexpr double kTable3[2][3] = {{1, 1.7, 2.7}, {1, 1.8, 3.3}};  // AmoebaNet, Transformer

void print_gpipe(const std::filesystem::path& data) {
  fmt::print(
      "## GPipe, Table 2: throughput on TPUs, relative to 2 partitions and 1 micro-batch\n\n"
      "Published / **predicted** for Transformer-48: 48 equal layers, a backward pass of two "
      "forwards, full recomputation, free\n"
      "transfers and the same mini-batch everywhere, so only the schedule matters.\n\n"
      "| micro-batches | K = 2 | K = 4 | K = 8 |\n"
      "|---|---|---|---|\n");
  const double unit = seconds_of(equal_stages(2), 1);
  for (const Throughput& row : kTable2) {
    fmt::print("| {} |", row.micro_batches);
    for (int k = 0; k < 3; ++k) {
      fmt::print(" {:.2f} / **{:.2f}** |", row.transformer[k],
                 unit / seconds_of(equal_stages(kPartitions[k]), row.micro_batches));
    }
    fmt::print("\n");
  }
  fmt::print(
      "\n"
      "Published / **predicted** for AmoebaNet-D (18, 256). Its layer times are not published; "
      "PipeDream's profile of NASNet-A\n"
      "large stands in, which also has 18 normal cells. Predicted with GPipe's cut (whole cells, "
      "by forward time) and, after\n"
      "the bar, with pipetrain's (between any two layers).\n\n"
      "| micro-batches | K = 2 | K = 4 | K = 8 |\n"
      "|---|---|---|---|\n");
  const PipeDreamProfile nasnet = read_pipedream_profile(data / "nasnetalarge/graph.txt");
  std::vector<Stages> theirs, ours;
  for (const int count : kPartitions) {
    theirs.push_back(gpipes_cut(nasnet, count));
    ours.push_back(planned_cut(nasnet, count));
  }
  const double amoeba = seconds_of(theirs[0], 1);
  for (const Throughput& row : kTable2) {
    fmt::print("| {} |", row.micro_batches);
    for (int k = 0; k < 3; ++k) {
      fmt::print(" {:.2f} / **{:.2f}** \\| {:.2f} |", row.amoeba[k],
                 amoeba / seconds_of(theirs[at(k)], row.micro_batches),
                 amoeba / seconds_of(ours[at(k)], row.micro_batches));
    }
    fmt::print("\n");
  }
  fmt::print(
      "\n"
      "Table 3, GPUs without fast links, 32 micro-batches, relative to K = 2; published / "
      "**predicted** without transfers:\n\n"
      "| | K = 2 | K = 4 | K = 8 |\n"
      "|---|---|---|---|\n");
  for (int row = 0; row < 2; ++row) {
    const auto seconds = [&](int k) {
      return seconds_of(row == 0 ? theirs[at(k)] : equal_stages(kPartitions[k]), 32);
    };
    fmt::print("| {} |",
               row == 0 ? "AmoebaNet-D (18, 128), NASNet-A large stands in" : "Transformer-24");
    for (int k = 0; k < 3; ++k) {
      fmt::print(" {:.2f} / **{:.2f}** |", kTable3[row][k], seconds(0) / seconds(k));
    }
    fmt::print("\n");
  }
  fmt::print("{}", kGpipeWords);
}

// ---- PipeDream ----

struct Setting {
  const char* name;
  const char* profile;
  const char* topology;
  int devices;
  const char* configuration;  // as published
  std::vector<int> replicas;  // of it; one 0: as many single devices as there are
  double speedup;             // published, epoch time over data parallelism
  const char* source;         // "" or a mark
};

PlanRequest request_on(const Topology& topology) {
  PlanRequest request;
  request.schedule = planned_schedule("pipedream");
  request.stages = 0;
  request.recompute = Recompute::kNone;
  request.topology = topology;
  request.devices = topology.devices();
  request.tolerance = 1e-4;
  return request;
}

// The best cut for these replicas, one stage after the other.
GraphPlan with_replicas(const CostGraph& graph, PlanRequest request, std::vector<int> replicas) {
  if (replicas == std::vector<int>{0}) {
    request.stages = request.devices;
    request.replication = false;
    return plan_graph(graph, request);
  }
  GraphPlan best = plan_graph(graph, request);  // for its order
  std::vector<DeviceRange> devices;
  int first = 0;
  for (const int count : replicas) {
    devices.push_back({first, count});
    first += count;
  }
  std::optional<Plan> found;
  const auto consider = [&](std::span<const int> cuts) {
    Plan plan = plan_with_cuts(best.chain, request, cuts, {}, devices);
    if (!found || plan.bottleneck_seconds < found->bottleneck_seconds) found = std::move(plan);
  };
  if (replicas.size() == 1) consider({});
  for (int cut = 1; replicas.size() == 2 && at(cut) < best.chain.elements.size(); ++cut) {
    consider(std::span(&cut, 1));
  }
  best.plan = *found;
  return best;
}

// Seconds per mini-batch in the steady state, by simulating PipeDream's schedule with every send,
// receive and all-reduce.
double simulated_seconds(const GraphPlan& planned, const Topology& topology) {
  const std::vector<StagePlan>& stages = planned.plan.stages;
  ScheduleOptions options;
  options.name = "pipedream";
  options.stages = static_cast<int>(stages.size());
  Costs costs;
  std::vector<Edge> edges = chain_edges(options.stages);
  for (const StagePlan& stage : stages) {
    options.replicas.push_back(stage.replicas);
    StageSeconds seconds;
    seconds.forward = stage.forward_seconds;
    seconds.backward = stage.backward_seconds;
    seconds.reduce = stage.all_reduce_seconds;
    costs.stage.push_back(seconds);
  }
  for (Edge& edge : edges) {
    const StagePlan& before = stages[at(std::min(edge.from_stage, edge.to_stage))];
    const StagePlan& after = stages[at(std::max(edge.from_stage, edge.to_stage))];
    const auto cut = at(after.first);
    edge.bytes_per_micro_batch = static_cast<std::int64_t>(
        edge.gradient ? planned.chain.backward_bytes[cut] : planned.chain.forward_bytes[cut]);
    // The slowest link between any of their devices.
    const int level =
        topology.common_level(before.first_device, after.first_device + after.replicas - 1);
    const TopologyLevel& link = topology.levels[at(level)];
    costs.edge_link.push_back({link.latency_seconds, link.bytes_per_second});
  }
  const auto makespan = [&](int units) {
    options.micro_batches = units;
    SimulateOptions once;
    once.keep_events = false;
    once.rounds = 1;
    return simulate(lower(generate(options), edges), costs, once).makespan;
  };
  int period = 1;  // after so many units every stage has come round
  for (const StagePlan& stage : stages) period = std::lcm(period, stage.replicas);
  const int units = period * ((16 * planned.plan.devices() + period - 1) / period);
  return (makespan(2 * units) - makespan(units)) / units;
}

std::string configuration_text(const Plan& plan) {
  const auto& stages = plan.stages;
  const bool straight = std::all_of(stages.begin(), stages.end(),
                                    [](const StagePlan& stage) { return stage.replicas == 1; });
  if (straight && stages.size() > 4) return fmt::format("{} single", stages.size());
  std::string out;
  for (const StagePlan& stage : stages) {
    out += fmt::format("{}{}", out.empty() ? "" : "-", stage.replicas);
  }
  return out;
}

// Everything of one row but what is published.
struct Predicted {
  double pipedreams_model = 0;  // its own plan, its own model
  double configuration = 0;     // the published one, our model
  double simulated = 0;         // the same, simulated
  double hidden = 0;            // the same, against all-reduce that overlaps the backward pass
  double ours = 0;              // our plan, our model
  std::string our_configuration;
};

// Times and activations of a mini-batch `scale` times the profile's.
PipeDreamProfile scaled(PipeDreamProfile profile, double scale) {
  for (PipeDreamNode& node : profile.nodes) {
    node.forward_milliseconds *= scale;
    node.backward_milliseconds *= scale;
    for (double& bytes : node.activation_bytes) bytes *= scale;
  }
  return profile;
}

// GNMT-16's profile has one LSTM whose backward pass took 66.2 ms, its seven siblings 18.7 to 19.1.
PipeDreamProfile without_outlier(PipeDreamProfile profile) {
  for (PipeDreamNode& node : profile.nodes) {
    if (node.id == "node92") node.backward_milliseconds = 18.9;
  }
  return profile;
}

Predicted predict(const Setting& setting, const PipeDreamProfile& profile,
                  const Topology& topology) {
  const CostGraph graph = cost_graph_of(profile);
  const PlanRequest request = request_on(topology);
  Predicted out;
  CompatRequest compat_request;
  compat_request.levels.clear();
  for (const TopologyLevel& level : topology.levels) {
    if (level.count > 1) compat_request.levels.push_back({level.count, level.bytes_per_second});
  }
  compat_request.activation_compression = 1;
  const CompatPlan compat = plan_like_pipedream(profile, compat_request);
  out.pipedreams_model = compat.data_parallel_seconds / compat.seconds;

  const GraphPlan config = with_replicas(graph, request, setting.replicas);
  const GraphPlan parallel = with_replicas(graph, request, {request.devices});
  const StagePlan& all = parallel.plan.stages[0];
  out.configuration = all.seconds / config.plan.bottleneck_seconds;
  const double simulated = simulated_seconds(config, topology);
  out.simulated = simulated_seconds(parallel, topology) / simulated;
  const double hidden =
      (all.forward_seconds + std::max(all.backward_seconds, all.all_reduce_seconds)) / all.replicas;
  out.hidden = hidden / simulated;
  const GraphPlan own = plan_not_slower_than(config, graph, request);
  out.ours = all.seconds / own.plan.bottleneck_seconds;
  out.our_configuration = configuration_text(own.plan);
  return out;
}

// The outermost links at a part of what they say.
Topology slowed(Topology topology, double part) {
  if (topology.levels.size() > 1) topology.levels.back().bytes_per_second *= part;
  return topology;
}

void print_row(const Setting& setting, const Predicted& row, const std::string& what) {
  fmt::print("| {}{} | {} | {} | {:.2f}{} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} ({}) |\n",
             setting.name, what, setting.topology, setting.configuration, setting.speedup,
             setting.source, row.pipedreams_model, row.configuration, row.simulated, row.hidden,
             row.ours, row.our_configuration);
}

void print_pipedream(const std::filesystem::path& data, const std::filesystem::path& topologies) {
  const std::vector<Setting> settings = {
      {"VGG-16", "vgg16", "pipedream-a", 16, "15-1", {15, 1}, 5.28, ""},
      {"VGG-16", "vgg16", "pipedream-b", 16, "15-1", {15, 1}, 2.98, ""},
      {"ResNet-50", "resnet50", "pipedream-a", 16, "16", {16}, 1, ""},
      {"ResNet-50", "resnet50", "pipedream-b", 16, "16", {16}, 1, ""},
      {"AlexNet", "alexnet", "pipedream-a", 16, "15-1", {15, 1}, 4.92, ""},
      {"AlexNet", "alexnet", "pipedream-b", 16, "15-1", {15, 1}, 2.04, ""},
      {"GNMT-16", "gnmt_large", "pipedream-a", 16, "straight", {0}, 2.34, "*"},
      {"GNMT-16", "gnmt_large", "pipedream-b", 16, "straight", {0}, 3.14, ""},
      {"GNMT-16", "gnmt_large", "pipedream-a", 4, "straight", {0}, 1.46, "*"},
      {"GNMT-8", "gnmt", "pipedream-a", 4, "straight", {0}, 1.5, ""},
      {"GNMT-8", "gnmt", "pipedream-a", 12, "straight", {0}, 2.95, ""},
      {"GNMT-8", "gnmt", "pipedream-b", 16, "16", {16}, 1, "*"},
  };
  const auto header = [] {
    fmt::print(
        "| model | cluster | configuration | published | PipeDream's model | our model | simulated "
        "| simulated, all-reduce hidden | our plan "
        "|\n|---|---|---|---:|---:|---:|---:|---:|---:|\n");
  };
  fmt::print(
      "\n"
      "## PipeDream, Table 1: epoch time, speed-up over data parallelism\n\n"
      "Inputs: the profiles that PipeDream's authors published (`tests/data/pipedream/`) and "
      "their clusters (`topologies/`) with\n"
      "the vendors' bandwidths. Columns:\n\n"
      "- *PipeDream's model*: the best plan of its own optimizer (`--compat pipedream`) over "
      "data parallelism, both in its own cost model;\n"
      "- *our model*: the published configuration with its best cut over data parallelism, both "
      "in the planner's model, where\n"
      "  transfers and all-reduce are added to compute;\n"
      "- *simulated*: the same two, simulated with PipeDream's schedule, where transfers overlap "
      "compute;\n"
      "- *all-reduce hidden*: simulated, against data parallelism whose all-reduce overlaps the "
      "backward pass perfectly;\n"
      "- *our plan*: pipetrain's best plan, in its own model, with the devices of each stage.\n\n");
  header();
  const auto profile_of = [&](const Setting& setting) {
    return read_pipedream_profile(data / setting.profile / "graph.txt");
  };
  const auto topology_of = [&](const Setting& setting) {
    return first_devices(read_topology(topologies / fmt::format("{}.json", setting.topology)),
                         setting.devices);
  };
  for (const Setting& setting : settings) {
    print_row(setting, predict(setting, profile_of(setting), topology_of(setting)), "");
  }
  fmt::print(
      "\n"
      "`*` quoted from memory, not checked against the paper. The profiles of AWD-LM and S2VT "
      "were not published.\n\n"
      "The rows that differ most, with other inputs:\n\n");
  header();
  for (const std::size_t i : {std::size_t{0}, std::size_t{4}}) {
    const Setting& setting = settings[i];
    const PipeDreamProfile profile = profile_of(setting), half = scaled(profile, 0.5);
    const Topology topology = topology_of(setting);
    print_row(setting, predict(setting, half, topology), ", half the mini-batch");
    print_row(setting, predict(setting, profile, slowed(topology, 0.5)),
              ", half the bandwidth between servers");
    print_row(setting, predict(setting, half, slowed(topology, 0.5)), ", both");
  }
  for (const std::size_t i : {std::size_t{6}, std::size_t{7}}) {
    const Setting& setting = settings[i];
    print_row(setting, predict(setting, without_outlier(profile_of(setting)), topology_of(setting)),
              ", node92 as its siblings");
  }
  fmt::print("{}", kPipedreamWords);
}

}  // namespace
}  // namespace pipetrain

int main(int count, char** arguments) {
  if (count != 3) {
    std::fputs("usage: published TESTS_DATA_PIPEDREAM TOPOLOGIES\n", stderr);
    return 2;
  }
  try {
    fmt::print("{}", pipetrain::kIntroduction);
    pipetrain::print_gpipe(arguments[1]);
    pipetrain::print_pipedream(arguments[1], arguments[2]);
    pipetrain::print_horovod(arguments[2]);
  } catch (const pipetrain::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.kind());
  }
  return 0;
}
