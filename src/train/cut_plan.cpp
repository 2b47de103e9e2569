#include "train/cut_plan.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/index.h"
#include "base/log.h"
#include "base/setting.h"
#include "graph/op.h"
#include "partition/plan_build.h"
#include "partition/plan_file.h"
#include "partition/topology_file.h"
#include "pipeline/schedule/capacity.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/move_cuts.h"
#include "pipeline/schedule/plan_costs.h"
#include "pipeline/schedule/schedule_file.h"
#include "pipeline/stage/slice.h"
#include "train/network_costs.h"
#include "train/plan_notes.h"

namespace pipetrain {
namespace {

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
    set_edge_links(network, edges_of_plan(plan, network.costs()), devices_of(plan), costs);
  const ProgramMaker programs(network.schedule(), plan, edges_of_plan(plan, network.costs()), costs,
                              /*gradient_sync=*/false, units);
  Program program = programs.training(units);
  set_edge_links(network, program.edges, program.placement, costs);
  set_device_speeds(network, program, costs);
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
  if (network.plans_speeds()) request.topology.device_speed = network.device_speeds();
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

/// The speeds of stages of so many devices each: those of all its devices together, as fast as the
/// slowest. `speeds`: of the devices; empty: all are equal.
std::vector<double> speeds_of_stages(const std::vector<int>& replicas,
                                     const std::vector<double>& speeds) {
  std::vector<double> out;
  std::size_t first = 0;
  for (const int count : replicas) {
    double least = 1;
    if (first + at(count) <= speeds.size())
      least = *std::min_element(speeds.begin() + static_cast<std::ptrdiff_t>(first),
                                speeds.begin() + static_cast<std::ptrdiff_t>(first + at(count)));
    out.push_back(count * least);
    first += at(count);
  }
  return out;
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
    int devices = choice.stages();
    for (const DeviceRange& range : choice.devices) devices = range.first + range.count;
    if (devices > std::ssize(request.topology.device_speed)) request.topology.device_speed.clear();
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
    request.topology.device_speed = network.device_speeds();
    // Programs number devices without gaps.
    Plan plan = without_gaps(network.costs(), request, plan_devices(network.costs(), request));
    check_processes_have_devices(network, plan.devices(), request.devices, "devices");
    return plan;
  }
  request.loads = network.schedule().loads(request.micro_batches);
  if (!network.config().pipeline.split.empty()) {
    const std::vector<std::string> names = element_names(network.costs());
    for (const std::string& name : network.config().pipeline.split)
      cuts.push_back(find_cut(names, name));
  } else if (cuts.empty()) {
    // A stage of r devices gets r times the work.
    const std::vector<double> speeds = request.topology.device_speed;
    if (!replicas.empty()) request.topology.device_speed = speeds_of_stages(replicas, speeds);
    Plan plan = plan_within(network, request, planner_limit,
                            [&] { return plan_stages(network.costs(), request); });
    request.topology.device_speed = speeds;
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
    if (places.back().first + places.back().count > std::ssize(request.topology.device_speed))
      request.topology.device_speed.clear();
    request.loads.clear();
    const std::optional<Topology>& topology = network.topology();
    const int devices = network.schedule().devices();
    if (topology && (network.processes() || devices <= topology->devices()))
      request.topology.levels = first_devices(*topology, devices).levels;
  }
  return plan_within(network, request, planner_limit,
                     [&] { return plan_with_cuts(network.costs(), request, cuts, {}, places); });
}

/// The warm-up of 1f1b-auto, and so what its stages hold, follows from the times of the plan. Makes
/// the plan of the same cuts again, until no stage holds more than it counts. (The closed forms of
/// replicas stay.) Where the memory is too small for that warm-up, returns how many micro-batches
/// each stage may hold at most; else nothing.
std::vector<int> count_warm_up(const ProfiledNetwork& network, const Slices& slices,
                               const std::vector<Edge>& edges, std::size_t planner_limit,
                               PlanRequest& request, Plan& plan) {
  std::vector<int> most;
  const bool replicated = plan.devices() > static_cast<int>(plan.stages.size());
  if (!network.schedule().balances_warm_up() || replicated) return most;
  const PipelineConfig& pipeline = network.config().pipeline;
  const auto recomputes = [&] {
    return std::ranges::any_of(plan.stages, [](const StagePlan& stage) { return stage.recompute; });
  };
  const bool recomputed = recomputes();
  std::vector<Recompute> modes;  // as a plan's file says; empty: as the options do
  for (const StagePlan& stage : plan.stages) {
    if (!pipeline.plan_path.empty())
      modes.push_back(stage.recompute ? Recompute::kAll : Recompute::kNone);
  }
  ScheduleOptions options;
  options.name = pipeline.schedule;
  options.stages = static_cast<int>(plan.stages.size());
  options.micro_batches = static_cast<int>(network.micro_batches());
  options.memory_units = pipeline.memory_units;
  constexpr int kRounds = 4;  // stages that recompute take longer, which changes the warm-up
  bool is_first = true;       // nothing of this warm-up is counted yet
  for (int round = 0; round < kRounds; ++round) {
    Costs costs = costs_of_stages(network, plan, &slices);
    set_edge_links(network, edges, devices_of(plan), costs);
    const ProgramMaker programs(network.schedule(), plan, edges, costs, /*gradient_sync=*/false,
                                options.micro_batches, most);
    options.warm = programs.warm_up();
    const Program held = generate(options);
    std::vector<ScheduleLoad> loads;
    bool holds_more = false;
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      const int counted = is_first ? 0 : request.loads[s].in_flight;
      holds_more = holds_more || held.slots_per_stage[s] > counted;
      loads.push_back({std::max(counted, held.slots_per_stage[s]), held.versions_per_stage[s]});
    }
    if (!holds_more) break;
    std::vector<ScheduleLoad> before = std::exchange(request.loads, std::move(loads));
    is_first = false;
    try {
      const std::vector<int> cuts = plan.cuts();
      Plan counted = plan_within(network, request, planner_limit, [&] {
        return plan_with_cuts(network.costs(), request, cuts, modes);
      });
      take_stages(std::move(counted), plan);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kResource) throw;
      if (most.empty()) {  // a shorter warm-up is slower, but fits
        most = most_micro_batches_within(plan, request.memory_limit_bytes);
        request.loads = std::move(before);
        is_first = true;
        continue;
      }
      // The layout tells how much less the planner may take (PlannedNetwork).
      if (network.estimated()) throw;
      break;
    }
  }
  if (!recomputed && recomputes()) add_recompute_note(request, plan);
  return most;
}

