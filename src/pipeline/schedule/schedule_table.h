// The table of schedules. A row describes a schedule and is defined beside its generator; a new
// schedule is a new row in its family.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pipeline/schedule/closed_forms.h"
#include "pipeline/schedule/schedule_lists.h"

namespace pipetrain::schedule {

/// The parameters of closed forms: equal stages, no replicas, free transfers.
struct EqualRound {
  double devices = 1;
  double micro_batches = 1;
  double chunks = 1;          // stages of a device
  double most_held = 1;       // the most micro-batches that a stage holds
  bool runs_ahead = true;     // each stage as far as the backward of its first micro-batch needs
  MicroBatchSeconds seconds;  // of one micro-batch on one device, over all its stages
};

struct Schedule {
  ScheduleDescription description;
  Lists (*lists)(const ScheduleOptions&) = nullptr;
  /// The schedule's own warm-up; null where it has none.
  std::vector<int> (*warm_up)(const ScheduleOptions&) = nullptr;
  /// Seconds for which each of two or more devices is idle in a round that starts and ends empty;
  /// nothing where the sizes or times are outside the form's conditions, null where there is no
  /// form.
  std::optional<double> (*idle_seconds)(const EqualRound&) = nullptr;
};

/// The families, in the order of listing.
std::vector<Schedule> drained_chains();         // schedule_chain.cpp
std::vector<Schedule> forward_chains();         // schedule_chain.cpp
std::vector<Schedule> undrained_chains();       // schedule_chain.cpp
std::vector<Schedule> zero_bubble_chains();     // schedule_zero_bubble.cpp
std::vector<Schedule> interleaved_loops();      // schedule_interleaved.cpp
std::vector<Schedule> zero_bubble_loops();      // schedule_interleaved.cpp
std::vector<Schedule> down_and_up_schedules();  // schedule_v.cpp

/// The pipeline fills and drains once: (p-1) (f+i+w), if memory does not limit how far stages run
/// ahead.
std::optional<double> idle_of_fill_and_drain(const EqualRound& round);

/// The condition of most forms that split the backward: w <= f and w <= i, within rounding.
bool has_short_weight_gradients(const MicroBatchSeconds& seconds);

const std::vector<Schedule>& table();

/// Null for a name that is not in the table.
const Schedule* lookup(const std::string& name);
/// Throws Error(kUsage) with the nearest name for one that is not in the table.
const Schedule& find(const std::string& name);

}  // namespace pipetrain::schedule
