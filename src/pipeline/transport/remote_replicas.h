// All-reduce between replicas in several processes, in host memory, with the bits of replicas in
// one process. Every process sums a share of each bucket over all replicas, in their order, as soon
// as the backward has completed the bucket everywhere:
//
//   process 0, replicas 0 1:   a0 a1 | b0 b1      to 1: b0 b1     sums a0+a1+a2, hands it to 1
//   process 1, replica 2:      a2    | b2         to 0: a2        sums b0+b1+b2, hands it to 0
//
// Large pieces of gradients leave from the memory of the stage and are replaced there by their
// sums; small ones, and all of them as bfloat16, are packed into one message. Where processes can
// read each other's memory, they only send the addresses of pieces and sums, and the receiver reads
// them from there, gradients in blocks that fit the cache while they are added.
//
// In a tree of sums whose subtrees are those of processes, each process joins its own replicas
// first and sends one part.
//
// The sum of a gradient that one replica alone needs, which then hands the new weights to all
// others, stays in that replica's process.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "pipeline/transport/message_thread.h"
#include "pipeline/transport/replica_group.h"
#include "processes/process_group.h"

namespace pipetrain {

class RemoteReplicas final : public ReplicaGroup, public MessageTask {
 public:
  /// Tags that the replicas of one stage take.
  static constexpr int tags(int replicas) { return kPhases * replicas; }

  /// `process_of`: by replica. `first_tag`: the first of tags() unused ones. `owners`: which
  /// replica needs the sum of each gradient; below 0: all do.
  RemoteReplicas(ProcessGroup& group, MessageThread& messages, std::vector<int> process_of,
                 int first_tag, const std::vector<std::size_t>& sizes,
                 const std::vector<int>& owners, BucketFloats buckets);

  void sum_as_tree() override;
  void use_bfloat16() override;
  void reset() override;
  void reduce(int replica, bool contributes) override;
  bool is_remote() const override { return true; }
  std::vector<std::string> gather(int replica, std::string mine) override;
  std::vector<BucketEvent> bucket_events() override;
  void share_weights(int replica, std::vector<OwnedWeights> weights) override;

  bool go_on() override;
  bool is_open() const override { return sent_ > 0; }

