#include "train/cut_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/index.h"
#include "base/setting.h"
#include "partition/plan_file.h"
#include "partition/topology_file.h"
#include "pipeline/schedule/capacity.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/move_cuts.h"
#include "pipeline/schedule/plan_costs.h"
#include "pipeline/schedule/schedule_file.h"
#include "pipeline/stage/slice.h"
#include "pipeline/transport/replica_group.h"
#include "pipeline/transport/sum_tree.h"
#include "processes/link_measure.h"
#include "processes/process_group.h"
#include "train/plan_notes.h"

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

/// The costs of the stages of a plan; `slices`: its own, null: not known yet, and it has no
/// replicas.
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

/// Gives every edge the link between its devices, if those are not present, in several processes or
/// GPUs. (Within one process CPU cores do not copy values: only the latency counts.) `placement`:
/// by stage.
void set_links(const ProfiledNetwork& network, const std::vector<Edge>& edges,
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

/// The devices of each stage of a plan, where each device has one stage.
std::vector<std::vector<int>> devices_of(const Plan& plan) {
  std::vector<std::vector<int>> devices;
  for (const StagePlan& stage : plan.stages) {
    devices.emplace_back(at(stage.replicas));
    std::iota(devices.back().begin(), devices.back().end(), stage.first_device);
  }
  return devices;
}

/// Whether the stages of each device fit into its memory together.
bool fit_together(const ProfiledNetwork& network, const Plan& plan, std::size_t device_limit) {
  if (device_limit == 0) return true;
  for (const std::vector<int>& stages :
       network.schedule().stages_of_devices(static_cast<int>(network.micro_batches()))) {
    std::size_t bytes = 0;
    for (const int stage : stages) {
      if (stage < std::ssize(plan.stages)) bytes += plan.stages[at(stage)].memory.total();
    }
    if (bytes > device_limit) return false;
  }
  return true;
}

/// Fits the cuts of a plan to the schedule. An asynchronous one is as fast as its slowest stage.
void move_cuts_for_schedule(const ProfiledNetwork& network, const PlanRequest& request,
                            std::size_t device_limit, Plan& plan) {
  if (network.asynchronous() || plan.stages.size() == 1 || network.mode() != RunMode::kTrain)
    return;
  Costs costs = costs_of_stages(network, plan, nullptr);
  const int units = static_cast<int>(network.micro_batches());
  if (network.schedule().balances_warm_up())
    set_links(network, edges_of_plan(plan, network.costs()), devices_of(plan), costs);
  const ProgramMaker programs(network.schedule(), plan, edges_of_plan(plan, network.costs()), costs,
                              /*gradient_sync=*/false, units);
  Program program = programs.training(units);
  set_links(network, program.edges, program.placement, costs);
  if (network.topology()) add_sums(plan, request, *network.topology(), program, costs);
  Plan moved = move_cuts(network.costs(), request, plan, std::move(program), std::move(costs));
  if (fit_together(network, moved, device_limit)) plan = std::move(moved);
}

/// The planner's request, without the parts that depend on how the cuts are chosen.
PlanRequest request_of(const ProfiledNetwork& network, std::size_t planner_limit) {
  PlanRequest request;
  request.stages = network.schedule().stages();
  if (!names_schedule_file(network.config().pipeline.schedule) &&
      network.config().pipeline.replicas.empty())
    request.stages_per_device =
        stages_per_device(network.config().pipeline.schedule, network.config().pipeline.chunks);
  request.micro_batches = static_cast<int>(network.micro_batches());
  const bool fixed = network.model().has_fixed_batch() || network.schedule().fixed_units() > 0;
  request.most_micro_batches =
      fixed ? network.micro_batches() : network.config().optimization.batch_size;
  request.schedule = planned_schedule(network.config().pipeline.schedule);
  network.set_memory(request, planner_limit);
  request.recompute = network.config().pipeline.recompute;
  request.memory_units = network.config().pipeline.memory_units;
  if (network.schedule().balances_warm_up())
    request.warm_up_tolerance = network.config().pipeline.warm_up_tolerance;
  network.set_links(request);
  return request;
}

/// The result of `choose`, which reads the request. Stages that share a device get what each needs
/// if then none recomputes; otherwise equal shares. If these do not fit, the sum is checked after
/// the layout.
template <class MakePlan>
Plan plan_within(const ProfiledNetwork& network, PlanRequest& request, std::size_t device_limit,
                 const MakePlan& choose) {
  const auto make_plan = [&] {
    return with_recompute(network.costs(), request, choose(), network.schedule().recompute());
  };
  const std::size_t share = request.memory_limit_bytes;
  if (share == device_limit) return make_plan();
  const auto plan_with = [&](Recompute recompute, std::size_t limit) -> std::optional<Plan> {
    const Recompute mode = std::exchange(request.recompute, recompute);
    request.memory_limit_bytes = limit;
    std::optional<Plan> plan;
    try {
      plan = make_plan();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kResource) throw;
    }
    request.recompute = mode;
    return plan;
  };
  if (request.recompute == Recompute::kAuto) {
    std::optional<Plan> plan = plan_with(Recompute::kNone, device_limit);
    if (plan && fit_together(network, *plan, device_limit)) return std::move(*plan);
  }
  if (std::optional<Plan> plan = plan_with(request.recompute, share)) return std::move(*plan);
  request.memory_limit_bytes = device_limit;
  return make_plan();
}

