// All-reduce between replicas in several processes, in host memory, with the bits of replicas in
// one process. Every process sums a share of each bucket over all replicas, in their order, as soon
// as the backward has completed the bucket everywhere:
//
//   process 0, replicas 0 1:   a0 a1 | b0 b1      to 1: b0 b1     sums a0+a1+a2, hands it to 1
//   process 1, replica 2:      a2    | b2         to 0: a2        sums b0+b1+b2, hands it to 0
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "pipeline/transport/message_thread.h"
#include "pipeline/transport/replica_group.h"
#include "processes/process_group.h"

namespace pipetrain {

class RemoteReplicas final : public ReplicaGroup, public MessageTask {
 public:
  /// Tags that the replicas of one stage take.
  static constexpr int tags(int replicas) { return 4 * replicas; }

  /// `process_of`: by replica. `first_tag`: the first of tags() unused ones.
  RemoteReplicas(ProcessGroup& group, MessageThread& messages, std::vector<int> process_of,
                 int first_tag, const std::vector<std::size_t>& sizes, BucketFloats buckets);

  void reset() override;
  void reduce(int replica, bool contributes) override;
  bool is_remote() const override { return true; }
  std::vector<std::string> gather(int replica, std::string mine) override;

  bool go_on() override;
  bool is_open() const override { return sent_ > 0; }

 private:
  enum Phase { kParts, kSums, kSizes, kTexts };
  using Requests = std::vector<Processes::Request>;
  /// A bucket on its way. The buffers are kept: messages in flight may outlive a failure.
  struct Sum {
    std::size_t floats = 0;
    std::vector<std::vector<float>> sent;      // [here's replicas × processes]
    std::vector<std::vector<float>> received;  // [replicas]: of other processes, our share
    std::vector<std::vector<float>> sums;      // [processes]: shares of the sum
    Requests sends, parts, totals;
  };
  bool is_here(int replica) const {
    return process_of_[static_cast<std::size_t>(replica)] == rank_;
  }
  int first_here() const;
  int tag(int replica, Phase phase) const { return first_tag_ + 4 * replica + phase; }
  void bucket_completed() override;
  bool is_complete(std::size_t bucket);
  /// First and last float of a process's share of a bucket, whose gradients lie one after another.
  std::array<std::size_t, 2> share_of(std::size_t bucket, std::size_t process) const;
  /// Calls `body` with each part of a replica's gradients between two floats of a bucket.
  void each_part(int replica, std::size_t bucket, std::array<std::size_t, 2> floats,
                 const std::function<void(std::span<float>)>& body);
  void expect(std::size_t bucket);
  void send_parts(std::size_t bucket);
  void add_up(std::size_t bucket);
  void take_over(std::size_t bucket);
  void finish();
  bool is_done(Requests& requests);
  void wait_for(Requests& requests);

  ProcessGroup& group_;
  MessageThread& messages_;
  const int rank_;
  std::vector<int> process_of_;
  std::vector<int> processes_;  // that have replicas
  std::size_t here_ = 0;        // this one among them
  int first_tag_;
  std::vector<std::size_t> sizes_;
  // Of the step, by the message thread: how many buckets have been sent, added up and taken over.
  std::atomic<std::size_t> sent_{0};
  std::size_t summed_ = 0, taken_ = 0;
  std::vector<Sum> on_way_;            // [buckets]
  std::int64_t steps_ = 0;             // that are finished; with mutex_
  std::vector<std::int64_t> step_of_;  // [replicas], of its next reduce()
  std::vector<std::string> texts_;     // [replica]
  std::vector<std::uint64_t> text_sizes_;
};

}  // namespace pipetrain
