// Where a session's model is cut: profile, order, plan, memory, prediction.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/units.h"
#include "device/plugin.h"
#include "partition/order_text.h"
#include "partition/plan_file.h"
#include "partition/topology_file.h"
#include "passes/gather_gradients.h"
#include "passes/linearise.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/move_cuts.h"
#include "pipeline/schedule/plan_costs.h"
#include "pipeline/schedule/schedule_file.h"
#include "processes/process_group.h"
#include "profile/estimate.h"
#include "profile/machine.h"
#include "profile/measure.h"
#include "profile/measure_device.h"
#include "train/model_order.h"
#include "train/session.h"

namespace pipetrain {

/// What a run on one GPU begins with, where nothing is decided by it: a data-centre GPU.
const DeviceSpeed kSomeGpu = {
    .name = "a GPU", .flops_per_second = 40e12, .bytes_per_second = 1.5e12};

void Session::measure() {
  const TrainingGraph& graph = this->graph();
  topology_ = config_.pipeline.topology.empty()
                  ? measured_topology()
                  : std::optional(named_topology(config_.pipeline.topology));
  chain_ = linearise(graph);
  ProfileOptions options;
  options.use_cache = config_.pipeline.profile_cache;
  options.optimizer = config_.optimization.optimizer;
  options.busy_threads =
      std::min(programs_of_run_->devices(), std::max(1, available_cores() / threads_));
  options.brief = config_.pipeline.brief_profile && programs_of_run_->devices() == 1 &&
                  programs_of_run_->stages() == 1 && config_.pipeline.memory_limit_bytes == 0;
  estimated_ = config_.pipeline.profile_path.empty() && config_.pipeline.estimate && topology_ &&
               topology_->flops_per_second > 0 && topology_->memory_bytes_per_second > 0;
  if (estimated_ && config_.pipeline.memory_limit_bytes == 0)
    config_.pipeline.memory_limit_bytes = topology_->memory_bytes;
  if (estimated_) {
    profile_ = estimate_profile(graph, {.name = topology_->name,
                                        .flops_per_second = topology_->flops_per_second,
                                        .bytes_per_second = topology_->memory_bytes_per_second});
  } else if (!config_.pipeline.profile_path.empty()) {
    profile_ = read_profile(config_.pipeline.profile_path, graph);
  } else if (!leads()) {
    // Process 0's is everybody's.
  } else if (!config_.pipeline.gpu_ids.empty()) {
    Device& gpu = cuda_plugin().open(config_.pipeline.gpu_ids.front());
    gpu.allow_tensor_floats(config_.model.tensor_floats);
    options.tensor_floats = config_.model.tensor_floats;
    if (options.brief) {
      profile_ =
          known_device_profile(graph, gpu, options).value_or(estimate_profile(graph, kSomeGpu));
    } else {
      profile_ = measure_device_profile(graph, gpu, options);
    }
  } else {
    profile_ = measure_profile(graph, config_.pipeline.backend, threads_, options);
  }
  if (processes_) share_profile();
  costs_ = chain_costs(graph, chain_, profile_);
  if (leads()) choose_order();
  if (!processes_) return;
  // One order for all, which process 0 has found.
  ByteWriter order;
  for (const int node : order_) order.put(node);
  const std::string bytes = processes_->broadcast(order.take());
  std::vector<int> chosen;
  for (ByteReader reader(bytes); !reader.at_end();) chosen.push_back(reader.get<int>());
  if (!leads()) take_order(std::move(chosen));
}

void Session::take_measured(const KernelTimes& times, double update_seconds) {
  PT_CHECK(stages() == 1, kInternal, "the cut of {} stages may depend on their profile", stages());
  if (times.units == 0 || times.seconds.size() != profile_.node_seconds.size()) return;
  std::size_t bytes = 0;
  for (const Parameter& parameter : graph().parameters) {
    if (parameter.gradient) bytes += graph().graph[parameter.value].type.bytes();
  }
  for (std::size_t n = 0; n < times.seconds.size(); ++n) {
    const double runs = runs_per_micro_batch(graph(), graph().graph.nodes[n]);
    profile_.node_seconds[n] =
        times.seconds[n] / (runs > 0 ? runs * static_cast<double>(times.units) : 1);
  }
  // Adding to the accumulators is in the kernels' seconds.
  profile_.accumulate_seconds_per_byte = 0;
  profile_.update_seconds_per_byte = bytes ? update_seconds / static_cast<double>(bytes) : 0;
  profile_.is_estimate = false;
  costs_ = chain_costs(graph(), chain_, profile_);
  cut_into_stages();
}

/// Puts the nodes into the order of the plan that is followed, or into one that is better cut. No
/// number that is trained depends on it.
void Session::choose_order() {
  const PipelineConfig& pipeline = config_.pipeline;
  order_.clear();
  if (!pipeline.plan_path.empty()) {
    const std::string order = read_plan_outline(pipeline.plan_path).order;
    if (order.empty()) return;
    with_context([&] { return "following " + printable(pipeline.plan_path); },
                 [&] { take_order(parse_order(order, static_cast<int>(chain_.order.size()))); });
  } else if (!pipeline.order.empty()) {
    take_order(pipeline.order);
  } else if (pipeline.split.empty() && pipeline.cuts.empty() && mode_ == SessionMode::kTrain) {
    PlanRequest request;
    request.stages = programs_of_run_->stages();
    if (!can_reorder(costs_, request.stages)) return;
    request.micro_batches = static_cast<int>(micro_batches_);
    request.optimizer_bytes_per_parameter_byte = kept_slots(config_.optimization.optimizer);
    request.loads = programs_of_run_->loads(request.micro_batches);
    request.recompute = pipeline.recompute;
    if (topology_ && !topology_->levels.empty()) {
      request.transfer = {topology_->levels.front().latency_seconds,
                          topology_->levels.front().bytes_per_second};
    }
    take_order(better_order(graph(), profile_, chain_, costs_, request));
  }
}

void Session::add_notes() {
  const std::vector<int>& gpus = config_.pipeline.gpu_ids;
  if (!gpus.empty() && !estimated_ && profile_.backend == "estimate")
    plan_.notes.emplace_back(
        "what the nodes cost on a GPU is estimated from operations and bytes, not measured; "
        "pipetrain profile measures it");
  std::set<std::string> makes;  // of this process's: to open another's would take memory there
  for (int device = 0; profile_.backend == "device" && leads() && device < std::ssize(gpus);
       ++device) {
    if (!processes_ || process_of(device) == processes_->rank())
      makes.insert(cuda_plugin().open(gpus[static_cast<std::size_t>(device)]).make());
  }
  if (makes.size() > 1)
    plan_.notes.push_back(fmt::format("the GPUs differ: times are those of {}", profile_.device));
  if (!order_.empty())
    plan_.notes.emplace_back(
        "the nodes are cut in another order than the file's, which is in the plan");
  if (config_.pipeline.topology.empty() && topology_ &&
      std::any_of(plan_.stages.begin(), plan_.stages.end(),
                  [](const StagePlan& stage) { return stage.replicas > 1; })) {
    plan_.notes.emplace_back(
        "sums of gradients over replicas are priced at the speed at which two threads copy; while "
        "all are busy they take longer (doctor --measure tells both)");
  }
}

void Session::take_order(std::vector<int> order) {
  if (order.empty() || order == order_of(graph(), chain_)) return;
  chain_ = chain_in_order(graph(), order);
  costs_ = chain_costs(graph(), chain_, profile_);
  order_ = std::move(order);
}

void Session::plan() {
  if (costs_.elements.empty()) measure();
  const PipelineConfig& pipeline = config_.pipeline;
  // The planner sums up its elements; what the devices really hold is known when it is laid out. If
  // that is too much, the planner gets so much less.
  planner_limit_ = pipeline.memory_limit_bytes;
  const bool planned = pipeline.plan_path.empty() && pipeline.split.empty();
  cut_into_stages();
  for (int attempt = 0; planned && attempt < 8 && memory_excess() > 0; ++attempt) {
    const std::size_t excess = memory_excess() + planner_limit_ / 64;
    if (excess >= planner_limit_) break;
    planner_limit_ -= excess;
    config_.pipeline.cuts.clear();
    try {
      cut_into_stages();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kResource) throw;
      break;  // what was laid out last says it better
    }
  }
  PT_CHECK(memory_excess() == 0, kResource,
           "a device would hold {} more than --gpu-memory, which is {}; try more stages, "
           "--recompute all, smaller micro-batches or a higher limit",
           bytes_text(memory_excess()), bytes_text(pipeline.memory_limit_bytes));
}

