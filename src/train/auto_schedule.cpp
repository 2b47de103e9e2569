#include "train/auto_schedule.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "partition/topology_file.h"
#include "passes/linearise.h"
#include "pipeline/schedule/generate.h"
#include "train/profiled_network.h"

namespace pipetrain {
namespace {

std::vector<int> micro_batch_counts(const RunConfig& config, const SearchScope& scope,
                                    std::int64_t own, bool fixed_batch) {
  // A model with a fixed batch has one micro-batch size, and so does a given profile.
  if (!scope.micro_batches || fixed_batch || !config.pipeline.profile_path.empty())
    return {static_cast<int>(own)};
  std::set<int> counts = {static_cast<int>(own)};
  const std::int64_t batch = config.optimization.batch_size;
  for (std::int64_t count = 1; count < batch; count *= 2) {
    // As many as there are of the same size, where the batch cannot be divided.
    const std::int64_t samples = (batch + count - 1) / count;
    counts.insert(static_cast<int>((batch + samples - 1) / samples));
  }
  counts.insert(static_cast<int>(batch));
  return {counts.begin(), counts.end()};
}

/// Chain costs by number of micro-batches, measured or estimated at each size: time does not scale
/// with the size, since weights are read and kernels launched for each micro-batch.
class CostsBySize {
 public:
  CostsBySize(const RunConfig& config, const Network* same_data) : config_(config) {
    config_.pipeline.schedule = "1f1b";
    config_.pipeline.replicas.clear();
    config_.pipeline.plan_replicas = false;
    own_ = std::make_unique<ProfiledNetwork>(
        Network(config_, RunMode::kTrain, /*processes=*/nullptr, same_data));
    // All cuts refer to the same order.
    config_.pipeline.order = order_of(own_->graph(), own_->chain());
    costs_[own()] = std::make_unique<ChainCosts>(own_->costs());
  }

  int own() const { return static_cast<int>(own_->micro_batches()); }
  bool has_fixed_batch() const { return own_->model().has_fixed_batch(); }
  const std::vector<int>& order() const { return config_.pipeline.order; }
  int processors() const { return own_->processors(); }
  std::optional<CoreSharing> waking() const { return own_->waking(); }
  bool estimated() const { return own_->estimated(); }
  std::vector<double> device_speeds() const { return own_->device_speeds(); }
  /// Whether a step may be skipped.
  bool skips() const { return own_->loss_scaling().skips; }
  const ChainCosts& at(int micro_batches) {
    std::unique_ptr<ChainCosts>& costs = costs_[micro_batches];
    if (costs) return *costs;
    RunConfig config = config_;
    config.pipeline.micro_batches = micro_batches;
    config.pipeline.micro_batch_size = 0;
    Network sized(config, RunMode::kTrain, /*processes=*/nullptr, own_.get());
    PT_CHECK(has_same_groups(sized.graph(), own_->graph()), kResource,
             "a micro-batch of {} has other nodes than one of {}", sized.micro_batch(),
             own_->micro_batch());
    costs = std::make_unique<ChainCosts>(ProfiledNetwork(std::move(sized)).costs());
    return *costs;
  }
  /// Whether the graph can be built at that size, with the nodes that the order is of:
  /// micro-batches may be too large, and for one sample nothing needs to be repeated.
  bool exists(int micro_batches) {
    try {
      at(micro_batches);
      return true;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kModel && error.kind() != ErrorKind::kResource) throw;
      return false;
    }
  }

 private:
  RunConfig config_;
  std::unique_ptr<ProfiledNetwork> own_;  // at the default size of the run
  std::map<int, std::unique_ptr<ChainCosts>> costs_;
};

}  // namespace

