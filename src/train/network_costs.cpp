#include "train/network_costs.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <utility>

#include "base/index.h"
#include "pipeline/schedule/plan_costs.h"
#include "pipeline/transport/replica_group.h"
#include "pipeline/transport/sum_tree.h"
#include "processes/link_measure.h"
#include "processes/process_group.h"

namespace pipetrain {
namespace {

/// What the processes of a stage's replicas send each other of its gradients.
struct SentGradients {
  double parts = 1;  // of each process: its replicas' own, or one where it joins these first
  double of_each_share = 0;  // bytes of one part or sum that leave a process, per byte of gradients
};

SentGradients sent_gradients(const ProfiledNetwork& network, const StagePlan& stage) {
  std::vector<int> process_of(at(stage.replicas));
  std::set<int> processes;
  for (int place = 0; place < stage.replicas; ++place) {
    const int process = network.process_of(stage.first_device + place);
    process_of[at(network.schedule().replica_at(place, stage.replicas))] = process;
    processes.insert(process);
  }
  const bool joined = network.config().pipeline.accumulators > 0 && are_subtrees(process_of);
  const auto count = static_cast<double>(processes.size());
  return {joined ? 1 : stage.replicas / count, (count - 1) / count};
}

/// Whether the replicas of a stage send gradients as bfloat16. Those of one host that read each
/// other's memory do not: there, rounded gradients stay floats.
bool sends_bfloat16(const ProfiledNetwork& network, const StagePlan& stage) {
  const ProcessGroup& group = *network.processes();
  if (!network.config().pipeline.bfloat16_sums) return false;
  if (!group.hosts_read().value_or(false)) return true;
  const auto host_of = [&](int place) {
    return group.host_of(network.process_of(stage.first_device + place));
  };
  for (int place = 1; place < stage.replicas; ++place) {
    if (host_of(place) != host_of(0)) return true;
  }
  return false;
}

double turns_of_sums(const ProfiledNetwork& network, const StagePlan& stage) {
  std::vector<int> devices(at(stage.replicas)), process;
  std::iota(devices.begin(), devices.end(), stage.first_device);
  for (const int device : devices) process.push_back(network.process_of(device));
  return turns_of_sums(network.cores_of_processes(), devices, process);
}

/// The buckets in which the gradients of a stage with replicas in several processes are summed, and
/// when the nodes of the backward have completed each.
std::vector<ReduceBucket> buckets_of(const ProfiledNetwork& network, const StagePlan& stage,
                                     const Slices& slices, int number) {
  const bool apart =
      stage.replicas > 1 && network.process_of(stage.first_device) !=
                                network.process_of(stage.first_device + stage.replicas - 1);
  if (!apart || !network.topology()) return {};
  const TrainingGraph& graph = network.graph();
  const Topology& topology = *network.topology();
  const TopologyLevel& link = topology.levels[at(
      topology.common_level(stage.first_device, stage.first_device + stage.replicas - 1))];
  std::vector<double> done_after(graph.graph.nodes.size(), 1);  // by node
  double whole = 0, done = 0;
  const std::vector<NodeId>& backward = slices.stages[at(number)].backward;
  for (const NodeId node : backward) whole += network.profile().node_seconds[at(node.index)];
  for (const NodeId node : backward) {
    done += network.profile().node_seconds[at(node.index)];
    if (whole > 0) done_after[at(node.index)] = std::min(1.0, done / whole);
  }
  std::vector<std::size_t> sizes;
  std::vector<double> ready;
  for (const CompletedGradient& gradient : completion_order(graph, slices, number)) {
    const ValueId accumulator = graph.accumulations[at(gradient.accumulation)].accumulator;
    sizes.push_back(static_cast<std::size_t>(graph.graph[accumulator].type.count()));
    ready.push_back(gradient.node ? done_after[at(gradient.node.index)] : 1);
  }
  // To the others their shares of the parts, and to all the sum of a share.
  const SentGradients sent = sent_gradients(network, stage);
  const double seconds_per_byte = (sent.parts + 1) * sent.of_each_share / link.all_reduce_rate();
  const bool narrow = sends_bfloat16(network, stage);
  const double turns = turns_of_sums(network, stage);
  std::vector<ReduceBucket> buckets;
  for (const ReplicaGroup::Bucket& bucket : ReplicaGroup::divide(sizes, network.bucket_floats())) {
    ReduceBucket& out = buckets.emplace_back();
    out.ready = turns > 0 ? 1 : 0;
    std::size_t here = 0;
    for (std::size_t g = bucket.first; g < bucket.last; ++g) {
      out.ready = std::max(out.ready, ready[g]);
      here += sizes[g];
    }
    out.bytes = static_cast<std::int64_t>(here * (narrow ? sizeof(std::uint16_t) : sizeof(float)));
    out.seconds = std::max(1.0, turns) * seconds_per_byte * static_cast<double>(out.bytes);
    out.latency = 2 * link.latency_seconds;  // of the parts and of their sum
  }
  return buckets;
}

/// Where replicas in several processes share the updates: each makes its part, and new weights, not
/// sums, leave when the gradients are summed, as floats.
void spread_updates(const ProfiledNetwork& network, const StagePlan& stage, StageSeconds& seconds) {
  const double of_weights =
      seconds.buckets.empty() ? 0.5 : 1 / (sent_gradients(network, stage).parts + 1);
  const double widening = sends_bfloat16(network, stage) ? 2 : 1;
  double weights =
      seconds.buckets.empty() ? seconds.reduce * of_weights : seconds.buckets.back().latency / 2;
  seconds.reduce *= 1 - of_weights;
  for (ReduceBucket& bucket : seconds.buckets) {
    weights += widening * of_weights * bucket.seconds;
    bucket.seconds *= 1 - of_weights;
    bucket.latency /= 2;
  }
  seconds.update = seconds.update / stage.replicas + weights;
}

}  // namespace

Costs costs_of_stages(const ProfiledNetwork& network, const Plan& plan, const Slices* slices) {
  Costs costs = costs_of_plan(plan, network.costs(), static_cast<int>(network.micro_batches()));
  if (network.topology() && !network.topology()->levels.empty())
    costs.link.latency_seconds = network.topology()->levels.front().latency_seconds;
  costs.gradient_sync_seconds = costs.results_seconds = network.all_gather_seconds();
  costs.results_on_host_seconds = network.all_gather_on_host_seconds();
  if (network.processes()) {
    const std::vector<std::vector<int>> hosts = processes_of_hosts(*network.processes());
    costs.host.assign(at(network.processes()->size()), 0);
    for (std::size_t h = 0; h < hosts.size(); ++h) {
      for (const int process : hosts[h]) costs.host[at(process)] = static_cast<int>(h);
    }
  }
  for (int device = 0; network.processes() && device < network.schedule().devices(); ++device)
    costs.process.push_back(network.process_of(device));
  for (std::size_t s = 0; network.processes() && s < plan.stages.size(); ++s) {
    if (slices)
      costs.stage[s].buckets = buckets_of(network, plan.stages[s], *slices, static_cast<int>(s));
    if (network.config().pipeline.shard_optimizer && plan.stages[s].replicas > 1)
      spread_updates(network, plan.stages[s], costs.stage[s]);
  }
  return costs;
}

void set_edge_links(const ProfiledNetwork& network, const std::vector<Edge>& edges,
                    const std::vector<std::vector<int>>& placement, Costs& costs) {
  const std::vector<int>& gpus = network.config().pipeline.gpu_ids;
  const bool links_gpus = !gpus.empty() && network.topology() &&
                          network.topology()->devices() >= network.schedule().devices();
  if (!network.estimated() && !network.processes() && !links_gpus) return;
  costs.edge_link.clear();
  for (const Edge& edge : edges) {
    // Of replicas the two that are farthest apart.
    int level = -1;
    bool copied = network.estimated();
    for (const int from : placement[at(edge.from_stage)]) {
      for (const int to : placement[at(edge.to_stage)]) {
        level = std::max(level, network.topology()->common_level(from, to));
        copied = copied || network.process_of(from) != network.process_of(to) ||
                 (links_gpus && from != to);
      }
    }
    if (level < 0) {
      costs.edge_link.emplace_back();
      continue;
    }
    const TopologyLevel& link = network.topology()->levels[at(level)];
    costs.edge_link.push_back({link.latency_seconds, LinkCost().bytes_per_second});
    if (copied) costs.edge_link.back().bytes_per_second = link.bytes_per_second;
  }
}

void set_device_speeds(const ProfiledNetwork& network, const Program& program, Costs& costs) {
  if (network.plans_speeds()) return;
  std::vector<double> scale;
  for (const double speed : network.device_speeds()) scale.push_back(1 / speed);
  if (scale.empty()) return;
  scale.resize(at(program.devices), 1);
  costs.device_scale = std::move(scale);
}

void add_tied_gradients(const ProfiledNetwork& network, const Slices& slices,
                        const std::vector<std::vector<int>>& placement, Costs& costs) {
  if (!network.estimated() && !network.processes()) return;
  if (!network.topology() || network.topology()->levels.empty()) return;
  const Topology& topology = *network.topology();
  const TrainingGraph& graph = network.graph();
  const auto process_of = [&](int device) {
    return network.estimated() ? device : network.process_of(device);
  };
  // One message after the other, as ProcessSharing::exchange_tied_gradients() sends them.
  for (std::size_t to = 0; to < slices.stages.size(); ++to) {
    for (const int i : slices.stages[to].remote_accumulations) {
      const ValueId accumulator = graph.accumulations[at(i)].accumulator;
      const auto bytes = static_cast<double>(graph.graph[accumulator].type.bytes());
      for (std::size_t from = 0; from < slices.stages.size(); ++from) {
        if (std::ranges::count(slices.stages[from].accumulations, i) == 0) continue;
        std::set<int> have;  // processes that have the gradient
        for (const int device : placement[from]) have.insert(process_of(device));
        for (const int device : placement[to]) {
          if (!have.insert(process_of(device)).second) continue;
          const TopologyLevel& link =
              topology.levels[at(topology.common_level(placement[from].front(), device))];
          costs.gradient_sync_seconds += link.latency_seconds + bytes / link.bytes_per_second;
        }
      }
    }
  }
}

}  // namespace pipetrain