std::vector<Edge> edges_of_slices(const Slices& slices) {
  std::vector<Edge> edges;
  for (const ValueEdge& edge : slices.edges)
    edges.push_back({edge.from, edge.to, static_cast<std::int64_t>(edge.bytes), edge.gradient});
  return edges;
}

/// The network of another micro-batch, cut like that of the full one.
struct CutNetwork {
  std::unique_ptr<TrainingGraph> graph;
  Slices slices;
};

CutNetwork cut_network(const ProfiledNetwork& network, int stages,
                       const std::vector<int>& stage_of_forward, std::int64_t samples,
                       bool evaluation) {
  CutNetwork out{network.graph_of(samples, evaluation), {}};
  out.slices =
      slice_stages(*out.graph, carry_stages(network.graph(), stage_of_forward, *out.graph), stages);
  return out;
}

/// Those of the smaller micro-batches at the end of batches and of a validation: what they prepare
/// from weights, they have copies of.
std::vector<CutNetwork> smaller_networks(const ProfiledNetwork& network, int stages,
                                         const std::vector<int>& stage_of_forward) {
  std::vector<CutNetwork> out;
  const bool prepares = std::ranges::any_of(network.graph().graph.nodes, [](const Node& node) {
    return node.part == Part::kPrepare && !(node.op->flags & kView);
  });
  if (!prepares || network.mode() != RunMode::kTrain) return out;
  const std::int64_t full = network.micro_batch();
  std::set<std::pair<bool, std::int64_t>> sizes;  // evaluation, samples
  for (const std::int64_t size : network.batch_sizes()) sizes.emplace(false, size % full);
  const Dataset* validation = network.evaluation_data();
  const auto samples = validation ? static_cast<std::int64_t>(validation->size()) : 0;
  if (samples > full && !network.model().has_fixed_batch()) sizes.emplace(true, samples % full);
  for (const auto& [evaluation, size] : sizes) {
    if (size == 0) continue;
    try {
      out.push_back(cut_network(network, stages, stage_of_forward, size, evaluation));
    } catch (const Error& error) {
      // A run says so when it begins.
      log_debug("plan", "{}", error.message());
    }
  }
  return out;
}

