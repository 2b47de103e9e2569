#include "pipeline/simulate/simulate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "base/error.h"
#include "pipeline/program/replica_rows.h"
#include "pipeline/simulate/timed_run.h"

namespace pipetrain {
namespace {

void check_costs(const Program& program, const Costs& costs) {
  const auto require = [](bool fits, const char* what, std::size_t given, int wanted) {
    PT_CHECK(fits, kInternal, "costs are given for {} {}, but the schedule has {}", given, what,
             wanted);
  };
  const auto is = [](std::size_t given, int wanted) {
    return given == static_cast<std::size_t>(wanted);
  };
  require(is(costs.stage.size(), program.stages), "stages", costs.stage.size(), program.stages);
  require(
      costs.micro_batch_scale.empty() || is(costs.micro_batch_scale.size(), program.micro_batches),
      "units", costs.micro_batch_scale.size(), program.micro_batches);
  for (const std::size_t given : {costs.device_scale.size(), costs.process.size()})
    require(given == 0 || is(given, program.devices), "devices", given, program.devices);
  const int edges = static_cast<int>(program.edges.size());
  require(costs.edge_link.empty() || is(costs.edge_link.size(), edges), "edges",
          costs.edge_link.size(), edges);
}

/// Busy and idle seconds of each device, and when the micro-batches start.
class Shares : public TimedRun::Observer {
 public:
  explicit Shares(const Program& program) : program_(program), devices_(program.device.size()) {
    starts_.assign(static_cast<std::size_t>(program.micro_batches), 0);
  }

  void ran(std::size_t device, std::size_t index, double start, double end) override {
    const Instruction& instruction = program_.device[device][index];
    const Kind kind = instruction.kind;
    if (kind == Kind::kForward && instruction.stage == 0) {
      starts_[static_cast<std::size_t>(instruction.micro_batch)] = start;
    }
    if (is_transfer(kind)) return;
    Device& d = devices_[device];
    const double gap = start - d.last_end;
    (d.filled ? d.pending : d.idle.warm_up) += gap;
    const bool alone = program_.rule == UpdateRule::kNone;
    if (kind == Kind::kBackward || kind == Kind::kBackwardInput || alone) d.filled = true;
    if (kind == Kind::kForward) {
      d.idle.steady += d.pending;
      d.pending = 0;
    }
    d.busy += end - start;
    d.last_end = end;
  }

  void fill(Simulation& result) const {
    double idle = 0;
    for (const Device& d : devices_) {
      result.busy.push_back(d.busy);
      result.idle.push_back(result.makespan - d.busy);
      idle += result.idle.back();
      IdleSeconds split = d.idle;
      split.drain = d.pending + result.makespan - d.last_end;
      result.idle_split.push_back(split);
    }
    const double available = result.makespan * static_cast<double>(program_.devices);
    result.bubble = available > 0 ? idle / available : 0;
    result.micro_batch_period = micro_batch_period();
  }

 private:
  /// Between two places in the second half of the round where all replicas have had their turns:
  /// those of a stage start together.
  double micro_batch_period() const {
    if (starts_.size() < 4) return 0;
    std::vector<int> replicas;
    for (const auto& devices : program_.placement)
      replicas.push_back(static_cast<int>(devices.size()));
    const auto turns = static_cast<std::size_t>(turns_of_replicas(replicas));
    const std::size_t last = (starts_.size() - 1) / turns * turns;
    const std::size_t first = last - last / 2 / turns * turns;
    if (first >= last || first < micro_batches_ahead()) return 0;
    return (starts_[last] - starts_[first]) / static_cast<double>(last - first);
  }

  /// Micro-batches that fill the pipeline: those that the first stage starts before it runs one
  /// backward. 0 if none is run backward.
  std::size_t micro_batches_ahead() const {
    std::size_t most = 0;
    for (const int device : program_.placement[0]) {
      std::size_t forwards = 0;
      for (const Instruction& instruction : program_.device[static_cast<std::size_t>(device)]) {
        const Kind kind = instruction.kind;
        if (instruction.stage != 0 || !is_compute(kind)) continue;
        if (kind == Kind::kForward) ++forwards;
        if (kind != Kind::kBackward && kind != Kind::kBackwardInput) continue;
        most = std::max(most, forwards);
        break;
      }
    }
    return most * program_.placement[0].size();
  }

  struct Device {
    double busy = 0;
    double last_end = 0;
    bool filled = false;  // its first backward has been
    double pending = 0;   // idle since the last forward
    IdleSeconds idle;
  };
  const Program& program_;
  std::vector<Device> devices_;
  std::vector<double> starts_;  // [micro-batches], on the first stage
};

/// Writes down every event.
class Recorder : public TimedRun::Observer {
 public:
  Recorder(const Program& program, TimedRun::Observer* next)
      : program_(program), next_(next), sent_(program.transfers.size(), 0) {
    for (std::size_t d = 0; d < program.device.size(); ++d) {
      events_.emplace_back(program.device[d].size());
      for (std::size_t i = 0; i < events_[d].size(); ++i) {
        events_[d][i] = {static_cast<int>(d), static_cast<int>(i), 0, 0};
      }
    }
  }