/// A process without a device would wait for the others, or they for it.
void check_processes_have_devices(const ProfiledNetwork& network, int used, int wanted,
                                  std::string_view what) {
  PT_CHECK(!network.processes() || used == wanted, kUsage,
           "the plan has {} of {} {}, but each process needs one; start fewer processes, or give "
           "{}",
           used, wanted, what, setting("replicas"));
}

/// Chooses the cuts. Stores the planner's request in `request`.
Plan plan_chain(const ProfiledNetwork& network, std::vector<int> cuts, std::size_t planner_limit,
                PlanRequest& request) {
  const std::vector<int>& replicas = network.config().pipeline.replicas;
  if (!network.config().pipeline.plan_path.empty()) {
    PlanChoice choice =
        read_plan(network.config().pipeline.plan_path, element_names(network.costs()));
    choice.micro_batches.reset();  // the run's own number may be another one
    if (!choice.replicated() && choice.stages() == network.schedule().stages())
      request.loads = network.schedule().loads(request.micro_batches);
    return plan_within(network, request, planner_limit,
                       [&] { return plan_of_choice(network.costs(), request, choice); });
  }
  if (network.config().pipeline.plan_replicas) {
    request.stages = 0;
    request.devices = network.config().pipeline.devices;
    // Devices beyond the cores of a measured machine have the same links.
    const std::optional<Topology>& topology = network.topology();
    const bool is_named = !network.config().pipeline.topology.empty();
    if (topology && (is_named || request.devices <= topology->devices()))
      request.topology = first_devices(*topology, request.devices);
    // Programs number devices without gaps.
    Plan plan = without_gaps(network.costs(), request, plan_devices(network.costs(), request));
    check_processes_have_devices(network, plan.devices(), request.devices, "devices");
    return plan;
  }
  request.loads = network.schedule().loads(request.micro_batches);
  if (!network.config().pipeline.split.empty()) {
    const std::vector<std::string> names = element_names(network.costs());
    for (const std::string& name : network.config().pipeline.split)
      cuts.push_back(find_element(names, name));
  } else if (cuts.empty()) {
    // A stage of r devices gets r times the work.
    request.topology.device_speed.assign(replicas.begin(), replicas.end());
    Plan plan = plan_within(network, request, planner_limit,
                            [&] { return plan_stages(network.costs(), request); });
    request.topology.device_speed.clear();
    if (replicas.empty()) {
      check_processes_have_devices(network, static_cast<int>(plan.stages.size()), request.stages,
                                   "stages");
      move_cuts_for_schedule(network, request, planner_limit, plan);
      return plan;
    }
    cuts = plan.cuts();
    PT_CHECK(cuts.size() + 1 == replicas.size(), kUsage,
             "{} names {} stages, but the model can be cut into {} only", setting("replicas"),
             replicas.size(), cuts.size() + 1);
  }
  std::vector<DeviceRange> places;
  for (const int count : replicas)
    places.push_back({places.empty() ? 0 : places.back().first + places.back().count, count});
  // The closed forms consider replicas; the memory of one program does not.
  if (!places.empty()) {
    request.loads.clear();
    const std::optional<Topology>& topology = network.topology();
    const int devices = network.schedule().devices();
    if (topology && (network.processes() || devices <= topology->devices()))
      request.topology.levels = first_devices(*topology, devices).levels;
  }
  return plan_within(network, request, planner_limit,
                     [&] { return plan_with_cuts(network.costs(), request, cuts, {}, places); });
}