/// What validates during training: the network of the largest micro-batch, and a whole round.
struct Validation {
  CutNetwork network;
  Program program;
};

/// None: there are no data for one.
std::optional<Validation> validation_of(const ProfiledNetwork& network, int stages,
                                        const std::vector<int>& stage_of_forward,
                                        const ProgramMaker& programs) {
  if (network.mode() != RunMode::kTrain) return {};
  const std::int64_t units = evaluation_units(network);
  if (units == 0) return {};
  const auto samples = static_cast<std::int64_t>(network.evaluation_data()->size());
  Validation out;
  out.network = cut_network(network, stages, stage_of_forward,
                            std::min(samples, network.micro_batch()), /*evaluation=*/true);
  out.program = programs.evaluation(static_cast<int>(std::min(units, kEvaluationRound)),
                                    edges_of_slices(out.network.slices));
  return out;
}

/// Whether an update needs all gradients at once. Error (kUsage) if the schedule does not allow
/// that.
bool needs_gradient_sync(const ProfiledNetwork& network, const Slices& slices) {
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
  PT_CHECK(!network.asynchronous() || !gradient_sync, kUsage,
           "{} {} updates each stage separately, which {} does not allow; use 1f1b or gpipe",
           setting("schedule"), network.config().pipeline.schedule,
           slices.has_tied_stages ? "a weight shared by several stages" : setting("clip-norm"));
  return gradient_sync;
}

/// Whether a device has several stages.
bool some_share_a_device(const Program& program) {
  std::set<int> known;
  for (const std::vector<int>& devices : program.placement) {
    for (const int device : devices) {
      if (!known.insert(device).second) return true;
    }
  }
  return false;
}

/// The memory of each device of a stage, by stage.
std::vector<ArenaBytes> lay_out(const ProfiledNetwork& network, const Slices& slices,
                                const Program& program, const std::optional<Validation>& validation,
                                const std::vector<CutNetwork>& smaller) {
  std::vector<const Program*> programs = {&program};
  if (validation) programs.push_back(&validation->program);
  std::vector<StageVariant> variants = {{&network.graph(), &slices}};
  if (validation)
    variants.push_back({validation->network.graph.get(), &validation->network.slices});
  for (const CutNetwork& each : smaller) variants.push_back({each.graph.get(), &each.slices});
  const bool on_host =
      network.config().pipeline.gpu_ids.empty() && network.profile().in_host_memory();
  std::vector<StageCapacity> capacity = stage_capacities(programs);
  add_accumulators(programs, network.config().pipeline.accumulators, capacity);
  // A smaller micro-batch at the end of a batch has a network of its own, which computes gradients
  // too.
  const bool alike = std::ranges::all_of(
      network.batch_sizes(), [&](std::int64_t size) { return size % network.micro_batch() == 0; });
  for (StageCapacity& stage : capacity) stage.one_micro_batch = stage.one_micro_batch && alike;
  std::vector<ArenaBytes> memory;
  std::vector<std::size_t> workspaces;
  for (std::size_t s = 0; s < slices.stages.size(); ++s) {
    UpdateShare share;
    if (network.config().pipeline.shard_optimizer) {
      share.replicas = program.replicas(static_cast<int>(s));
      share.replica = largest_share(network.graph(), slices.stages[s], share.replicas);
    }
    memory.push_back(predict_arena(variants, static_cast<int>(s), capacity[s],
                                   network.config().optimization.optimizer, share));
    if (!on_host) memory[s].parameters += constant_bytes(variants, static_cast<int>(s));
    workspaces.push_back(wanted_workspace(slices.stages[s], network.profile().workspace_bytes));
  }
  if (network.config().pipeline.gpu_ids.empty() && !network.processes())
    workspaces = shared_workspaces(std::move(workspaces), program.placement);
  for (std::size_t s = 0; s < workspaces.size(); ++s) memory[s].temporaries += workspaces[s];
  return memory;
}

}  // namespace

