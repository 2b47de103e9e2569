#include "pipeline/schedule/closed_forms.h"

#include <algorithm>

#include "base/error.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/schedule_table.h"

namespace pipetrain {
namespace {

/// Of each stage the micro-batches that it runs forward before it runs one backward.
std::vector<int> forwards_first(const Program& program) {
  std::vector<int> forwards(static_cast<std::size_t>(program.stages), 0);
  std::vector<bool> over(forwards.size(), false);
  for (const auto& list : program.device) {
    for (const Instruction& instruction : list) {
      if (!is_compute(instruction.kind)) continue;
      const auto stage = static_cast<std::size_t>(instruction.stage);
      if (instruction.kind != Kind::kForward) over[stage] = true;
      if (!over[stage]) ++forwards[stage];
    }
  }
  return forwards;
}

/// What the lists compute, wherever stages recompute.
std::vector<std::vector<Instruction>> computes(const Program& program) {
  std::vector<std::vector<Instruction>> lists;
  for (const auto& list : program.device) {
    auto& computed = lists.emplace_back();
    for (const Instruction& instruction : list) {
      const Kind kind = instruction.kind;
      if (is_compute(kind) && kind != Kind::kRecompute)
        computed.push_back({kind, instruction.stage, instruction.micro_batch});
    }
  }
  return lists;
}

/// Whether a program is what generate() makes for these sizes, with any warm-up: that of a file may
/// have the name of another schedule.
bool is_generated(const Program& program, const ScheduleDescription& description, int most_held) {
  ScheduleOptions options;
  options.name = description.name;
  options.stages = program.stages;
  options.micro_batches = program.micro_batches;
  options.chunks = std::max(1, program.stages / program.devices);
  if (program.rule == UpdateRule::kDoubleBuffer)
    options.micro_batches_per_update = program.micro_batches_per_update;
  if (description.takes_warm_up) {
    for (const int forwards : forwards_first(program)) options.warm.push_back(forwards - 1);
  }
  if (description.takes_memory && description.splits_backward) options.memory_units = most_held;
  try {
    const Program generated = generate(options);
    return generated.rule == program.rule && generated.placement == program.placement &&
           computes(generated) == computes(program);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUsage) throw;
    return false;  // there is none of these sizes
  }
}

/// Idle seconds of a device in the round, by the schedule's closed form.
std::optional<double> idle_seconds(const Program& program, const MicroBatchSeconds& micro_batch) {
  if (program.devices == 1) return 0.0;
  const schedule::Schedule* row = schedule::lookup(program.schedule);
  if (row == nullptr || row->idle_seconds == nullptr) return std::nullopt;
  int most_held = 0;
  for (const int slots : program.slots_per_stage) most_held = std::max(most_held, slots);
  if (!is_generated(program, row->description, most_held)) return std::nullopt;
  bool runs_ahead = true;
  const std::vector<int> first = forwards_first(program);
  for (int s = 0; s < program.stages; ++s) {
    const int needed = std::min(program.stages - s, program.micro_batches);
    runs_ahead = runs_ahead && first[static_cast<std::size_t>(s)] >= needed;
  }
  const schedule::EqualRound round = {
      .devices = static_cast<double>(program.devices),
      .micro_batches = static_cast<double>(program.micro_batches),
      .chunks = static_cast<double>(program.stages) / program.devices,
      .most_held = static_cast<double>(most_held),
      .runs_ahead = runs_ahead,
      .seconds = micro_batch};
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
