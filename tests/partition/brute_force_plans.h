// Every cut, placement and recompute choice that a request allows, priced by a simple cost model
// that is independent of the planner's: what tests compare plans with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <tuple>
#include <vector>

#include "partition/plan.h"

namespace pipetrain {

inline int ceil_of(int a, int b) { return (a + b - 1) / b; }

struct PlainStage {
  int first, last, device, replicas;
  bool recompute;
};

struct PlainPlan {
  double objective = INFINITY;
  int devices = 0;
  double memory = 0, traffic = 0;
  std::vector<int> cuts;
  auto key() const { return std::tie(objective, devices, memory, traffic, cuts); }
};

/// All plans of a request, and the best of them.
class Enumeration {
 public:
  Enumeration(const ChainCosts& chain, const PlanRequest& request)
      : chain_(chain), request_(request), count_(static_cast<int>(chain.elements.size())) {}

  std::optional<PlainPlan> best() {
    extend(0, 0);
    return best_;
  }
  // The most that any stage of the best plan needs, over all plans: for infeasible requests.
  bool found() const { return best_.has_value(); }

 private:
  bool asynchronous() const {
    return request_.schedule.name == "pipedream" || request_.schedule.name == "pipedream-2bw";
  }
  bool mini_batch() const {
    return request_.objective == Objective::kMiniBatch ||
           (request_.objective == Objective::kAuto && !asynchronous());
  }

  // Replicas of one stage: in one group, or whole groups within one group of the next level.
  bool allowed(int device, int replicas) const {
    int unit = 1;
    const std::vector<TopologyLevel>& levels = request_.topology.levels;
    if (levels.empty()) return true;
    for (const TopologyLevel& level : levels) {
      const int group = unit * level.count;
      if (device % unit == 0 && replicas % unit == 0 &&
          device / group == (device + replicas - 1) / group) {
        return true;
      }
      unit = group;
    }
    return false;
  }

  void extend(int first, int device) {
    if (first == count_) {
      price();
      return;
    }
    const bool equal = request_.topology.levels.empty() && request_.topology.device_speed.empty();
    const int last_start = equal ? device : request_.devices - 1;
    for (int last = first + 1; last <= count_; ++last) {
      for (int start = device; start <= std::min(last_start, request_.devices - 1); ++start) {
        const int most = request_.replication ? request_.devices - start : 1;
        for (int replicas = 1; replicas <= most; ++replicas) {
          if (!allowed(start, replicas)) continue;
          for (const bool recompute : {false, true}) {
            if (recompute && request_.recompute == Recompute::kNone) continue;
            if (!recompute && request_.recompute == Recompute::kAll) continue;
            stages_.push_back({first, last, start, replicas, recompute});
            extend(last, start + replicas);
            stages_.pop_back();
          }
        }
      }
    }
  }

  double link_seconds(int left, int right, int cut) const {
    TransferCost link = request_.transfer;
    int group = 1;
    for (const TopologyLevel& level : request_.topology.levels) {
      group *= level.count;
      link = {level.latency_seconds, level.bytes_per_second};
      if (left / group == right / group) break;
    }
    double out = 0;
    for (const std::size_t bytes : {chain_.forward_bytes[cut], chain_.backward_bytes[cut]}) {
      if (bytes > 0) out += link.latency_seconds + double(bytes) / link.bytes_per_second;
    }
    return out;
  }

  double all_reduce_seconds(double bytes, int replicas) const {
    std::vector<TopologyLevel> levels = request_.topology.levels;
    if (levels.empty()) {
      levels = {{"", request_.devices, request_.transfer.bytes_per_second,
                 request_.transfer.latency_seconds, request_.transfer.all_reduce_bytes_per_second}};
    }
    double out = 0;
    int left = replicas;
    for (const TopologyLevel& level : levels) {
      const int part = std::min(left, level.count);
      left = ceil_of(left, level.count);
      if (part == 1) continue;
      const double own_rate = level.all_reduce_bytes_per_second;
      out += 2.0 * (part - 1) / part * bytes / (own_rate > 0 ? own_rate : level.bytes_per_second);
      out += 2 * std::ceil(std::log2(part)) * level.latency_seconds;
    }
    return out;
  }

