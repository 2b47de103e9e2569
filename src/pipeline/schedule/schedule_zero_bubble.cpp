// Schedules with one stage on a device whose weight gradients fill the bubble.
#include <algorithm>

#include "pipeline/schedule/schedule_table.h"
#include "pipeline/schedule/warm_up.h"

namespace pipetrain::schedule {
namespace {

/// Zero bubble with at most K = memory_units micro-batches on each device. K = p and K = 2p-1 are
/// ZB-H1 and ZB-H2 of Qi et al., Zero Bubble Pipeline Parallelism, 2024.
Lists zero_bubble(const ScheduleOptions& options) {
  Lists lists;
  for (int s = 0; s < options.stages; ++s) {
    const int ahead = std::min(options.micro_batches, options.warm[static_cast<std::size_t>(s)]);
    // Weight gradients are deferred until the memory limit is reached.
    const int lag = std::max(options.memory_units - 1 - ahead, 0);
    List list;
    int next_weight = 0;
    const auto backward_of = [&](int micro_batch) {
      list.push_back(input_gradient(s, micro_batch));
      if (micro_batch >= lag) list.push_back(weight_gradient(s, next_weight++));
    };
    for (int k = 0; k < ahead; ++k) list.push_back(forward(s, k));
    for (int k = ahead; k < options.micro_batches; ++k) {
      list.push_back(forward(s, k));
      backward_of(k - ahead);
    }
    for (int k = options.micro_batches - ahead; k < options.micro_batches; ++k) backward_of(k);
    while (next_weight < options.micro_batches) list.push_back(weight_gradient(s, next_weight++));
    lists.push_back(std::move(list));
  }
  return lists;
}

std::vector<int> of_memory(const ScheduleOptions& options) {
  return zero_bubble_warm_up(options.stages, options.memory_units);
}

/// ZB-H1 and ZB-H2 are this family with a fixed memory.
Lists zero_bubble_with(ScheduleOptions options, int memory_units) {
  options.memory_units = memory_units;
  options.warm = of_memory(options);
  return zero_bubble(options);
}
Lists zero_bubble_h1(const ScheduleOptions& options) {
  return zero_bubble_with(options, options.stages);
}
Lists zero_bubble_h2(const ScheduleOptions& options) {
  return zero_bubble_with(options, 2 * options.stages - 1);
}

/// (p-1)(f+i-w), if the pipeline gets full.
std::optional<double> idle_of_h1(const EqualRound& round) {
  if (!has_short_weight_gradients(round.seconds) || round.micro_batches < round.devices)
    return std::nullopt;
  const auto& [f, i, w] = round.seconds;
  return (round.devices - 1) * (f + i - w);
}

/// (p-1)(f+i-w) - (K-p)w for p <= K <= 2p-1. With a barrier at the end the memory beyond K = p
/// saves less than it does in the period. Between p and 2p-1 this is only a lower bound where
/// w < i < 2w, and beyond 2p-1 where i > 2w.
std::optional<double> idle_of_family(const EqualRound& round) {
  const auto& [f, i, w] = round.seconds;
  const double p = round.devices;
  const double k = round.most_held;
  if (!has_short_weight_gradients(round.seconds) || k < p || round.micro_batches < k)
    return std::nullopt;
  if (k > p && k < 2 * p - 1 && i > 1.001 * w && i < 1.999 * w) return std::nullopt;
  if (k > 2 * p - 1 && i > 2.001 * w) return std::nullopt;
  return std::max((p - 1) * (f + i - w) - (k - p) * w, (p - 1) * f);
}

/// That of K = 2p-1, of which a round of fewer micro-batches holds all.
std::optional<double> idle_of_h2(const EqualRound& round) {
  if (round.micro_batches < 2 * round.devices - 1) return std::nullopt;
  return idle_of_family(round);
}

Schedule split(const char* name, const char* summary) {
  return {.description = {.name = name, .summary = summary, .splits_backward = true},
          .idle_seconds = idle_of_family};
}

}  // namespace

std::vector<Schedule> zero_bubble_chains() {
  Schedule h1 =
      split("zb-h1", "1f1b with weight gradients moved into the bubble, in the same memory");
  h1.description.memory = MemoryRule{.length = MemoryRule::Length::kPipeline};
  h1.lists = zero_bubble_h1;
  h1.idle_seconds = idle_of_h1;
  Schedule h2 = split("zb-h2",
                      "zb-h1 with twice the memory, for input gradients that take longer than "
                      "weight gradients");
  h2.description.memory =
      MemoryRule{.length = MemoryRule::Length::kPipeline, .times = 2, .more = -1};
  h2.lists = zero_bubble_h2;
  h2.idle_seconds = idle_of_h2;
  Schedule family =
      split("zb", "between zb-h1 and zb-h2: the smallest bubble that the memory allows");
  family.description.takes_warm_up = true;
  family.description.takes_memory = true;
  family.lists = zero_bubble;
  family.warm_up = of_memory;
  return {h1, h2, family};
}

}  // namespace pipetrain::schedule
