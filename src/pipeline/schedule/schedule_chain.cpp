// Schedules with one stage on a device, or on several that share its micro-batches, whose backward
// is one instruction.
#include <algorithm>

#include "pipeline/schedule/schedule_table.h"
#include "pipeline/schedule/warm_up.h"

namespace pipetrain::schedule {
namespace {

/// Calls make(stage, micro-batches of a replica) for every device of a chain.
template <class Make>
Lists for_each_replica(const ScheduleOptions& options, Make&& make) {
  Lists lists;
  for (int s = 0; s < options.stages; ++s) {
    const int replicas = options.replicas[static_cast<std::size_t>(s)];
    for (int replica = 0; replica < replicas; ++replica) {
      std::vector<int> micro_batches;
      for (int k = replica; k < options.micro_batches; k += replicas) micro_batches.push_back(k);
      lists.push_back(make(s, micro_batches));
    }
  }
  return lists;
}

/// Forwards of a chain.
Lists forward_chain(const ScheduleOptions& options) {
  return for_each_replica(options, [](int stage, const std::vector<int>& micro_batches) {
    List list;
    for (const int micro_batch : micro_batches) list.push_back(forward(stage, micro_batch));
    return list;
  });
}

/// All forwards, then all backwards (Huang et al., GPipe, 2019). Backwards run first-in first-out,
/// not last-in first-out as in the paper: equally fast, and gradients accumulate in micro-batch
/// order.
Lists gpipe(const ScheduleOptions& options) {
  return for_each_replica(options, [](int stage, const std::vector<int>& micro_batches) {
    List list;
    for (const int micro_batch : micro_batches) list.push_back(forward(stage, micro_batch));
    for (const int micro_batch : micro_batches) list.push_back(backward(stage, micro_batch));
    return list;
  });
}

/// Warm-up forwards, then alternately one forward and one backward, then the remaining backwards
/// (Narayanan et al., PipeDream, 2019; with a flush: DAPPLE, Megatron-LM).
Lists one_forward_one_backward(const ScheduleOptions& options) {
  return for_each_replica(options, [&](int stage, const std::vector<int>& micro_batches) {
    const std::size_t ahead =
        std::min(micro_batches.size(),
                 static_cast<std::size_t>(options.warm[static_cast<std::size_t>(stage)]));
    List list;
    for (std::size_t n = 0; n < ahead; ++n) list.push_back(forward(stage, micro_batches[n]));
    for (std::size_t n = ahead; n < micro_batches.size(); ++n) {
      list.push_back(forward(stage, micro_batches[n]));
      list.push_back(backward(stage, micro_batches[n - ahead]));
    }
    for (std::size_t n = micro_batches.size() - ahead; n < micro_batches.size(); ++n) {
      list.push_back(backward(stage, micro_batches[n]));
    }
    return list;
  });
}

std::vector<int> standard(const ScheduleOptions& options) {
  return standard_warm_up(options.replicas);
}
std::vector<int> eager(const ScheduleOptions& options) { return eager_warm_up(options.replicas); }

/// The common part of the 1f1b family: replicas, warm-up and a memory limit.
Schedule in_turn(const char* name, const char* summary) {
  return {.description = {.name = name,
                          .summary = summary,
                          .takes_replicas = true,
                          .takes_warm_up = true,
                          .takes_memory = true,
                          .memory = MemoryRule{}},
          .lists = one_forward_one_backward,
          .warm_up = standard,
          .idle_seconds = idle_of_fill_and_drain};
}

/// With twice the warm-up a stage holds twice as many micro-batches, less one.
constexpr MemoryRule kEagerMemory = {.times = 2, .more = -1};

}  // namespace

std::vector<Schedule> drained_chains() {
  const Schedule all_forwards = {
      .description = {.name = "gpipe",
                      .summary = "all forward passes, then all backward passes, then one update",
                      .takes_replicas = true,
                      .memory = MemoryRule{.length = MemoryRule::Length::kMiniBatch}},
      .lists = gpipe,
      .idle_seconds = idle_of_fill_and_drain};
  Schedule twice = in_turn("1f1b-eager", "1f1b with twice the warm-up, to hide transfers");
  twice.warm_up = eager;
  twice.description.memory = kEagerMemory;
  Schedule balanced = in_turn("1f1b-auto",
                              "1f1b with the least warm-up that keeps the slowest stage busy, from "
                              "measured times");
  balanced.description.balances_warm_up = true;
  balanced.description.memory = kEagerMemory;  // until the times are known
  return {all_forwards, in_turn("1f1b", "one forward, one backward in turn, then one update"),
          twice, balanced};
}

std::vector<Schedule> undrained_chains() {
  Schedule stashed =
      in_turn("pipedream", "1f1b without draining between updates, with stashed weights");
  stashed.description.rule = UpdateRule::kStash;
  stashed.description.memory = MemoryRule{.copies = WeightCopies::kPerMicroBatch};
  Schedule vertical =
      in_turn("pipedream-vertical",
              "pipedream where a micro-batch uses the same weight version on every stage");
  vertical.description.rule = UpdateRule::kVertical;
  vertical.description.takes_replicas = false;
  vertical.description.memory = std::nullopt;
  Schedule buffered = in_turn(
      "pipedream-2bw", "pipedream with only two weight versions: every update is one step late");
  buffered.description.rule = UpdateRule::kDoubleBuffer;
  buffered.description.memory = MemoryRule{.copies = WeightCopies::kTwo};
  return {stashed, vertical, buffered};
}

std::vector<Schedule> forward_chains() {
  return {{.description = {.name = "forward",
                           .summary = "forward passes only, for evaluation",
                           .rule = UpdateRule::kNone,
                           .takes_replicas = true},
           .lists = forward_chain,
           .idle_seconds = idle_of_fill_and_drain}};
}

Lists forward_groups(const Program& program) {
  Lists lists(static_cast<std::size_t>(program.devices));
  for (int first = 0; first < program.micro_batches; first += program.devices) {
    const int end = std::min(program.micro_batches, first + program.devices);
    for (int s = 0; s < program.stages; ++s) {
      for (int k = first; k < end; ++k) {
        lists[static_cast<std::size_t>(program.device_of(s, k))].push_back(forward(s, k));
      }
    }
  }
  return lists;
}

}  // namespace pipetrain::schedule
