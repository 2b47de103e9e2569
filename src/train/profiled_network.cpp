#include "train/profiled_network.h"

#include <algorithm>
#include <utility>

#include "base/cores.h"
#include "base/error.h"
#include "device/plugin.h"
#include "partition/order_text.h"
#include "partition/plan_file.h"
#include "partition/topology_file.h"
#include "passes/batch_weight_gradients.h"
#include "pipeline/runtime/device_thread.h"
#include "pipeline/schedule/schedule_file.h"
#include "processes/process_group.h"
#include "profile/estimate.h"
#include "profile/measure.h"
#include "profile/measure_device.h"
#include "train/model_order.h"
#include "train/process_agreement.h"
#include "train/process_topology.h"

namespace pipetrain {
namespace {

/// The estimate that a run on one GPU begins with, where nothing depends on it: a data-centre GPU.
const DeviceSpeed kSomeGpu = {
    .name = "a GPU", .flops_per_second = 40e12, .bytes_per_second = 1.5e12};

std::optional<Topology> topology_of(const PipelineConfig& pipeline) {
  if (!pipeline.topology.empty()) return named_topology(pipeline.topology);
  if (!pipeline.gpu_ids.empty()) return {};  // measured are links between CPU cores
  return measured_topology();
}

/// Whether the devices are those of a topology, which are not present.
bool is_estimated(const PipelineConfig& pipeline, const std::optional<Topology>& topology) {
  return pipeline.estimate && topology.has_value();
}

}  // namespace

ProfiledNetwork::ProfiledNetwork(Network network)
    : Network(std::move(network)),
      topology_(topology_of(config().pipeline)),
      estimated_(is_estimated(config().pipeline, topology_)),
      memory_limit_bytes_(config().pipeline.memory_limit_bytes > 0 ||
                                  config().pipeline.topology.empty()
                              ? config().pipeline.memory_limit_bytes
                              : topology_->memory_bytes),
      chain_(linearise(graph())),
      profile_(make_profile()) {
  // The devices that are planned for are those of the topology.
  if (estimated_) first_devices(*topology_, schedule().devices());
  if (processes() && config().pipeline.topology.empty())
    topology_ =
        topology_of_processes(*processes(), schedule().devices(), topology_, config().pipeline);
  ProcessGroup* all = all_processes();
  if (all) share_profile(*all, graph().graph.nodes.size(), topology_, profile_);
  costs_ = chain_costs(graph(), chain_, profile_);
  if (leads()) choose_order();
  if (!all) return;
  // All use the order that process 0 has found.
  std::vector<int> chosen = share_order(*all, order_);
  if (!leads()) take_order(std::move(chosen));
}

ProfileOptions ProfiledNetwork::profile_options() const {
  const PipelineConfig& pipeline = config().pipeline;
  ProfileOptions options;
  options.use_cache = pipeline.profile_cache;
  options.optimizer = config().optimization.optimizer;
  options.busy_threads = std::min(schedule().devices(), std::max(1, available_cores() / threads()));
  options.wakes = pipeline.gpu_ids.empty() && !processes();
  options.brief = pipeline.brief_profile && schedule().devices() == 1 && schedule().stages() == 1 &&
                  memory_limit_bytes_ == 0;
  return options;
}

void ProfiledNetwork::forget_measurements() const {
  const PipelineConfig& pipeline = config().pipeline;
  // The cut decides what an asynchronous run computes: a resumed run must find the same profile.
  if (is_asynchronous(schedule().rule())) return;
  if (profile_.cached_nodes > 0 && pipeline.gpu_ids.empty() && pipeline.profile_path.empty())
    forget_profile(graph(), pipeline.backend, threads(), profile_options());
}

void ProfiledNetwork::forget_measured_links() const {
  if (asynchronous()) return;  // as with kernels
  if (processes() && config().pipeline.topology.empty())
    forget_links(*processes(), schedule().devices());
}

/// All use the profile of process 0: it stays empty elsewhere if it would have to be measured.
Profile ProfiledNetwork::make_profile() const {
  const PipelineConfig& pipeline = config().pipeline;
  const int slots = state_slots(config().optimization.optimizer);
  if (!pipeline.profile_path.empty()) return read_profile(pipeline.profile_path, graph());
  if (estimated_ && topology_->flops_per_second > 0 && topology_->memory_bytes_per_second > 0) {
    return estimate_profile(graph(),
                            {.name = topology_->name,
                             .flops_per_second = topology_->flops_per_second,
                             .bytes_per_second = topology_->memory_bytes_per_second},
                            slots);
  }
  if (!leads()) return {};
  ProfileOptions options = profile_options();
  if (pipeline.gpu_ids.empty())
    return measure_profile(graph(), pipeline.backend, threads(), options);
  Device& gpu = cuda_plugin().open(pipeline.gpu_ids.front());
  gpu.allow_tensor_floats(config().model.tensor_floats);
  options.tensor_floats = config().model.tensor_floats;
  if (!options.brief) return measure_device_profile(graph(), gpu, options);
  return known_device_profile(graph(), gpu, options)
      .value_or(estimate_profile(graph(), kSomeGpu, slots));
}

/// Reorders the nodes as in the given plan, or for better cuts.
void ProfiledNetwork::choose_order() {
  const PipelineConfig& pipeline = config().pipeline;
  if (!pipeline.plan_path.empty()) {
    const std::string order = read_plan_outline(pipeline.plan_path).order;
    if (order.empty()) return;
    return with_context(
        [&] { return "following " + printable(pipeline.plan_path); },
        [&] { take_order(parse_order(order, static_cast<int>(chain_.order.size()))); });
  }
  if (!pipeline.order.empty() && !is_cut_elsewhere()) return take_order(pipeline.order);
  if (!pipeline.split.empty() || !given_cuts().empty() || mode() != RunMode::kTrain) return;
  PlanRequest request;
  request.stages = schedule().stages();
  if (!can_reorder(costs_, request.stages)) return;
  request.micro_batches = static_cast<int>(micro_batches());
  set_memory(request, memory_limit_bytes_);
  request.loads = schedule().loads(request.micro_batches);
  request.recompute = pipeline.recompute;
  set_links(request);
  take_order(better_order(graph(), profile_, chain_, costs_, request));
}

/// Whether the order and the cuts that are given are of a chain of other nodes, as those of a
/// checkpoint in another precision may be.
bool ProfiledNetwork::is_cut_elsewhere() const {
  const PipelineConfig& pipeline = config().pipeline;
  return !pipeline.order.empty() && !pipeline.cuts.empty() &&
         pipeline.order.size() != chain_.order.size();
}

std::vector<int> ProfiledNetwork::given_cuts() const {
  return is_cut_elsewhere() ? std::vector<int>() : config().pipeline.cuts;
}

void ProfiledNetwork::set_memory(PlanRequest& request, std::size_t device_limit) const {
  const int devices = schedule().devices();
  request.memory_limit_bytes = device_limit * static_cast<std::size_t>(devices) /
                               static_cast<std::size_t>(std::max(request.stages, devices));
  const OptimizerSettings& optimizer = config().optimization.optimizer;
  request.optimizer_bytes_per_parameter_byte = kept_slots(optimizer);
  if (config().pipeline.shard_optimizer)
    request.shared_bytes_per_parameter_byte = state_slots(optimizer);
}

/// Stages lie on the devices in order where each device has one; else any two may be neighbours.
void ProfiledNetwork::set_links(PlanRequest& request) const {
  if (!topology_ || topology_->levels.empty()) return;
  const std::vector<TopologyLevel>& levels = topology_->levels;
  const bool in_order = config().pipeline.replicas.empty() &&
                        schedule().stages() == schedule().devices() &&
                        schedule().devices() <= topology_->devices();
  if (levels.size() > 1 && in_order) {
    request.topology.name = topology_->name;
    request.topology.levels = first_devices(*topology_, schedule().devices()).levels;
  }
  const TopologyLevel& link = processes() ? levels.back() : levels.front();
  request.transfer = {link.latency_seconds, link.bytes_per_second,
                      link.all_reduce_bytes_per_second};
}

std::vector<double> ProfiledNetwork::device_speeds() const {
  const int devices = schedule().devices();
  if (config().pipeline.topology.empty() || devices > topology_->devices()) return {};
  std::vector<double> speeds = first_devices(*topology_, devices).device_speed;
  speeds.resize(std::min(speeds.size(), static_cast<std::size_t>(devices)));
  if (!speeds.empty() && !estimated_ && config().pipeline.profile_path.empty()) {
    const double first = speeds.front();
    for (double& speed : speeds) speed /= first;
  }
  if (std::ranges::all_of(speeds, [](double speed) { return speed == 1; })) return {};
  return speeds;
}

bool ProfiledNetwork::plans_speeds() const {
  const PipelineConfig& pipeline = config().pipeline;
  return !names_schedule_file(pipeline.schedule) &&
         (!pipeline.replicas.empty() || pipeline.plan_replicas ||
          schedule().stages() == schedule().devices());
}

BucketFloats ProfiledNetwork::bucket_floats() const {
  if (!topology_ || topology_->levels.empty()) return {};
  const TopologyLevel& slowest = topology_->levels.back();
  return buckets_for(slowest.latency_seconds, slowest.all_reduce_rate());
}

double ProfiledNetwork::all_gather_seconds() const {
  if (!processes() || !topology_ || topology_->levels.empty()) return 0;
  return processes()->messages_to_gather() * topology_->levels.back().latency_seconds;
}

double ProfiledNetwork::all_gather_on_host_seconds() const {
  const double all = all_gather_seconds();
  if (all == 0 || processes()->messages_to_gather() > 1) return all;  // through process 0
  return topology_->levels.front().latency_seconds;
}

void ProfiledNetwork::take_order(std::vector<int> order) {
  if (order.empty() || order == order_of(graph(), chain_)) return;
  chain_ = chain_in_order(graph(), order);
  costs_ = chain_costs(graph(), chain_, profile_);
  order_ = std::move(order);
}

bool ProfiledNetwork::take_times(const KernelTimes& times, double update_seconds) {
  if (times.micro_batches == 0 || times.seconds.size() != profile_.node_seconds.size())
    return false;
  std::size_t bytes = 0;
  for (const Parameter& parameter : graph().parameters) {
    if (parameter.gradient) bytes += graph().graph[parameter.value].type.bytes();
  }
  for (std::size_t n = 0; n < times.seconds.size(); ++n) {
    const double runs = runs_per_micro_batch(graph(), graph().graph.nodes[n]);
    profile_.node_seconds[n] =
        times.seconds[n] / (runs > 0 ? runs * static_cast<double>(times.micro_batches) : 1);
  }
  // Adding to the accumulators is in the kernels' seconds.
  profile_.accumulate_seconds_per_byte = 0;
  profile_.update_seconds_per_byte = bytes ? update_seconds / static_cast<double>(bytes) : 0;
  profile_.is_estimate = false;
  costs_ = chain_costs(graph(), chain_, profile_);
  return true;
}

int ProfiledNetwork::processors() const {
  if (estimated_) return 0;
  const std::vector<int>& gpus = config().pipeline.gpu_ids;
  if (!gpus.empty()) return different_gpus(gpus, processes());
  return std::max(1, cores().cores / threads());
}

std::optional<CoreSharing> ProfiledNetwork::waking() const {
  if (estimated_ || processes() || !config().pipeline.gpu_ids.empty()) return {};
  CoreSharing out;
  out.wake_seconds = profile_.wake_seconds;
  out.switch_seconds = profile_.switch_seconds;
  out.notify_seconds = profile_.notify_seconds;
  out.turn_seconds = kTurnSeconds;
  return out;
}

std::vector<CoreGroup> ProfiledNetwork::cores_of_processes() const {
  if (estimated_ || !processes() || !config().pipeline.gpu_ids.empty()) return {};
  std::vector<CoreGroup> groups = cores().groups;
  for (CoreGroup& group : groups) group.cores = std::max(1, group.cores / threads());
  return groups;
}

}  // namespace pipetrain
