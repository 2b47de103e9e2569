#include "pipeline/stage/stage_executor.h"

#include <algorithm>
#include <cmath>

namespace pipetrain {

bool StageExecutor::is_finite(std::span<const float> values) const {
  std::vector<float> room;
  const std::span<const float> host = read_back(values, room);
  return std::all_of(host.begin(), host.end(), [](float v) { return std::isfinite(v); });
}

}  // namespace pipetrain