void Session::cut_into_stages() {
  const TrainingGraph& graph = this->graph();
  plan_stages_of_chain();
  add_notes();

  std::vector<int> starts = {0};
  for (const int cut : plan_.cuts()) starts.push_back(cut);
  stage_of_forward_ = stages_of_chain(graph, chain_, starts);
  const Slices slices = slice_stages(graph, stage_of_forward_, stages());
  std::vector<Edge> edges;
  for (const ValueEdge& edge : slices.edges) {
    edges.push_back({edge.from, edge.to, static_cast<std::int64_t>(edge.bytes), edge.gradient});
  }
  const LossScaling scaling = loss_scaling();
  PT_CHECK(!asynchronous() || !scaling.skips, kUsage,
           "--schedule {} updates each stage on its own, so no step can be left out where {}",
           config_.pipeline.schedule,
           scaling.adapts
               ? "float16 overflows; use 1f1b or gpipe, --precision bf16 or a fixed "
                 "--loss-scale"
               : "gradients are not finite; use 1f1b or gpipe, or leave out --on-nan skip");
  const bool gradient_sync =
      slices.has_tied_stages || config_.optimization.clip_norm > 0 || scaling.skips;
  PT_CHECK(
      !asynchronous() || !gradient_sync || stages() == 1, kUsage,
      "--schedule {} updates each stage on its own, which {} does not allow; use 1f1b or gpipe",
      config_.pipeline.schedule,
      slices.has_tied_stages ? "a weight shared by several stages" : "--clip-norm");

  simulated_costs_ = planned_costs();
  programs_of_run_->set_plan(plan_, std::move(edges), simulated_costs_, gradient_sync,
                             static_cast<int>(micro_batches_));
  // An asynchronous round is long: some of it, with the pipeline full, tells the rate.
  const int mini_batches = asynchronous() ? std::max(4 * stages(), 16) : 1;
  predicted_program_ = programs_of_run_->training(mini_batches * static_cast<int>(micro_batches_));
  set_links(predicted_program_, simulated_costs_);
  prediction_ = simulate(predicted_program_, simulated_costs_);
  const std::vector<StageCapacity> capacity = stage_capacities({&predicted_program_});
  predicted_memory_.clear();
  std::vector<std::size_t> workspaces;
  for (int s = 0; s < stages(); ++s) {
    const auto i = static_cast<std::size_t>(s);
    predicted_memory_.push_back(
        predict_arena(graph, slices, s, capacity[i], config_.optimization.optimizer));
    workspaces.push_back(wanted_workspace(slices.stages[i], profile_.workspace_bytes));
  }
  if (config_.pipeline.gpu_ids.empty() && !processes_)
    workspaces = shared_workspaces(std::move(workspaces), predicted_program_.placement);
  for (std::size_t s = 0; s < workspaces.size(); ++s)
    predicted_memory_[s].temporaries += workspaces[s];
}