FoundSchedules find_schedules(const RunConfig& config, const SearchScope& scope) {
  const double start = steady_seconds();
  CostsBySize costs(config, scope.same_data);
  SearchRequest request;
  request.batch = config.optimization.batch_size;
  request.devices = config.pipeline.devices;
  request.processors = scope.processors > 0 ? scope.processors : costs.processors();
  request.waking = costs.waking();
  request.micro_batches = micro_batch_counts(config, scope, costs.own(), costs.has_fixed_batch());
  if (scope.profile_seconds > 0) {
    // Sizes near the run's own first.
    const double own = std::log2(static_cast<double>(costs.own()));
    std::vector<int> order = std::exchange(request.micro_batches, {});
    std::stable_sort(order.begin(), order.end(), [own](int a, int b) {
      return std::abs(std::log2(a) - own) < std::abs(std::log2(b) - own);
    });
    for (const int count : order) {
      const double taken = steady_seconds() - start;
      if (!request.micro_batches.empty() && taken > scope.profile_seconds) break;
      if (costs.exists(count)) request.micro_batches.push_back(count);
    }
    std::sort(request.micro_batches.begin(), request.micro_batches.end());
  }
  std::erase_if(request.micro_batches, [&](int count) { return !costs.exists(count); });
  request.costs = [&](int micro_batches) -> const ChainCosts& { return costs.at(micro_batches); };
  for (const ScheduleDescription& schedule : schedules()) {
    if (schedule.rule == UpdateRule::kNone) continue;
    const bool whole = sends_whole_mini_batches(schedule.rule);
    if (is_asynchronous(schedule.rule) && (!scope.asynchronous || whole || costs.skips())) continue;
    request.schedules.push_back(schedule.name);
  }
  request.gradient_sync = config.optimization.clip_norm > 0 || costs.skips();
  request.sends_tied_gradients = costs.estimated() || scope.several_processes;
  request.fewer_devices = scope.fewer_devices;
  request.recompute = config.pipeline.recompute;
  request.warm_up_tolerance = config.pipeline.warm_up_tolerance;
  request.chunks = config.pipeline.chunks;
  request.memory_units = config.pipeline.memory_units;
  request.memory_limit_bytes = config.pipeline.memory_limit_bytes;
  request.optimizer_bytes_per_parameter_byte = kept_slots(config.optimization.optimizer);
  if (config.pipeline.shard_optimizer)
    request.shared_bytes_per_parameter_byte = state_slots(config.optimization.optimizer);
  if (!config.pipeline.topology.empty()) {
    request.topology = first_devices(named_topology(config.pipeline.topology), request.devices);
    request.topology.device_speed = costs.device_speeds();
    if (request.memory_limit_bytes == 0) request.memory_limit_bytes = request.topology.memory_bytes;
  } else if (scope.topology) {
    request.topology = first_devices(*scope.topology, request.devices);
  } else if (const std::optional<Topology> measured = measured_topology();
             measured && !measured->levels.empty() && config.pipeline.gpu_ids.empty()) {
    // Stages beyond the cores of this machine use the same links as those on cores.
    request.topology = *measured;
    request.topology.levels.resize(1);
    request.topology.levels.front().count = request.devices;
    request.topology.device_speed.clear();
  }
  FoundSchedules found;
  found.candidates = search(request);
  found.chosen = choose(found.candidates);
  found.order = costs.order();
  found.seconds = steady_seconds() - start;
  return found;
}

void take_over(const Candidate& candidate, RunConfig& config) {
  PipelineConfig& pipeline = config.pipeline;
  pipeline.schedule = candidate.schedule;
  pipeline.devices = candidate.places * candidate.replicas;
  pipeline.chunks = candidate.chunks > 1 ? candidate.chunks : pipeline.chunks;
  pipeline.replicas.clear();
  if (candidate.replicas > 1)
    pipeline.replicas.assign(static_cast<std::size_t>(candidate.places), candidate.replicas);
  // A given size may be another than that of as many micro-batches of equal size.
  if (pipeline.micro_batch_size == 0) pipeline.micro_batches = candidate.micro_batches;
  pipeline.cuts = candidate.plan.cuts();
  // A shorter warm-up may be what makes it fit.
  if (candidate.recompute)
    pipeline.recompute = Recompute::kAll;
  else if (describe_schedule(candidate.schedule).balances_warm_up)
    pipeline.recompute = Recompute::kNone;
}

}  // namespace pipetrain