/// Whether an update needs all gradients at once. Error (kUsage) if the schedule does not allow
/// that.
bool needs_gradient_sync(const ProfiledNetwork& network, const Slices& slices, std::size_t stages) {
  const LossScaling scaling = network.loss_scaling();
  PT_CHECK(
      !network.asynchronous() || !scaling.skips, kUsage,
      "{} {} updates each stage separately, so it cannot skip a step when {}", setting("schedule"),
      network.config().pipeline.schedule,
      scaling.adapts
          ? fmt::format("float16 overflows; use 1f1b or gpipe, {} bf16 or a fixed {}",
                        setting("precision"), setting("loss-scale"))
          : fmt::format("gradients are not finite; use 1f1b or gpipe, or leave out {} nan=skip",
                        setting("on-error")));
  const bool gradient_sync =
      slices.has_tied_stages || network.config().optimization.clip_norm > 0 || scaling.skips;
  PT_CHECK(!network.asynchronous() || !gradient_sync || stages == 1, kUsage,
           "{} {} updates each stage separately, which {} does not allow; use 1f1b or gpipe",
           setting("schedule"), network.config().pipeline.schedule,
           slices.has_tied_stages ? "a weight shared by several stages" : setting("clip-norm"));
  return gradient_sync;
}

/// The memory of each device of a stage, by stage.
std::vector<ArenaBytes> lay_out(const ProfiledNetwork& network, const Slices& slices,
                                const Program& program) {
  std::vector<StageCapacity> capacity = stage_capacities({&program});
  add_accumulators({&program}, network.config().pipeline.accumulators, capacity);
  // The last batch of an epoch may be smaller: a network of its own, which computes gradients too.
  for (StageCapacity& stage : capacity)
    stage.one_micro_batch = stage.one_micro_batch && network.batch_sizes().size() == 1;
  std::vector<ArenaBytes> memory;
  std::vector<std::size_t> workspaces;
  for (std::size_t s = 0; s < slices.stages.size(); ++s) {
    UpdateShare share;
    if (network.config().pipeline.shard_optimizer) {
      share.replicas = program.replicas(static_cast<int>(s));
      share.replica = largest_share(network.graph(), slices.stages[s], share.replicas);
    }
    memory.push_back(predict_arena(network.graph(), slices, static_cast<int>(s), capacity[s],
                                   network.config().optimization.optimizer, share));
    workspaces.push_back(wanted_workspace(slices.stages[s], network.profile().workspace_bytes));
  }
  if (network.config().pipeline.gpu_ids.empty() && !network.processes())
    workspaces = shared_workspaces(std::move(workspaces), program.placement);
  for (std::size_t s = 0; s < workspaces.size(); ++s) memory[s].temporaries += workspaces[s];
  return memory;
}

}  // namespace

CutPlan cut_into_stages(const ProfiledNetwork& network, std::size_t planner_limit,
                        const std::vector<int>& cuts) {
  PlanRequest request = request_of(network, planner_limit);
  Plan plan = plan_chain(network, cuts, planner_limit, request);
  add_prediction_notes(network, plan);
  const int stages = static_cast<int>(plan.stages.size());
  std::vector<int> starts = {0};
  for (const int cut : plan.cuts()) starts.push_back(cut);
  std::vector<int> stage_of_forward = stages_of_chain(network.graph(), network.chain(), starts);
  const Slices slices = slice_stages(network.graph(), stage_of_forward, stages);
  std::vector<Edge> edges;
  for (const ValueEdge& edge : slices.edges)
    edges.push_back({edge.from, edge.to, static_cast<std::int64_t>(edge.bytes), edge.gradient});
  const bool gradient_sync = needs_gradient_sync(network, slices, plan.stages.size());

  const int micro_batches = static_cast<int>(network.micro_batches());
  Costs costs = costs_of_stages(network, plan, &slices);
  if (network.schedule().balances_warm_up()) set_links(network, edges, devices_of(plan), costs);
  ProgramMaker programs(network.schedule(), plan, std::move(edges), costs, gradient_sync,
                        micro_batches);
  // An asynchronous round is long: a part of it, with the pipeline full, gives the rate.
  const int mini_batches = network.asynchronous() ? std::max(4 * stages, 16) : 1;
  Program program = programs.training(mini_batches * micro_batches);
  check_order_of_sums(network.config().pipeline, has_many_replicas(program));
  set_links(network, program.edges, program.placement, costs);
  if (network.topology()) add_sums(plan, request, *network.topology(), program, costs);
  if (const std::optional<CoreSharing> waking = network.waking()) {
    share_cores(program, *waking, network.processors(), costs);
  } else if (const std::vector<CoreGroup> groups = network.cores_of_processes(); !groups.empty()) {
    share_cores(program, {}, groups, costs);
  }
  Simulation prediction = simulate(program, costs);
  std::vector<ArenaBytes> memory = lay_out(network, slices, program);
  return {std::move(plan),  std::move(request), std::move(stage_of_forward), std::move(programs),
          std::move(costs), std::move(program), std::move(prediction),       std::move(memory)};
}

}  // namespace pipetrain
