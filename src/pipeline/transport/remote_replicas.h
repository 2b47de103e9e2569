// All-reduce between replicas in several processes, in host memory, with the bits of replicas in
// one process. Every process sums a share of each gradient over all replicas, in their order:
//
//   process 0, replicas 0 1:   a0 a1 | b0 b1      to 1: b0 b1     sums a0+a1+a2, hands it to 1
//   process 1, replica 2:      a2    | b2         to 0: a2        sums b0+b1+b2, hands it to 0
#pragma once

#include <string>
#include <vector>

#include "pipeline/transport/replica_group.h"
#include "processes/process_group.h"

namespace pipetrain {

class RemoteReplicas final : public ReplicaGroup {
 public:
  /// Tags that the replicas of one stage take.
  static constexpr int tags(int replicas) { return 4 * replicas; }

  /// `process_of`: by replica. `first_tag`: the first of tags() unused ones.
  RemoteReplicas(ProcessGroup& group, std::vector<int> process_of, int first_tag,
                 const std::vector<std::size_t>& sizes);

  void complete(int, std::size_t) override {}
  void reduce(int replica, bool contributes) override;
  bool is_remote() const override { return true; }
  std::vector<std::string> gather(int replica, std::string mine) override;

 private:
  enum Phase { kParts, kSums, kSizes, kTexts };
  bool is_here(int replica) const {
    return process_of_[static_cast<std::size_t>(replica)] == rank_;
  }
  int tag(int replica, Phase phase) const { return first_tag_ + 4 * replica + phase; }
  std::span<float> share_of(std::span<float> gradient, std::size_t process) const;
  std::size_t share_floats(std::size_t process) const;
  void add_up();
  void wait_for(std::vector<Processes::Request>& requests);

  ProcessGroup& group_;
  const int rank_;
  std::vector<int> process_of_;
  std::vector<int> processes_;  // that have replicas
  std::size_t here_ = 0;        // this one among them
  int first_tag_;
  std::vector<std::size_t> sizes_;
  std::vector<std::vector<float>> sent_, received_,
      sums_;                        // kept: messages in flight may outlive a failure
  std::vector<std::string> texts_;  // [replica]
  std::vector<std::uint64_t> text_sizes_;
};

}  // namespace pipetrain
