#include "train/planned_network.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/setting.h"
#include "base/units.h"

namespace pipetrain {

PlannedNetwork::PlannedNetwork(ProfiledNetwork network)
    : ProfiledNetwork(std::move(network)),
      planner_limit_(memory_limit_bytes()),
      cuts_(given_cuts()),
      cut_(cut_into_stages(*this, planner_limit_, cuts_)) {
  stay_within_memory();
}

/// The planner sums up tensor sizes; the real memory is known after the layout. If it exceeds the
/// limit, the planner gets a lower one.
void PlannedNetwork::stay_within_memory() {
  const PipelineConfig& pipeline = config().pipeline;
  const bool planned = pipeline.plan_path.empty() && pipeline.split.empty();
  for (int attempt = 0; planned && attempt < 8 && memory_excess() > 0; ++attempt) {
    const std::size_t excess = memory_excess() + planner_limit_ / 64;
    if (excess >= planner_limit_) break;
    planner_limit_ -= excess;
    cuts_.clear();
    try {
      cut_ = cut_into_stages(*this, planner_limit_, cuts_);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kResource) throw;
      break;  // the error of the last layout is more precise
    }
  }
  const std::size_t excess = memory_excess();
  const bool is_given = pipeline.memory_limit_bytes > 0;  // else it is that of the topology
  PT_CHECK(excess == 0, kResource,
           "a device would need {} more than {}, which is {}; try more stages, {} all, smaller "
           "micro-batches or a higher {}",
           bytes_text(excess),
           is_given ? setting("gpu-memory") : "the memory of a device of " + setting("topology"),
           bytes_text(memory_limit_bytes()), setting("recompute"),
           is_given ? "limit" : setting("gpu-memory"));
}

/// Bytes by which the fullest device is over the limit.
std::size_t PlannedNetwork::memory_excess() const {
  const std::size_t limit = memory_limit_bytes();
  if (limit == 0) return 0;
  const std::size_t most = most_device_bytes();
  return most > limit ? most - limit : 0;
}

std::size_t PlannedNetwork::most_device_bytes() const {
  std::vector<std::size_t> bytes(static_cast<std::size_t>(devices()), 0);
  for (int s = 0; s < stages(); ++s) {
    for (const int device : predicted_program().placement[static_cast<std::size_t>(s)])
      bytes[static_cast<std::size_t>(device)] += predicted_memory(s).total();
  }
  return *std::max_element(bytes.begin(), bytes.end());
}

bool PlannedNetwork::has_replicas() const {
  return std::any_of(cut_.program.placement.begin(), cut_.program.placement.end(),
                     [](const auto& devices) { return devices.size() > 1; });
}

void PlannedNetwork::take_measured(const KernelTimes& times, double update_seconds) {
  PT_CHECK(stages() == 1, kInternal, "the cut of {} stages may depend on their profile", stages());
  // The weights of which a graph for the validation would be built may have been released.
  if (take_times(times, update_seconds))
    cut_ = cut_into_stages(*this, planner_limit_, cuts_, cut_.memory);
}

bool PlannedNetwork::has_predicted_steps() const {
  return replica_updates().waits() && epoch_samples() >= config().optimization.batch_size;
}

bool PlannedNetwork::shares_cores() const {
  if (!config().pipeline.gpu_ids.empty()) return !estimated() && devices() > processors();
  return !estimated() && devices() * threads() > cores().cores;
}

double PlannedNetwork::predicted_step_seconds() const {
  double simulated = prediction().makespan + predicted_costs().cores.wake_seconds;
  if (processes()) simulated = prediction().period;
  if (asynchronous())
    simulated = prediction().micro_batch_period * static_cast<double>(micro_batches());
  if (!shares_cores()) return simulated;
  double work = 0;
  for (const StagePlan& stage : plan().stages) {
    const double backward = stage.backward_seconds + (stage.recompute ? stage.forward_seconds : 0);
    work += (stage.forward_seconds + backward + stage.step_seconds) *
            static_cast<double>(micro_batches());
  }
  const double at_once = config().pipeline.gpu_ids.empty()
                             ? static_cast<double>(cores().cores) / threads()
                             : processors();
  return std::max(simulated, work / at_once);
}

double PlannedNetwork::stretch_of_events() const {
  if (asynchronous() || !shares_cores() || prediction().makespan <= 0) return 1;
  return std::max(1.0, predicted_step_seconds() / prediction().makespan);
}

Events PlannedNetwork::predicted_events() const {
  Events events = prediction().events;
  const double stretch = stretch_of_events();
  for (std::vector<Event>& device : events) {
    for (Event& event : device) {
      event.start *= stretch;
      event.end *= stretch;
    }
  }
  return events;
}

std::vector<BucketEvent> PlannedNetwork::predicted_buckets() const {
  std::vector<BucketEvent> buckets = prediction().buckets;
  const double stretch = stretch_of_events();
  for (BucketEvent& bucket : buckets) {
    bucket.start *= stretch;
    bucket.end *= stretch;
  }
  return buckets;
}

double PlannedNetwork::predicted_bubble() const {
  const double step = predicted_step_seconds();
  if (step <= 0) return prediction().bubble;
  if (asynchronous()) {  // of the steady state, without the round's fill and drain
    double busy = 0;
    for (const StagePlan& stage : plan().stages)
      busy += stage.forward_seconds * (stage.recompute ? 2 : 1) + stage.backward_seconds +
              stage.step_seconds;
    return std::max(0.0, 1 - busy * static_cast<double>(micro_batches()) / (step * devices()));
  }
  return 1 - (1 - prediction().bubble) * prediction().makespan / step;
}

PlannedNetwork plan_network(const RunConfig& config, RunMode mode, ProcessGroup* processes,
                            const Network* same_data) {
  return PlannedNetwork(ProfiledNetwork(Network(config, mode, processes, same_data)));
}

}  // namespace pipetrain
