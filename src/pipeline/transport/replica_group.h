// All-reduce of the gradients of a stage's replicas, in replica order, so that all end with the
// same bits. Gradients are reduced in buckets: a bucket is summed as soon as every replica has
// completed it, while the backward computes the next.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "pipeline/program/event.h"
#include "pipeline/transport/bucket_floats.h"
#include "pipeline/transport/channel.h"

namespace pipetrain {

/// New weights in a replica's memory, once their owner has written them.
struct OwnedWeights {
  int owner = 0;  // replica
  std::span<float> values;
};

class ReplicaGroup {
 public:
  struct Bucket {
    std::size_t first = 0, last = 0;  // gradients
  };
  /// Puts gradients of so many floats into buckets, in their order.
  static std::vector<Bucket> divide(const std::vector<std::size_t>& sizes, BucketFloats buckets);

  /// `sizes`: floats of each gradient, in the order in which a backward completes them.
  /// `here`: how many of the replicas are in this process; 0: all.
  ReplicaGroup(int replicas, const std::vector<std::size_t>& sizes, BucketFloats buckets = {},
               int here = 0);
  virtual ~ReplicaGroup() = default;

  /// Resets the group after an aborted round.
  virtual void reset();
  /// Registers a replica's gradients, in the order of the sizes. Before the first reduce().
  void bind(int replica, std::vector<std::span<float>> gradients);
  /// Has gradients summed as the upper part of a tree (sum_tree.h), not in replica order.
  virtual void sum_as_tree() { as_tree_ = true; }
  bool sums_as_tree() const { return as_tree_; }
  /// Has each replica's gradients rounded to bfloat16 before they are summed, and the sums, too.
  virtual void use_bfloat16() { as_bfloat16_ = true; }
  /// Marks a gradient as complete: the replica has added its last micro-batch.
  void complete(int replica, std::size_t gradient);
  /// Sets the instruction of a replica's next reduce().
  virtual void at_instruction(int /*replica*/, int /*instruction*/) {}
  /// Waits for the others and replaces the gradients of this replica by the sum over all
  /// contributing replicas. `contributes`: whether this replica added a micro-batch. Every replica
  /// calls it once per step. Throws ChannelAborted.
  virtual void reduce(int replica, bool contributes);
  /// Whether reduce() enqueues on the replicas' streams: it then needs no complete() and no
  /// synchronization before it.
  virtual bool in_streams() const { return false; }
  /// Whether some replicas are in other processes. gather() then is an all-gather.
  virtual bool is_remote() const { return false; }
  virtual std::vector<std::string> gather(int /*replica*/, std::string /*mine*/) { return {}; }
  /// The buckets of the round so far: bytes, and steady_seconds() from when they left until their
  /// sums were here. None where they are summed in reduce().
  virtual std::vector<BucketEvent> bucket_events() { return {}; }
  /// Where replicas share updates: waits for the others and copies the weights that they own. All
  /// replicas pass the same weights in the same order. Throws ChannelAborted.
  virtual void share_weights(int replica, std::vector<OwnedWeights> weights);
  /// Waits for the other replicas of this process. Throws ChannelAborted.
  void meet() { barrier_.arrive_and_wait(); }
  void abort();

  int replicas() const { return static_cast<int>(members_.size()); }

 protected:
  struct Member {
    std::vector<std::span<float>> gradients;
    std::vector<std::size_t> missing;  // [buckets]: gradients not yet complete
    bool absent = false;               // takes part in this step without a gradient
    std::vector<OwnedWeights> weights;
  };
  void restart(Member& member) const;
  bool is_aborted();
  Member& member(int replica) { return members_[static_cast<std::size_t>(replica)]; }
  /// The part of a gradient that one replica sums.
  std::span<float> share(std::span<float> gradient, int replica) const;
  /// Sums what the replicas have of some gradient, one after the other; in a tree, null for those
  /// without. `out` may be one of the parts.
  void add_up_parts(std::span<const float* const> parts, std::span<float> out) const;
  /// Sums the replica's share of the elements over all replicas, in their order.
  virtual void sum_share(int replica, const Bucket& bucket);
  /// A replica has completed a bucket, or takes part without one.
  virtual void bucket_completed() { changed_.notify_all(); }
  /// Takes the other replicas' shares over from them.
  virtual void collect_shares(int replica, const Bucket& bucket);

  std::vector<Bucket> buckets_;
  std::vector<Member> members_;
  std::mutex mutex_;  // of the members' counts and aborted_
  std::condition_variable changed_;
  bool aborted_ = false;
  bool as_tree_ = false, as_bfloat16_ = false;

 private:
  std::vector<std::size_t> bucket_of_;  // [gradients]
  Barrier barrier_;
};

}  // namespace pipetrain
