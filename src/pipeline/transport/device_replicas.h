// All-reduce between replicas on GPUs by copies between devices, in the same order and with the
// same bits as in host memory.
#pragma once

#include <vector>

#include "device/device.h"
#include "pipeline/transport/replica_group.h"

namespace pipetrain {

class DeviceReplicaGroup final : public ReplicaGroup {
 public:
  /// `streams`: the compute stream of each replica.
  DeviceReplicaGroup(const std::vector<std::size_t>& sizes, std::vector<Stream*> streams);

 private:
  void sum_share(int replica, const Bucket& bucket) override;
  void collect_shares(int replica, const Bucket& bucket) override;

  std::vector<Stream*> streams_;
  std::vector<DeviceMemory> sums_, terms_;  // [replica]: the largest share
};

}  // namespace pipetrain