/// What the stages of plan_ cost.
Costs Session::planned_costs() const {
  Costs costs = costs_of_plan(plan_, costs_, static_cast<int>(micro_batches_));
  if (topology_ && !topology_->levels.empty())
    costs.link.latency_seconds = topology_->levels.front().latency_seconds;
  return costs;
}

/// Gives every edge the link between its devices, where those are not here. (In one process values
/// stay where they are: there only the hand-over takes time.)
void Session::set_links(const Program& program, Costs& costs) const {
  if (!estimated_) return;
  for (const Edge& edge : program.edges) {
    // Of replicas the two that are farthest apart.
    int level = -1;
    for (const int from : program.placement[static_cast<std::size_t>(edge.from_stage)]) {
      for (const int to : program.placement[static_cast<std::size_t>(edge.to_stage)])
        level = std::max(level, topology_->common_level(from, to));
    }
    if (level < 0) {
      costs.edge_link.emplace_back();
      continue;
    }
    const TopologyLevel& link = topology_->levels[static_cast<std::size_t>(level)];
    costs.edge_link.push_back({link.latency_seconds, link.bytes_per_second});
  }
}

/// Fits the cuts of plan_ to the schedule. An asynchronous one is as fast as its slowest stage.
void Session::move_cuts_for_schedule() {
  if (asynchronous() || stages() == 1 || mode_ != SessionMode::kTrain) return;
  Costs costs = planned_costs();
  const int units = static_cast<int>(micro_batches_);
  programs_of_run_->set_plan(plan_, edges_of_plan(plan_, costs_), costs, /*gradient_sync=*/false,
                             units);
  Program program = programs_of_run_->training(units);
  set_links(program, costs);
  plan_ = move_cuts(costs_, plan_request_, plan_, std::move(program), std::move(costs));
}

/// Bytes by which the fullest device is over the limit.
std::size_t Session::memory_excess() const {
  const std::size_t limit = config_.pipeline.memory_limit_bytes;
  if (limit == 0 || estimated_) return 0;  // what is not here is not laid out
  std::vector<std::size_t> bytes(static_cast<std::size_t>(devices()), 0);
  for (int s = 0; s < stages(); ++s) {
    for (const int device : predicted_program_.placement[static_cast<std::size_t>(s)])
      bytes[static_cast<std::size_t>(device)] += predicted_memory(s).total();
  }
  const std::size_t most = *std::max_element(bytes.begin(), bytes.end());
  return most > limit ? most - limit : 0;
}

