// All-reduce between replicas on different GPUs with a collective of the library: in its order of
// summation, with the same bits on every replica. The stage's thread only waits until the
// collective is issued.
#pragma once

#include <memory>
#include <vector>

#include "pipeline/transport/exchange.h"
#include "pipeline/transport/replica_group.h"

namespace pipetrain {

class CommunicatedReplicas final : public ReplicaGroup {
 public:
  /// `devices`: the program's device of each replica; `streams`: where it computes; null: in
  /// another process.
  CommunicatedReplicas(const std::vector<std::size_t>& sizes, std::vector<Stream*> streams,
                       std::vector<int> devices, Exchange& exchange);

  bool in_streams() const override { return true; }
  void at_instruction(int replica, int instruction) override;
  void reduce(int replica, bool contributes) override;

 private:
  std::vector<Stream*> streams_;
  std::vector<int> devices_;
  Exchange& exchange_;
  std::vector<int> operations_;                      // [replica]: exchange of its next reduce()
  std::vector<std::unique_ptr<StreamPoint>> ready_;  // [replica]: its gradients are complete
  std::vector<DeviceMemory> zeros_;  // [replica]: for one that has run no micro-batch
  std::size_t largest_ = 0;
};

}  // namespace pipetrain