  /// What a stage costs before it is replicated or recomputed.
  struct Sums {
    double forward = 0, backward = 0, step = 0, weights = 0, fixed = 0, saved = 0, transient = 0;
  };
  Sums sums_of(const PlainStage& stage) const {
    Sums sums;
    for (int i = stage.first; i < stage.last; ++i) {
      const ChainCost& e = chain_.elements[i];
      sums.forward += e.forward_seconds;
      sums.backward += e.input_gradient_seconds + e.weight_gradient_seconds;
      sums.step += e.step_seconds;
      sums.weights += e.parameter_bytes;
      sums.fixed += e.fixed_bytes;
      sums.saved += e.saved_bytes;
      sums.transient = std::max(sums.transient, double(e.transient_bytes));
      for (const Reuse& reuse : e.reuses) {
        if (reuse.previous >= stage.first) continue;
        sums.weights += reuse.parameter_bytes;
        sums.fixed += reuse.fixed_bytes;
        sums.saved += reuse.saved_bytes;
      }
    }
    return sums;
  }

  double memory_of(std::size_t s, const Sums& sums) const {
    const PlainStage& stage = stages_[s];
    const int r = stage.replicas;
    int after = 0;
    for (std::size_t later = s + 1; later < stages_.size(); ++later)
      after += stages_[later].replicas;
    const int depth = ceil_of(after + r, r), share = ceil_of(request_.micro_batches, r);
    double in_flight = 0, versions = 1;
    if (request_.schedule.name == "gpipe") in_flight = share;
    if (request_.schedule.name == "1f1b") in_flight = std::min(depth, share);
    if (request_.schedule.name == "1f1b-auto") in_flight = std::min(2 * depth - 1, share);
    if (request_.schedule.name == "pipedream") in_flight = versions = depth;
    if (request_.schedule.name == "pipedream-2bw") {
      in_flight = depth;
      versions = 2;
    }
    // In whole bytes; each of r replicas has 1/r of what they share.
    const double state =
        std::round(sums.weights * (request_.optimizer_bytes_per_parameter_byte -
                                   request_.shared_bytes_per_parameter_byte * (1 - 1.0 / r)));
    const double always =
        sums.weights * (versions + 1) + state + sums.fixed * versions + sums.transient;
    return stage.recompute ? always + in_flight * chain_.forward_bytes[stage.first] + sums.saved
                           : always + in_flight * sums.saved;
  }

  double speed_of(const PlainStage& stage) const {
    if (request_.topology.device_speed.empty()) return 1;
    double speed = INFINITY;
    for (int d = stage.device; d < stage.device + stage.replicas; ++d)
      speed = std::min(speed, request_.topology.device_speed[d]);
    return speed;
  }

  void price() {
    if (request_.stages > 0 && static_cast<int>(stages_.size()) != request_.stages) return;
    const int m = request_.micro_batches;
    double slowest = 0, latencies = 0, wait = 0;
    PlainPlan plan;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const PlainStage& stage = stages_[s];
      const Sums sums = sums_of(stage);
      const double memory = memory_of(s, sums);
      if (request_.memory_limit_bytes > 0 && memory > double(request_.memory_limit_bytes)) return;
      const int r = stage.replicas;
      const double speed = speed_of(stage);
      double one = (sums.forward * (stage.recompute ? 2 : 1) + sums.backward) / speed;
      if (s > 0) {
        const PlainStage& left = stages_[s - 1];
        one += link_seconds(left.device + left.replicas - 1, stage.device, stage.first);
        plan.traffic += double(chain_.forward_bytes[stage.first]);
        plan.traffic += double(chain_.backward_bytes[stage.first]);
        plan.cuts.push_back(stage.first);
      }
      if (s + 1 < stages_.size()) {
        one += link_seconds(stage.device + r - 1, stages_[s + 1].device, stage.last);
      }
      const double step = sums.step / speed, sum = all_reduce_seconds(sums.weights, r);
      double seconds = (ceil_of(m, r) * one + step + sum) / m;
      if (request_.schedule.name == "pipedream") seconds = (one + step / m + sum) / r;
      if (request_.schedule.name == "pipedream-2bw") seconds = one / r + (step + sum) / m;
      slowest = std::max(slowest, seconds);
      latencies += one;
      wait = std::max(wait, seconds * m - one);
      plan.devices += r;
      plan.memory = std::max(plan.memory, memory);
    }
    plan.objective = mini_batch() ? latencies + wait : slowest;
    // Sums in another order differ in the last bits; such plans count as equal.
    if (best_ && std::abs(plan.objective - best_->objective) <= 1e-11 * plan.objective) {
      plan.objective = best_->objective;
    }
    if (!best_ || plan.key() < best_->key()) best_ = plan;
  }

  const ChainCosts& chain_;
  const PlanRequest& request_;
  int count_;
  std::vector<PlainStage> stages_;
  std::optional<PlainPlan> best_;
};

}  // namespace pipetrain