CutPlan cut_into_stages(const ProfiledNetwork& network, std::size_t planner_limit,
                        const std::vector<int>& cuts, std::vector<ArenaBytes> memory) {
  PlanRequest request = request_of(network, planner_limit);
  Plan plan = plan_chain(network, cuts, planner_limit, request);
  add_prediction_notes(network, plan);
  const int stages = static_cast<int>(plan.stages.size());
  std::vector<int> replicas;
  for (const StagePlan& stage : plan.stages) replicas.push_back(stage.replicas);
  std::vector<int> starts = {0};
  for (const int cut : plan.cuts()) starts.push_back(cut);
  std::vector<int> stage_of_forward = stages_of_chain(network.graph(), network.chain(), starts);
  const Slices slices = slice_stages(network.graph(), stage_of_forward, stages);
  std::vector<Edge> edges = edges_of_slices(slices);
  const bool gradient_sync = needs_gradient_sync(network, slices);

  std::vector<int> most_held = count_warm_up(network, slices, edges, planner_limit, request, plan);

  const int micro_batches = static_cast<int>(network.micro_batches());
  Costs costs = costs_of_stages(network, plan, &slices);
  if (network.schedule().balances_warm_up())
    set_edge_links(network, edges, devices_of(plan), costs);
  ProgramMaker programs(network.schedule(), plan, std::move(edges), costs, gradient_sync,
                        micro_batches, std::move(most_held));
  // An asynchronous round is long: a part of it, with the pipeline full, gives the rate.
  const int turns = (turns_of_replicas(replicas) + micro_batches - 1) / micro_batches;
  const int mini_batches =
      network.asynchronous() ? std::max({16, 4 * plan.devices(), 4 * turns}) : 1;
  Program program = programs.training(mini_batches * micro_batches);
  if (some_share_a_device(program)) request.shared_devices = program.devices;
  check_order_of_sums(network.config().pipeline, has_many_replicas(program));
  set_edge_links(network, program.edges, program.placement, costs);
  set_device_speeds(network, program, costs);
  add_tied_gradients(network, slices, program.placement, costs);
  if (network.topology()) add_sums(plan, request, *network.topology(), program, costs);
  if (const std::optional<CoreSharing> waking = network.waking()) {
    share_cores(program, *waking, network.processors(), costs);
  } else if (const std::vector<CoreGroup> groups = network.cores_of_processes(); !groups.empty()) {
    share_cores(program, {}, groups, costs);
  }
  Simulation prediction = simulate(program, costs);
  if (memory.empty()) {
    memory = lay_out(network, slices, program,
                     validation_of(network, stages, stage_of_forward, programs),
                     smaller_networks(network, stages, stage_of_forward));
  }
  return {std::move(plan),  std::move(request), std::move(stage_of_forward), std::move(programs),
          std::move(costs), std::move(program), std::move(prediction),       std::move(memory)};
}

}  // namespace pipetrain
