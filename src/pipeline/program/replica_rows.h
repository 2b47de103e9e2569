// Numbers the replicas of all stages, so that tables need one row per replica.
#pragma once

#include <vector>

#include "pipeline/program/program.h"

namespace pipetrain {

class ReplicaRows {
 public:
  /// Requires a valid placement.
  explicit ReplicaRows(const Program& program);

  /// Number of replicas of all stages.
  int count() const { return first_.back(); }
  /// The row of one replica of a stage.
  int row(int stage, int replica) const {
    return first_[static_cast<std::size_t>(stage)] + replica;
  }
  /// The row of the replica that runs a micro-batch.
  int running(int stage, int micro_batch) const {
    return row(stage, program_.replica_of(stage, micro_batch));
  }
  /// The row of a stage on a device; -1 when the device has no replica of it.
  int on(int stage, int device) const;
  int stage_of(int row) const { return stage_[static_cast<std::size_t>(row)]; }
  int device_of(int row) const { return device_[static_cast<std::size_t>(row)]; }

 private:
  const Program& program_;
  std::vector<int> first_;                   // [stages + 1]
  std::vector<int> stage_, device_;          // [rows]
  std::vector<std::vector<int>> on_device_;  // [devices]: rows, by stage
};

}  // namespace pipetrain