  void ran(std::size_t device, std::size_t index, double start, double end) override {
    events_[device][index].start = start;
    events_[device][index].end = end;
    const Instruction& instruction = program_.device[device][index];
    if (instruction.kind == Kind::kSend) {
      sent_[static_cast<std::size_t>(instruction.transfer)] = start;
    }
    if (next_ != nullptr) next_->ran(device, index, start, end);
  }

  void summed(const BucketEvent& bucket) override { buckets_.push_back(bucket); }
  std::vector<BucketEvent> take_buckets() { return std::move(buckets_); }

  /// A buffered receive lasts from the departure of its data to its arrival.
  std::vector<std::vector<Event>> events(const TimedRun& run) {
    for (std::size_t d = 0; d < program_.device.size(); ++d) {
      for (std::size_t i = 0; i < events_[d].size(); ++i) {
        const Instruction& instruction = program_.device[d][i];
        if (instruction.kind != Kind::kReceive) continue;
        const auto transfer = static_cast<std::size_t>(instruction.transfer);
        events_[d][i].start = sent_[transfer];
        events_[d][i].end = run.arrival(program_.transfers[transfer]);
      }
    }
    return std::move(events_);
  }

 private:
  const Program& program_;
  TimedRun::Observer* next_;
  std::vector<std::vector<Event>> events_;
  std::vector<BucketEvent> buckets_;
  std::vector<double> sent_;  // [transfers]
};

/// Simulates further rounds until the period is constant.
double chained_period(TimedRun& run, int rounds) {
  std::vector<double> ends = {run.end()};
  run.exchange_results();
  std::vector<double> before = run.lane_ends();
  while (static_cast<int>(ends.size()) < rounds) {
    run.run();
    ends.push_back(run.end());
    run.exchange_results();
    std::vector<double> after = run.lane_ends();
    // A round depends only on the start times of its lanes. Once all are shifted by the same time,
    // so are all later rounds.
    const double shift = after.front() - before.front();
    const double tolerance = 1e-12 * ends.back();
    bool same = true;
    for (std::size_t lane = 0; lane < after.size() && same; ++lane) {
      same = std::abs(after[lane] - before[lane] - shift) <= tolerance;
    }
    if (same) return ends.back() - ends[ends.size() - 2];
    before = std::move(after);
  }
  const std::size_t middle = ends.size() / 2;
  return (ends.back() - ends[middle]) / static_cast<double>(ends.size() - 1 - middle);
}

/// Largest number of micro-batches that hold activations at once, in list order.
std::vector<int> peak_live(const Program& program) {
  const ReplicaRows rows(program);
  std::vector<int> live(static_cast<std::size_t>(rows.count()), 0);
  std::vector<int> peak(static_cast<std::size_t>(program.stages), 0);
  for (const auto& list : program.device) {
    for (const Instruction& instruction : list) {
      if (!is_compute(instruction.kind)) continue;
      const auto stage = static_cast<std::size_t>(instruction.stage);
      int& held =
          live[static_cast<std::size_t>(rows.running(instruction.stage, instruction.micro_batch))];
      const bool keeps =
          program.rule != UpdateRule::kNone && !static_cast<bool>(program.recompute[stage]);
      const bool opens = instruction.kind == Kind::kForward || instruction.kind == Kind::kRecompute;
      if (opens) peak[stage] = std::max(peak[stage], ++held);
      if (instruction.kind == Kind::kForward && !keeps) --held;
      if (adds_gradient(instruction.kind)) --held;
    }
  }
  return peak;
}

}  // namespace

Costs uniform_costs(const Program& program, const StageSeconds& seconds, const LinkCost& link) {
  Costs costs;
  costs.stage.assign(static_cast<std::size_t>(program.stages), seconds);
  costs.link = link;
  return costs;
}

double seconds_of(const StageSeconds& stage, Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return stage.forward;
    case Kind::kBackward:
      return stage.backward;
    case Kind::kBackwardInput:
      return stage.backward_input;
    case Kind::kBackwardWeight:
      return stage.backward_weight;
    case Kind::kRecompute:
      return stage.recompute;
    case Kind::kReduce:
      return stage.reduce;
    case Kind::kUpdate:
      return stage.update;
    default:
      return 0;
  }
}

double all_reduce_seconds(std::int64_t bytes, int replicas, const LinkCost& link) {
  if (replicas <= 1) return 0;
  const double share = 2.0 * (replicas - 1) / replicas;
  return share * static_cast<double>(bytes) / link.bytes_per_second +
         2.0 * (replicas - 1) * link.latency_seconds;
}

