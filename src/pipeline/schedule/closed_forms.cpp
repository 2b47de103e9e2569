#include "pipeline/schedule/closed_forms.h"

#include <algorithm>

#include "pipeline/schedule/schedule_table.h"

namespace pipetrain {
namespace {

/// Idle seconds of a device in the round, by the schedule's closed form.
std::optional<double> idle_seconds(const Program& program, const MicroBatchSeconds& micro_batch) {
  if (program.devices == 1) return 0.0;
  int most_held = 0;
  for (const int slots : program.slots_per_stage) most_held = std::max(most_held, slots);
  const schedule::EqualRound round = {
      .devices = static_cast<double>(program.devices),
      .micro_batches = static_cast<double>(program.micro_batches),
      .chunks = static_cast<double>(program.stages) / program.devices,
      .most_held = static_cast<double>(most_held),
      .seconds = micro_batch};
  const schedule::Schedule* row = schedule::lookup(program.schedule);
  // A file may have any name; all asynchronous rounds have the same form.
  if (is_asynchronous(program.rule) && (row == nullptr || row->description.rule != program.rule))
    return schedule::idle_of_fill_and_drain(round);
  if (row == nullptr || row->idle_seconds == nullptr) return std::nullopt;
  return row->idle_seconds(round);
}

}  // namespace

MicroBatchSeconds mean_micro_batch_seconds(const Program& program, const Events& events) {
  MicroBatchSeconds sum;
  for (std::size_t d = 0; d < events.size(); ++d) {
    for (std::size_t n = 0; n < events[d].size(); ++n) {
      const double seconds = events[d][n].end - events[d][n].start;
      switch (program.device[d][n].kind) {
        case Kind::kForward:
          sum.forward += seconds;
          break;
        case Kind::kBackward:
          sum.input_gradient += seconds / 2;
          sum.weight_gradient += seconds / 2;
          break;
        case Kind::kBackwardInput:
        case Kind::kRecompute:
          sum.input_gradient += seconds;
          break;
        case Kind::kBackwardWeight:
          sum.weight_gradient += seconds;
          break;
        default:
          break;
      }
    }
  }
  const double count = static_cast<double>(program.devices) * program.micro_batches;
  return {sum.forward / count, sum.input_gradient / count, sum.weight_gradient / count};
}

std::optional<double> theoretical_bubble(const Program& program,
                                         const MicroBatchSeconds& micro_batch) {
  for (const auto& devices : program.placement) {
    if (devices.size() > 1) return std::nullopt;
  }
  const double work = micro_batch.total() * program.micro_batches;
  if (work <= 0) return std::nullopt;
  const std::optional<double> idle = idle_seconds(program, micro_batch);
  if (!idle) return std::nullopt;
  return *idle / (work + *idle);
}

}  // namespace pipetrain
