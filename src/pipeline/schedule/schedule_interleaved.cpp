// Interleaved schedules: stage c * p + r is chunk c of device r.
#include <algorithm>

#include "pipeline/schedule/schedule_table.h"

namespace pipetrain::schedule {
namespace {

/// One turn of a device: a chunk and a micro-batch of it.
struct Turn {
  int chunk;
  int micro_batch;
};

struct Turns {
  std::vector<Turn> order;  // of the forwards; backwards take the chunks the other way round
  int first_round;          // micro-batches of the first round, the largest
};

/// Chunk after chunk for one round of micro-batches after the other. A round of at least p
/// micro-batches keeps every device busy, so a remainder is spread over the rounds.
Turns forward_turns(int micro_batches, int devices, int chunks) {
  const int rounds = std::max(1, micro_batches / devices);
  Turns turns;
  turns.first_round = (micro_batches + rounds - 1) / rounds;
  int first = 0;
  for (int round = 0; round < rounds; ++round) {
    const int size = micro_batches / rounds + (round < micro_batches % rounds ? 1 : 0);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int k = first; k < first + size; ++k) turns.order.push_back({chunk, k});
    }
    first += size;
  }
  return turns;
}

/// The common part of both schedules. `backward_of(list, turns, n)` adds what belongs to backward
/// turn n.
template <class BackwardOf>
Lists interleave(const ScheduleOptions& options, int warm_per_device, BackwardOf&& backward_of) {
  const int devices = options.stages / options.chunks;
  const Turns turns = forward_turns(options.micro_batches, devices, options.chunks);
  const int total = static_cast<int>(turns.order.size());
  Lists lists;
  for (int r = 0; r < devices; ++r) {
    const int ahead = std::min(
        total, warm_per_device * (devices - 1 - r) + (options.chunks - 1) * turns.first_round);
    List list;
    const auto run_forward = [&](int n) {
      const Turn& turn = turns.order[static_cast<std::size_t>(n)];
      list.push_back(forward(turn.chunk * devices + r, turn.micro_batch));
    };
    for (int n = 0; n < ahead; ++n) run_forward(n);
    for (int n = ahead; n < total; ++n) {
      run_forward(n);
      backward_of(list, turns.order, r, n - ahead);
    }
    for (int n = total - ahead; n < total; ++n) backward_of(list, turns.order, r, n);
    lists.push_back(std::move(list));
  }
  return lists;
}

/// Interleaved 1F1B (Narayanan et al., Megatron-LM, 2021): `chunks` stages on each device, so that
/// the pipeline fills chunk by chunk. Micro-batches go in rounds of at least p, the larger rounds
/// first.
Lists interleaved(const ScheduleOptions& options) {
  const int devices = options.stages / options.chunks;
  return interleave(options, 2, [&](List& list, const std::vector<Turn>& turns, int r, int n) {
    const Turn& turn = turns[static_cast<std::size_t>(n)];
    list.push_back(backward((options.chunks - 1 - turn.chunk) * devices + r, turn.micro_batch));
  });
}

/// The same with a split backward; weight gradients fill the end.
Lists interleaved_zero_bubble(const ScheduleOptions& options) {
  const int devices = options.stages / options.chunks;
  return interleave(options, 1, [&](List& list, const std::vector<Turn>& turns, int r, int n) {
    const auto stage_of = [&](const Turn& turn) {
      return (options.chunks - 1 - turn.chunk) * devices + r;
    };
    const auto add_weight = [&](int turn_number) {
      const Turn& turn = turns[static_cast<std::size_t>(turn_number)];
      list.push_back(weight_gradient(stage_of(turn), turn.micro_batch));
    };
    const int total = static_cast<int>(turns.size());
    const Turn& turn = turns[static_cast<std::size_t>(n)];
    list.push_back(input_gradient(stage_of(turn), turn.micro_batch));
    // Device r defers r weight gradients, so that all devices hold equally many micro-batches.
    if (n >= r) add_weight(n - r);
    if (n + 1 < total) return;
    for (int owed = std::max(0, total - r); owed < total; ++owed) add_weight(owed);
  });
}

/// With fewer micro-batches than devices the chunks of a device do not follow each other.
bool fills_all_devices(const EqualRound& round) { return round.micro_batches >= round.devices; }

std::optional<double> idle_of_interleaved(const EqualRound& round) {
  if (!fills_all_devices(round)) return std::nullopt;
  return (round.devices - 1) * round.seconds.total() / round.chunks;
}

std::optional<double> idle_of_interleaved_zero_bubble(const EqualRound& round) {
  if (!has_short_weight_gradients(round.seconds) || !fills_all_devices(round)) return std::nullopt;
  const auto& [f, i, w] = round.seconds;
  return (round.devices - 1) * (f + i - w) / round.chunks;
}

}  // namespace

std::vector<Schedule> interleaved_loops() {
  return {{.description = {.name = "interleaved-1f1b",
                           .summary = "1f1b with several stages per device: a smaller bubble, more "
                                      "transfers",
                           .placement = Placement::kLoop},
           .lists = interleaved,
           .idle_seconds = idle_of_interleaved}};
}

std::vector<Schedule> zero_bubble_loops() {
  return {{.description = {.name = "interleaved-zb",
                           .summary = "zb-h1 with several stages per device: the smallest bubble "
                                      "within one step",
                           .placement = Placement::kLoop,
                           .splits_backward = true},
           .lists = interleaved_zero_bubble,
           .idle_seconds = idle_of_interleaved_zero_bubble}};
}

}  // namespace pipetrain::schedule
