#include "pipeline/program/replica_rows.h"

#include <algorithm>

namespace pipetrain {

ReplicaRows::ReplicaRows(const Program& program)
    : program_(program), on_device_(program.device.size()) {
  first_.push_back(0);
  for (std::size_t s = 0; s < program.placement.size(); ++s) {
    for (const int device : program.placement[s]) {
      on_device_.at(static_cast<std::size_t>(device)).push_back(static_cast<int>(stage_.size()));
      stage_.push_back(static_cast<int>(s));
      device_.push_back(device);
    }
    first_.push_back(static_cast<int>(stage_.size()));
  }
}

int ReplicaRows::on(int stage, int device) const {
  const std::vector<int>& rows = on_device_[static_cast<std::size_t>(device)];
  const auto found = std::lower_bound(rows.begin(), rows.end(), stage,
                                      [&](int row, int wanted) { return stage_of(row) < wanted; });
  return found != rows.end() && stage_of(*found) == stage ? *found : -1;
}

}  // namespace pipetrain