void Session::plan_stages_of_chain() {
  PlanRequest& request = plan_request_;
  request.stages = programs_of_run_->stages();
  if (!names_schedule_file(config_.pipeline.schedule) && config_.pipeline.replicas.empty())
    request.stages_per_device =
        stages_per_device(config_.pipeline.schedule, config_.pipeline.chunks);
  request.micro_batches = static_cast<int>(micro_batches_);
  const bool fixed = has_fixed_batch() || programs_of_run_->fixed_units() > 0;
  request.most_micro_batches = fixed ? micro_batches_ : config_.optimization.batch_size;
  request.schedule = planned_schedule(config_.pipeline.schedule);
  request.memory_limit_bytes =
      planner_limit_ * static_cast<std::size_t>(programs_of_run_->devices()) /
      static_cast<std::size_t>(std::max(request.stages, programs_of_run_->devices()));
  request.optimizer_bytes_per_parameter_byte = kept_slots(config_.optimization.optimizer);
  request.recompute = config_.pipeline.recompute;
  if (topology_ && !topology_->levels.empty()) {
    request.transfer = {topology_->levels.front().latency_seconds,
                        topology_->levels.front().bytes_per_second};
  }
  const std::vector<int>& replicas = config_.pipeline.replicas;
  if (!config_.pipeline.plan_path.empty()) {
    const PlanChoice choice = read_plan(config_.pipeline.plan_path, element_names(costs_));
    if (!choice.replicated() && choice.stages() == programs_of_run_->stages())
      request.loads = programs_of_run_->loads(request.micro_batches);
    PlanRequest as_planned = request;
    if (choice.schedule) as_planned.schedule = planned_schedule(*choice.schedule);
    plan_ = plan_of_choice(costs_, as_planned, choice);
    return;
  }
  if (config_.pipeline.plan_replicas) {
    request.stages = 0;
    request.devices = config_.pipeline.devices;
    if (topology_) request.topology = first_devices(*topology_, request.devices);
    plan_ = plan_devices(costs_, request);
    return;
  }
  request.loads = programs_of_run_->loads(request.micro_batches);
  std::vector<int> cuts = config_.pipeline.cuts;
  if (!config_.pipeline.split.empty()) {
    const std::vector<std::string> names = element_names(costs_);
    for (const std::string& name : config_.pipeline.split)
      cuts.push_back(find_element(names, name));
  } else if (cuts.empty()) {
    // A stage of r devices gets r times the work.
    request.topology.device_speed.assign(replicas.begin(), replicas.end());
    plan_ = plan_stages(costs_, request);
    request.topology.device_speed.clear();
    if (replicas.empty()) return move_cuts_for_schedule();
    cuts = plan_.cuts();
  }
  std::vector<DeviceRange> places;
  for (const int count : replicas)
    places.push_back({places.empty() ? 0 : places.back().first + places.back().count, count});
  // The closed forms know of replicas, what one program holds does not.
  if (!places.empty()) request.loads.clear();
  plan_ = plan_with_cuts(costs_, request, cuts, {}, places);
}

int Session::processors() const {
  if (estimated_) return 0;
  const std::vector<int>& gpus = config_.pipeline.gpu_ids;
  if (!gpus.empty()) return static_cast<int>(std::set<int>(gpus.begin(), gpus.end()).size());
  return std::max(1, cores_ / threads_);
}

bool Session::shares_cores() const {
  if (!config_.pipeline.gpu_ids.empty()) return !estimated_ && devices() > processors();
  return !estimated_ && devices() * threads_ > cores_;
}

double Session::predicted_step_seconds() const {
  const double simulated = asynchronous()
                               ? prediction_.unit_period * static_cast<double>(micro_batches_)
                               : prediction_.makespan;
  if (!shares_cores()) return simulated;
  double work = 0;
  for (const StagePlan& stage : plan_.stages) {
    const double backward = stage.backward_seconds + (stage.recompute ? stage.forward_seconds : 0);
    work += (stage.forward_seconds + backward + stage.step_seconds) *
            static_cast<double>(micro_batches_);
  }
  const double at_once =
      config_.pipeline.gpu_ids.empty() ? static_cast<double>(cores_) / threads_ : processors();
  return std::max(simulated, work / at_once);
}

}  // namespace pipetrain
