// Every schedule by name.
#pragma once

#include <string>
#include <vector>

#include "pipeline/schedule/schedule_lists.h"

namespace pipetrain::schedule {

struct Schedule {
  ScheduleDescription description;
  Lists (*lists)(const ScheduleOptions&);
  /// The schedule's own warm-up; null where it has none.
  std::vector<int> (*warm_up)(const ScheduleOptions&) = nullptr;
};

const std::vector<Schedule>& table();

/// Throws Error(kUsage) with the nearest name for one that is not in the table.
const Schedule& find(const std::string& name);

}  // namespace pipetrain::schedule