double turns_of_sums(std::span<const CoreGroup> groups, std::span<const int> devices,
                     std::span<const int> process) {
  const std::set<int> processes(process.begin(), process.end());
  for (const CoreGroup& group : groups) {
    const int cores = std::max(1, group.cores);
    const auto is_here = [&](int device) { return std::ranges::count(group.devices, device) > 0; };
    if (std::ssize(group.devices) < cores || !std::ranges::all_of(devices, is_here)) continue;
    const double turns = std::ceil(static_cast<double>(processes.size()) / cores);
    return turns / std::ceil(2.0 / cores);
  }
  return 0;
}

void share_cores(const Program& program, const CoreSharing& waking,
                 std::span<const CoreGroup> groups, Costs& costs) {
  check_costs(program, costs);
  for (const CoreGroup& group : groups) {
    for (const int device : group.devices)
      PT_CHECK(device >= 0 && device < std::ssize(program.device), kInternal,
               "cores are given for device {}, but the schedule has {} devices", device,
               program.device.size());
  }
  std::vector<double> work(program.device.size(), 0);
  for (std::size_t d = 0; d < work.size(); ++d) {
    for (const Instruction& instruction : program.device[d]) {
      if (is_compute(instruction.kind) || instruction.kind == Kind::kUpdate)
        work[d] +=
            seconds_of(costs.stage[static_cast<std::size_t>(instruction.stage)], instruction.kind);
    }
  }
  costs.cores = waking;
  costs.cores.core.assign(work.size(), 0);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::size_t first = costs.cores.group.size();
    std::vector<double> load(static_cast<std::size_t>(std::max(1, groups[g].cores)), 0);
    costs.cores.group.insert(costs.cores.group.end(), load.size(), static_cast<int>(g));
    // The longest first, each to the core with the least.
    std::vector<int> order = groups[g].devices;
    const auto work_of = [&](int d) { return work[static_cast<std::size_t>(d)]; };
    std::ranges::stable_sort(order, std::greater<>(), work_of);
    for (const int d : order) {
      const auto least = std::ranges::min_element(load);
      *least += work_of(d);
      costs.cores.core[static_cast<std::size_t>(d)] =
          static_cast<int>(first + static_cast<std::size_t>(least - load.begin()));
    }
    // Where there are enough, each has a core of its own.
    if (order.size() > load.size()) costs.cores.moves = true;
  }
}

void share_cores(const Program& program, const CoreSharing& waking, int cores, Costs& costs) {
  CoreGroup all{cores, std::vector<int>(program.device.size())};
  std::iota(all.devices.begin(), all.devices.end(), 0);
  share_cores(program, waking, std::span(&all, 1), costs);
  costs.link.latency_seconds = 0;
  for (LinkCost& link : costs.edge_link) link.latency_seconds = 0;
}

std::vector<std::vector<Event>> time_round(const Program& program, const Costs& costs) {
  check_costs(program, costs);
  TimedRun run(program, costs);
  Recorder recorder(program, nullptr);
  run.run(&recorder);
  return recorder.events(run);
}

Simulation simulate(const Program& program, const Costs& costs, const SimulateOptions& options) {
  check_costs(program, costs);
  TimedRun run(program, costs);
  Simulation result;
  Shares shares(program);
  if (options.keep_events) {
    Recorder recorder(program, &shares);
    run.run(&recorder);
    result.events = recorder.events(run);
    result.buckets = recorder.take_buckets();
  } else {
    run.run(&shares);
  }
  result.makespan = run.end();
  shares.fill(result);
  result.peak_live = peak_live(program);
  if (options.rounds > 1) result.period = chained_period(run, options.rounds);
  return result;
}

JitterResult simulate_jitter(const Program& program, const Costs& costs, const Jitter& jitter) {
  check_costs(program, costs);
  PT_CHECK(jitter.samples >= 1 && jitter.compute >= 0 && jitter.transfer >= 0, kInternal,
           "a jitter needs a sample and deviations of 0 or more, got {} samples, {} and {}",
           jitter.samples, jitter.compute, jitter.transfer);
  TimedRun run(program, costs);
  JitterResult result;
  for (int sample = 0; sample < jitter.samples; ++sample) {
    run.restart();
    run.set_jitter(jitter, static_cast<std::uint64_t>(sample));
    run.run();
    result.makespan.push_back(run.end());
  }
  std::sort(result.makespan.begin(), result.makespan.end());
  const auto percentile = [&](int percent) {
    const std::size_t rank =
        (result.makespan.size() * static_cast<std::size_t>(percent) + 99) / 100;
    return result.makespan[rank - 1];
  };
  result.mean = std::accumulate(result.makespan.begin(), result.makespan.end(), 0.0) /
                static_cast<double>(jitter.samples);
  result.p50 = percentile(50);
  result.p95 = percentile(95);
  return result;
}

}  // namespace pipetrain
