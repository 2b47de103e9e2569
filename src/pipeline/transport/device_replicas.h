// Replicas of a stage on devices: they add up gradients with copies between devices, in the order
// and with the bits of replicas in host memory.
#pragma once

#include <vector>

#include "device/device.h"
#include "pipeline/transport/replica_group.h"

namespace pipetrain {

class DeviceReplicaGroup final : public ReplicaGroup {
 public:
  /// `streams`: where each replica puts its work; a replica completes gradients when they are there
  /// for everybody.
  DeviceReplicaGroup(const std::vector<std::size_t>& sizes, std::vector<Stream*> streams);

 private:
  void sum_share(int replica, const Bucket& bucket) override;
  void collect_shares(int replica, const Bucket& bucket) override;

  std::vector<Stream*> streams_;
  std::vector<DeviceMemory> sums_, terms_;  // [replica]: the largest share
};

}  // namespace pipetrain