 private:
  enum Phase { kParts, kSums, kTaken, kSizes, kTexts, kWeights, kPhases };
  using Requests = std::vector<Processes::Request>;
  struct Piece {
    std::size_t gradient = 0, first = 0, count = 0;  // floats
    std::size_t place = 0;                           // in Sum::received
  };
  /// What a process sums of a bucket.
  struct Share {
    std::vector<Piece> pieces;
    std::size_t handed_on_pieces = 0;  // the first, whose sums all processes need
    std::size_t packed_floats = 0, other_floats = 0;
    std::span<const Piece> handed_on() const { return {pieces.data(), handed_on_pieces}; }
  };
  /// What one message carries: floats, or their addresses for a process that can read our memory.
  /// The first entry of a part says whether the replica has any gradient. The first address of sums
  /// is unused: no message is empty.
  struct Parcel {
    std::vector<float> floats;
    std::vector<std::uint16_t> narrow;     // the same as bfloat16
    std::vector<std::uint64_t> addresses;  // of pieces
  };
  /// A bucket on its way. The buffers are kept: messages in flight may outlive a failure.
  struct Sum {
    std::vector<Parcel> packed_parts;  // [here's replicas × processes]
    std::vector<Parcel> received;      // [replicas]: of other processes, our share
    std::vector<Parcel> packed_sums;   // [processes]
    Requests parts, part_sends, sums, sum_sends;
    Requests readers;  // messages from and to those that read sums
    std::int64_t bytes = 0;
    double left = 0, taken = 0;  // steady_seconds()
  };
  bool is_here(int replica) const {
    return process_of_[static_cast<std::size_t>(replica)] == rank_;
  }
  /// The replica that represents a process; `process`: its number among those that have any.
  int first_of(std::size_t process) const;
  int first_here() const { return first_of(here_); }
  bool is_absent(int replica);
  bool is_absent(const Sum& sum, int replica);
  void join_here(std::size_t bucket);
  int tag(int replica, Phase phase) const { return first_tag_ + kPhases * replica + phase; }
  void share_out(std::size_t bucket, const std::vector<int>& owners);
  void bucket_completed() override;
  bool is_complete(std::size_t bucket);
  std::span<float> part(int replica, const Piece& piece) {
    return member(replica).gradients[piece.gradient].subspan(piece.first, piece.count);
  }
  bool is_packed(const Piece& piece) const;
  void place_pieces();
  void post_send(const void* from, std::size_t bytes, int peer, int tag, Requests& requests);
  void post_receive(void* to, std::size_t bytes, int peer, int tag, Requests& requests);
  void post_send(Parcel& parcel, int peer, int tag, Requests& requests);
  /// The first `floats` of a parcel.
  void post_receive(Parcel& parcel, std::size_t floats, int peer, int tag, Requests& requests);
  void post_addresses(std::vector<std::uint64_t>& addresses, int peer, int tag, Requests& requests);
  void expect_addresses(std::vector<std::uint64_t>& addresses, std::size_t count, int peer, int tag,
                        Requests& requests);
  static std::uint64_t address_of(const float* floats) {
    return reinterpret_cast<std::uint64_t>(floats);
  }
  void read(int peer, std::uint64_t from, std::span<float> to);
  void pack(Parcel& parcel) const;
  void unpack(Parcel& parcel) const;
  void expect_parts(std::size_t bucket);
  void send_parts(std::size_t bucket);
  void send_part(std::size_t bucket, int replica, std::size_t process);
  void add_up(std::size_t bucket);
  void add_up_piece(std::size_t bucket, std::size_t piece);
  void hand_on(std::size_t bucket, std::size_t process);
  void expect_sums(std::size_t bucket);
  void take_over(std::size_t bucket);
  void take_sums(Sum& sum, std::size_t process, const Share& share);
  void finish();
  bool is_done(Requests& requests);
  void wait_for(Requests& requests);
  struct WeightRequests {
    Requests addresses, floats, sends;
  };
  void post_weights(std::vector<OwnedWeights>& mine, WeightRequests& requests);
  void read_weights(std::vector<OwnedWeights>& mine);

  ProcessGroup& group_;
  MessageThread& messages_;
  const int rank_;
  std::vector<int> process_of_;
  std::vector<int> processes_;  // that have replicas
  std::size_t here_ = 0;        // this one among them
  std::vector<int> senders_;  // replicas whose parts are summed: all, or the first of each process
  int first_tag_;
  std::vector<std::size_t> sizes_;
  // Buckets of this step, counted by the message thread: sent, summed, with receives posted for the
  // sums of other processes, and with those sums copied into the gradients.
  std::atomic<std::size_t> sent_{0};
  std::size_t summed_ = 0, expected_ = 0, taken_ = 0;
  std::vector<Sum> on_way_;               // [buckets]
  std::vector<std::vector<float>> read_;  // [replicas], a part of a piece of another process
  bool any_read_ = false;                 // whether some other process can read this one's memory,
  bool any_messages_ = false;             // and whether some cannot
  std::vector<std::uint64_t> weight_addresses_;  // of the weights that replicas own
  std::vector<std::vector<Share>> shares_;       // [buckets][processes]
  std::int64_t steps_ = 0;                       // that are finished; with mutex_
  std::vector<BucketEvent> bucket_events_;       // of the round; with mutex_
  std::vector<std::int64_t> step_of_;            // [replicas], of its next reduce()
  std::vector<std::string> texts_;               // [replica]
  std::vector<std::uint64_t> text_sizes_;
};

}  // namespace pipetrain
