// What each schedule holds at one stage at most; tested against the closed forms in the literature.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "partition/plan.h"

namespace pipetrain {

ScheduleLoad schedule_load(const std::string& schedule, int stage, int stages, int micro_batches) {
  const int behind = stages - stage;  // this stage and those after it
  if (schedule == "gpipe") return {micro_batches, 1};
  if (schedule == "1f1b") return {std::min(behind, micro_batches), 1};
  if (schedule == "1f1b-auto" || schedule == "auto") {
    return {std::min(2 * behind - 1, micro_batches), 1};
  }
  if (schedule == "pipedream") return {behind, behind};
  if (schedule == "pipedream-2bw") return {behind, stages == 1 ? 1 : 2};
  if (schedule == "zb-h1") return {std::min(stages, micro_batches), 1};
  if (schedule == "zb-h2") return {std::min(2 * stages - 1, micro_batches), 1};
  PT_FAIL(kUsage,
          "schedule \"{}\" cannot be planned; those that can are 1f1b, gpipe, pipedream, "
          "pipedream-2bw, 1f1b-auto, zb-h1, zb-h2",
          printable(schedule));
}

}  // namespace pipetrain
