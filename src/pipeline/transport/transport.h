// All communication between the devices of a runtime: links for the edges between stages, and
// all-reduces for replicas. This class alone chooses the kind of each.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "pipeline/program/program.h"
#include "pipeline/transport/link.h"
#include "pipeline/transport/replica_group.h"

namespace pipetrain {

class Collectives;
class Device;
class Exchange;
class MessageThread;
class ProcessGroup;

struct TransportSettings {
  /// All edges between stages, each once.
  std::vector<LinkEdge> edges;
  /// By device of the programs; null: of another process; empty: all stages are in host memory.
  std::vector<Device*> devices;
  /// The physical device of each; with `collectives`.
  std::vector<int> ranks;
  Collectives* collectives = nullptr;  // null: copies from device to device
  ProcessGroup* processes = nullptr;   // null: this process runs all devices
  std::vector<int> process_of_device;  // with processes
  BucketFloats buckets;                // of replicas in several processes
  double latency_seconds = 0;          // of emulated links
  double timeout_seconds = 60;
  /// Called from threads of this object when an exchange, a message or another process fails.
  std::function<void(std::exception_ptr)> failed;
  /// What this process waits for (empty while a device computes), and its progress.
  std::function<std::pair<std::string, std::uint64_t>()> state;
  /// Whether a device of this process computes.
  std::function<bool()> computes;
  /// Called from any thread when messages from or to other processes have arrived or left.
  std::function<void()> notify;
};

class Transport {
 public:
  /// `program`: one of those that will be run; they place stages alike.
  Transport(const Program& program, TransportSettings settings);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// Before the first round: allocates receive buffers. `ends`: by device; null: of another
  /// process. They must outlive the rounds.
  void connect(std::vector<LinkEnd*> ends);
  /// Creates the all-reduce of a stage's replicas. `sizes` as for ReplicaGroup; `owners`: which
  /// replica needs the sum of each; below 0: all do. `streams`: where each replica computes; null:
  /// in host memory or in another process.
  ReplicaGroup& group_replicas(int stage, const std::vector<std::size_t>& sizes,
                               const std::vector<int>& owners, std::vector<Stream*> streams);
  ReplicaGroup& replica_group(int stage) const { return *groups_[static_cast<std::size_t>(stage)]; }
  /// Called when all processes have created their transport; starts the heartbeat timeout.
  void expect_signs_of_life();

  /// Begins a round. The program outlives it; `keep`: and this object.
  void start_round(const Program& program, bool keep);
  /// Called when the thread of a device has finished or aborted its part of the round; waits for
  /// its pending exchanges.
  void finish(int device);
  /// Whether devices exchange values (NCCL).
  bool exchanges() const { return exchange_ != nullptr; }
  /// The round has ended before its program: what is still to be exchanged never is.
  void drop_exchanges();
  /// Waits until everything has been sent to other processes. Throws ChannelAborted.
  void finish_round();
  /// The buckets of gradients of the round, `start_seconds` after which it began.
  std::vector<BucketEvent> bucket_events(double start_seconds) const;
  /// Wakes all waiting threads with ChannelAborted, now and until the next round.
  void abort();
  /// Ends the threads. Nothing more is sent, and no stream waits for other devices.
  void close();
  /// Whether messages of an aborted round may still use memory of stages.
  bool may_still_move() const { return may_still_move_; }

  /// Numbers of the edges that begin or end at a stage.
  std::span<const int> edges_from(int stage, bool gradient) const {
    return from_[static_cast<std::size_t>(2 * stage + (gradient ? 1 : 0))];
  }
  std::span<const int> edges_to(int stage, bool gradient) const {
    return to_[static_cast<std::size_t>(2 * stage + (gradient ? 1 : 0))];
  }
  const LinkEdge& edge(int number) const { return edges_[static_cast<std::size_t>(number)].stages; }
  /// The number of an edge between stages, or of one of the round's program; -1: no network hands
  /// anything over it.
  int edge_between(int from, int to, bool gradient) const;
  int edge_of(int program_edge) const {
    return edge_of_program_edge_[static_cast<std::size_t>(program_edge)];
  }
  /// The link of a micro-batch's edge in this round.
  Link& link(int edge, int micro_batch) const {
    return *links_[static_cast<std::size_t>(link_of(edge, micro_batch))];
  }
  /// Where the receive of a micro-batch stands in the list of its device, which is of this process;
  /// -1: nowhere.
  int receive_index(int edge, int micro_batch) const {
    return receive_index_[static_cast<std::size_t>(edge) *
                              static_cast<std::size_t>(program_->micro_batches) +
                          static_cast<std::size_t>(micro_batch)];
  }

 private:
  struct EdgeLinks {
    LinkEdge stages;
    std::vector<int> link_of;  // [sender's replicas × receiver's replicas]: index into links_
  };
  void add_edge(const LinkEdge& stages);
  std::unique_ptr<Link> make_across(int number, const LinkEdge& stages);
  bool crosses(int from_device, int to_device) const;
  int link_of(int edge, int micro_batch) const;  // index into links_
  int first_tag_of(int stage) const;
  std::vector<LinkRound> plan_round(const Program& program);

  TransportSettings settings_;
  const std::vector<std::vector<int>> placement_;
  std::vector<EdgeLinks> edges_;
  std::map<std::tuple<int, int, bool>, int> numbers_;  // of edges
  std::vector<std::vector<int>> from_, to_;            // [2 × stage + gradient]
  std::vector<std::unique_ptr<Link>> links_;
  std::mutex groups_mutex_;                            // abort() may come while they are made
  std::vector<std::unique_ptr<ReplicaGroup>> groups_;  // [stages]; null: one replica
  std::vector<LinkEnd*> ends_;
  bool may_still_move_ = false;

  const Program* program_;
  std::vector<int> edge_of_program_edge_;
  std::vector<int> receive_index_;  // [edges × micro-batches]

  std::unique_ptr<Exchange> exchange_;  // null: copies
  std::unique_ptr<MessageThread>
      messages_;  // null: one process. It reports failures to the exchange
};

}  // namespace pipetrain
