#include "pipeline/simulate/timed_run.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/random.h"

namespace pipetrain {

TimedRun::TimedRun(const Program& program, const Costs& costs)
    : program_(program),
      costs_(costs),
      rendezvous_(costs.transfers == TransferMode::kRendezvous),
      inputs_(2 * index(program.stages)),
      outputs_(2 * index(program.stages)),
      free_(program.device.size(), 0),
      adds_(program.device.size(), {0, 0}),
      ready_((2 * index(program.stages) + program.edges.size()) * index(program.micro_batches)) {
  for (std::size_t e = 0; e < program.edges.size(); ++e) {
    const Edge& edge = program.edges[e];
    const std::size_t direction = edge.gradient ? 1 : 0;
    inputs_[2 * index(edge.to_stage) + direction].push_back(e);
    outputs_[2 * index(edge.from_stage) + direction].push_back(e);
  }
  if (program.lowered) make_channels();
  for (const int core : costs.cores.core) {
    cores_.resize(std::max(cores_.size(), index(core) + 1));
    core_of_.push_back(index(core));
  }
  placed_.assign(core_of_.size(), true);
}

void TimedRun::make_channels() {
  std::map<std::tuple<int, int, bool>, int> numbers;  // from device, to device, gradient
  for (const Edge& edge : program_.edges) {
    first_pair_.push_back(channel_of_.size());
    for (const int from : program_.placement[index(edge.from_stage)]) {
      for (const int to : program_.placement[index(edge.to_stage)]) {
        const int next = static_cast<int>(numbers.size());
        channel_of_.push_back(numbers.try_emplace({from, to, edge.gradient}, next).first->second);
      }
    }
  }
  channels_.resize(numbers.size());
}

TimedRun::Channel& TimedRun::channel(const Transfer& transfer) {
  const int from = program_.replica_of(transfer.from_stage, transfer.micro_batch);
  const int to = program_.replica_of(transfer.to_stage, transfer.micro_batch);
  const std::size_t pair = index(from) * index(program_.replicas(transfer.to_stage)) + index(to);
  return channels_[index(channel_of_[first_pair_[index(transfer.edge)] + pair])];
}

double TimedRun::stage_seconds(const Instruction& instruction) const {
  return seconds_of(costs_.stage[index(instruction.stage)], instruction.kind);
}

double TimedRun::stretch(std::size_t device, double sigma) const {
  if (sigma == 0) return 1;
  const PhiloxKey sample = philox_key(sample_);
  const PhiloxBlock bits =
      philox(philox_key(jitter_.seed),
             {{static_cast<std::uint32_t>(next_[device]), static_cast<std::uint32_t>(device),
               sample.word[0], sample.word[1]}});
  const double normal = normal_pair(bits.word[0], bits.word[1]).first;
  return std::exp(sigma * normal - sigma * sigma / 2);
}

void TimedRun::set_jitter(const Jitter& jitter, std::uint64_t sample) {
  jitter_ = jitter;
  sample_ = sample;
}

void TimedRun::restart() {
  free_.assign(free_.size(), 0);
  adds_.assign(adds_.size(), {0, 0});
  channels_.assign(channels_.size(), {});
  cores_.assign(cores_.size(), {});
  core_of_.assign(costs_.cores.core.begin(), costs_.cores.core.end());
}

void TimedRun::run(Observer* observer) {
  observer_ = observer;
  const std::size_t devices = program_.device.size();
  next_.assign(devices, 0);
  await_.assign(devices, kNothing);
  met_.assign(index(program_.stages) + 1, 0);
  std::fill(ready_.begin(), ready_.end(), -1);
  asleep_.assign(devices, true);
  asking_.clear();
  for (std::size_t d = devices; d-- > 0;) wake(d);
  do {
    while (!awake_.empty()) {
      const std::size_t device = awake_.back();
      awake_.pop_back();
      while (next_[device] < program_.device[device].size() && step(device)) {
      }
      asleep_[device] = true;
    }
  } while (run_on_core());
  std::size_t left = 0, all = 0;
  for (std::size_t d = 0; d < devices; ++d) {
    left += program_.device[d].size() - next_[d];
    all += program_.device[d].size();
  }
  PT_CHECK(left == 0, kInternal,
           "the schedule '{}' can never finish: {} of {} steps wait for each other",
           printable(program_.schedule), left, all);
}

void TimedRun::exchange_results() {
  if (costs_.process.empty()) return;
  std::vector<double> ends(index(std::ranges::max(costs_.process)) + 1, 0);
  const auto process_of = [&](std::size_t device) { return index(costs_.process[device]); };
  for (std::size_t d = 0; d < free_.size(); ++d)
    ends[process_of(d)] = std::max(ends[process_of(d)], free_[d]);
  const auto delay = [&](std::size_t from, std::size_t to) {
    if (from == to) return 0.0;
    const bool on_host = !costs_.host.empty() && costs_.host[from] == costs_.host[to];
    return on_host ? costs_.results_on_host_seconds : costs_.results_seconds;
  };
  for (std::size_t d = 0; d < free_.size(); ++d) {
    for (std::size_t p = 0; p < ends.size(); ++p)
      free_[d] = std::max(free_[d], ends[p] + delay(p, process_of(d)));
  }
}

void TimedRun::wake(std::size_t device) {
  if (!asleep_[device]) return;
  asleep_[device] = false;
  awake_.push_back(device);
}

void TimedRun::finish(std::size_t device, double start, double end) {
  if (observer_ != nullptr) observer_->ran(device, next_[device], start, end);
  ++next_[device];
}

void TimedRun::set_ready(std::size_t key, double seconds, int reader) {
  ready_[key] = seconds;
  if (await_[index(reader)] != key) return;
  await_[index(reader)] = kNothing;
  wake(index(reader));
}

bool TimedRun::await(std::size_t device, std::size_t key, double delay, double& start) {
  const double ready = ready_[key];
  if (ready < 0) {
    await_[device] = key;
    return false;
  }
  start = std::max(start, ready + delay);
  return true;
}

bool TimedRun::step(std::size_t device) {
  const Instruction& instruction = program_.device[device][next_[device]];
  switch (instruction.kind) {
    case Kind::kSend:
      if (rendezvous_) return run_rendezvous(device, instruction);
      return cores_.empty() ? run_send(device, instruction) : ask_for_core(device, instruction);
    case Kind::kReceive:
      if (rendezvous_) return run_rendezvous(device, instruction);
      ++next_[device];  // posted early: only the consumer waits
      return true;
    case Kind::kReduce:
    case Kind::kGradientSync:
      return run_collective(device, instruction);
    default:
      return cores_.empty() ? run_compute(device, instruction) : ask_for_core(device, instruction);
  }
}

/// Moves the end of the device's lane to when its inputs are there; false: run_on_core() goes on.
bool TimedRun::ask_for_core(std::size_t device, const Instruction& instruction) {
  double ready = free_[device];
  if (!await_inputs(device, instruction, ready)) return false;
  const Core& core = cores_[core_of_[device]];
  placed_[device] = !costs_.cores.moves || (core.device == device && core.free == ready);
  free_[device] = ready;
  asking_.push_back(device);
  return false;
}

/// Whether a core neither runs a device nor has one that waits for it, `without` aside.
bool TimedRun::is_idle(std::size_t core, std::size_t without, double seconds) const {
  return cores_[core].free <= seconds && std::ranges::none_of(asking_, [&](std::size_t other) {
           return other != without && placed_[other] && core_of_[other] == core;
         });
}

std::size_t TimedRun::core_for(std::size_t device, double seconds) const {
  const std::size_t last = core_of_[device];
  if (!costs_.cores.moves || is_idle(last, device, seconds)) return last;
  const std::vector<int>& group = costs_.cores.group;
  for (std::size_t core = 0; core < cores_.size(); ++core) {
    const bool may_move = group.empty() || group[core] == group[last];
    if (may_move && is_idle(core, device, seconds)) return core;
  }
  return last;
}

double TimedRun::notify(std::size_t device, std::size_t receiver, double seconds) const {
  const bool sleeps = await_[receiver] != kNothing && free_[receiver] <= seconds;
  if (cores_.empty() || receiver == device || !sleeps) return 0;
  const std::size_t core = core_for(receiver, seconds);
  const bool idle = core != core_of_[device] && is_idle(core, receiver, seconds);
  return idle ? costs_.cores.notify_seconds : 0;
}

TimedRun::Start TimedRun::start_on_core(std::size_t device) const {
  const CoreSharing& sharing = costs_.cores;
  const double ready = free_[device];
  const std::size_t place = core_of_[device];
  if (!placed_[device]) return {device, place, ready, false};
  const Core& core = cores_[place];
  const bool sends = program_.device[device][next_[device]].kind == Kind::kSend;
  const bool alone = sends || std::ranges::none_of(asking_, [&](std::size_t other) {
                       return other != device && placed_[other] && core_of_[other] == place;
                     });
  if (core.device == device && core.free == ready &&
      (alone || core.free - core.since < sharing.turn_seconds))
    return {device, place, ready, /*goes_on=*/true};
  const bool was_idle = core.free < ready || core.device == kNothing;
  return {device, place,
          was_idle ? ready + sharing.wake_seconds : core.free + sharing.switch_seconds, false};
}

/// Does what comes first: gives a device that has been woken a core, or runs an instruction. False
/// if no device asks.
bool TimedRun::run_on_core() {
  if (asking_.empty()) return false;
  Start first = start_on_core(asking_.front());
  for (const std::size_t device : asking_) {
    const Start start = start_on_core(device);
    const bool earlier = start.seconds < first.seconds ||
                         (start.seconds == first.seconds && free_[device] < free_[first.device]);
    if (earlier) first = start;
  }
  if (!placed_[first.device]) {
    core_of_[first.device] = core_for(first.device, first.seconds);
    placed_[first.device] = true;
    return true;
  }
  std::erase(asking_, first.device);
  Core& core = cores_[first.core];
  if (!first.goes_on) core = {first.device, first.seconds, 0};
  free_[first.device] = first.seconds;
  const Instruction& instruction = program_.device[first.device][next_[first.device]];
  if (instruction.kind == Kind::kSend) {
    run_send(first.device, instruction);
  } else {
    run_compute(first.device, instruction);
  }
  core.free = free_[first.device];
  wake(first.device);
  return true;
}

bool TimedRun::await_inputs(std::size_t device, const Instruction& instruction, double& start) {
  const Kind kind = instruction.kind;
  const bool backward = kind == Kind::kBackward || kind == Kind::kBackwardInput;
  if (!backward && kind != Kind::kForward) return true;
  for (const std::size_t e : inputs_[2 * index(instruction.stage) + (backward ? 1 : 0)]) {
    const int from = program_.edges[e].from_stage;
    const bool inside = index(program_.device_of(from, instruction.micro_batch)) == device;
    const std::size_t key = inside || !program_.lowered
                                ? made_key(from, instruction.micro_batch, backward)
                                : arrival_key(e, instruction.micro_batch);
    const double delay = inside || program_.lowered
                             ? 0
                             : wire_seconds(e, instruction.micro_batch) + link(e).latency_seconds;
    if (!await(device, key, delay, start)) return false;
  }
  return true;
}

bool TimedRun::run_compute(std::size_t device, const Instruction& instruction) {
  double start = free_[device];
  if (!await_inputs(device, instruction, start)) return false;
  double seconds = stage_seconds(instruction) * stretch(device, jitter_.compute);
  if (instruction.kind != Kind::kUpdate) seconds *= micro_batch_scale(instruction.micro_batch);
  if (!costs_.device_scale.empty()) seconds *= costs_.device_scale[device];
  const double end = start + seconds;
  free_[device] = end;
  if (adds_gradient(instruction.kind)) adds_[device] = {start, end};
  finish(device, start, end);
  if (instruction.kind == Kind::kForward) made(instruction, false, end);
  if (instruction.kind == Kind::kBackward || instruction.kind == Kind::kBackwardInput) {
    made(instruction, true, end);
  }
  return true;
}

void TimedRun::made(const Instruction& instruction, bool gradient, double seconds) {
  const std::size_t key = made_key(instruction.stage, instruction.micro_batch, gradient);
  ready_[key] = seconds;
  if (program_.lowered) return;  // a device only waits for arrivals
  for (const std::size_t e : outputs_[2 * index(instruction.stage) + (gradient ? 1 : 0)]) {
    set_ready(key, seconds,
              program_.device_of(program_.edges[e].to_stage, instruction.micro_batch));
  }
}

bool TimedRun::run_send(std::size_t device, const Instruction& instruction) {
  const Transfer& transfer = program_.transfers[index(instruction.transfer)];
  const std::size_t edge = index(transfer.edge);
  Channel& lane = channel(transfer);
  double start = lane.sent;
  const std::size_t key = made_key(transfer.from_stage, transfer.micro_batch, transfer.gradient);
  if (!await(device, key, 0, start)) return false;
  if (!cores_.empty()) {
    start = std::max(start, free_[device]);
    free_[device] += notify(device, index(transfer.to_device), free_[device]);
  }
  lane.sent = start + wire_seconds(edge, transfer.micro_batch) * stretch(device, jitter_.transfer);
  lane.arrived = std::max(lane.arrived, lane.sent + link(edge).latency_seconds);
  finish(device, start, lane.sent);
  set_ready(arrival_key(edge, transfer.micro_batch), lane.arrived, transfer.to_device);
  return true;
}

bool TimedRun::run_rendezvous(std::size_t device, const Instruction& instruction) {
  const Transfer& transfer = program_.transfers[index(instruction.transfer)];
  const std::size_t edge = index(transfer.edge);
  const std::size_t from = index(transfer.from_device), to = index(transfer.to_device);
  const auto is_at = [&](std::size_t d, Kind kind) {
    if (next_[d] == program_.device[d].size()) return false;
    const Instruction& head = program_.device[d][next_[d]];
    return head.kind == kind && head.transfer == instruction.transfer;
  };
  if (!is_at(from, Kind::kSend) || !is_at(to, Kind::kReceive)) return false;
  double start = std::max(free_[from], free_[to]);
  const std::size_t key = made_key(transfer.from_stage, transfer.micro_batch, transfer.gradient);
  if (!await(from, key, 0, start)) return false;
  const double end =
      start + (wire_seconds(edge, transfer.micro_batch) + link(edge).latency_seconds) *
                  stretch(from, jitter_.transfer);
  free_[from] = free_[to] = end;
  ready_[arrival_key(edge, transfer.micro_batch)] = end;
  finish(from, start, end);
  finish(to, start, end);
  wake(device == from ? to : from);
  return true;
}

bool TimedRun::run_collective(std::size_t device, const Instruction& instruction) {
  // The last device to arrive runs it for all.
  const bool sync = instruction.kind == Kind::kGradientSync;
  const std::size_t group = sync ? index(program_.stages) : index(instruction.stage);
  const std::size_t members = sync ? program_.device.size() : program_.placement[group].size();
  if (index(++met_[group]) < members) return false;
  met_[group] = 0;
  const auto member = [&](std::size_t n) { return sync ? n : index(program_.placement[group][n]); };
  double start = 0;
  for (std::size_t n = 0; n < members; ++n) start = std::max(start, free_[member(n)]);
  const double seconds = sync ? costs_.gradient_sync_seconds : stage_seconds(instruction);
  double end = start + seconds * stretch(member(0), jitter_.compute);
  if (!sync && !costs_.stage[group].buckets.empty()) {
    double lane = 0, summed = 0;
    int number = 0;
    for (const ReduceBucket& bucket : costs_.stage[group].buckets) {
      for (std::size_t n = 0; n < members; ++n) {
        const auto [from, to] = adds_[member(n)];
        lane = std::max(lane, from + bucket.ready * (to - from));
      }
      const double left = lane;
      lane += bucket.seconds * stretch(member(0), jitter_.compute);
      summed = lane + bucket.latency;
      if (observer_ != nullptr)
        observer_->summed(
            {instruction.stage, static_cast<int>(member(0)), number++, bucket.bytes, left, summed});
    }
    end = std::max(start, summed);
  }
  for (std::size_t n = 0; n < members; ++n) {
    free_[member(n)] = end;
    finish(member(n), start, end);
    if (member(n) != device) wake(member(n));
  }
  return true;
}

std::vector<double> TimedRun::lane_ends() const {
  std::vector<double> ends = free_;
  for (const Channel& lane : channels_) {
    ends.push_back(lane.sent);
    ends.push_back(lane.arrived);
  }
  return ends;
}

double TimedRun::end() const {
  double latest = 0;
  for (const double end : free_) latest = std::max(latest, end);
  for (const Channel& lane : channels_) latest = std::max({latest, lane.sent, lane.arrived});
  return latest;
}

}  // namespace pipetrain
