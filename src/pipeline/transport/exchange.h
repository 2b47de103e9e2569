// Exchanges between devices (NCCL) instead of copies: one thread per device issues all its sends,
// receives and reduces on one stream, in the order of the plan (communication_plan.h). Stages only
// offer their buffers when ready:
//
//   stage's thread:  forward, offer(send) ─┐                    offer(receive) … wait → compute
//   device's thread:      waits until every part of a group is offered, issues it, marks it ─┘
//
// A failed thread or a group that times out aborts the exchanges of all. The time of a group runs
// from when the streams of all its devices in this process have reached it: until then others may
// still compute, and it has ten times as long.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/index.h"
#include "device/communicator.h"
#include "device/device.h"
#include "pipeline/schedule/communication_plan.h"

namespace pipetrain {

/// Device memory that takes part in an exchange.
struct ExchangedSpan {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

class ProcessGroup;

class Exchange {
 public:
  /// `devices`: by device of the programs; null: of another process. `ranks`: of those; one that
  /// stands there several times is one rank. `placement` as in the programs. `failed` is called at
  /// most once a round, from a thread of this class. Connections are made in the first round.
  /// `processes`: that exchange with each other; null: one.
  Exchange(Collectives& collectives, std::vector<Device*> devices, std::vector<int> ranks,
           const std::vector<std::vector<int>>& placement, double timeout_seconds,
           std::function<void(std::exception_ptr)> failed, ProcessGroup* processes = nullptr);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Whether transfers between these two devices use this exchange.
  bool crosses(int from_device, int to_device) const {
    return rank_of_device_[at(from_device)] != rank_of_device_[at(to_device)];
  }
  /// Whether the replicas of a stage all-reduce their gradients through this exchange.
  bool reduces(const Program& program, int stage) const {
    return replicas_are_apart(program, stage, rank_of_device_);
  }

  /// Begins a round after all work of the last one is done; collective over processes. The program
  /// must outlive the round, with `keep` also this object, which then caches its plan.
  void start_round(const Program& program, bool keep);
  /// The operation of an instruction, or of a micro-batch on an edge of the program; -1: none.
  int operation_at(int device, int instruction) const {
    return plan_->operation_at[at(device)][at(instruction)];
  }
  int operation_of(int edge, int micro_batch) const {
    return plan_
        ->operation_of_micro_batch[at(edge) * at(program_->micro_batches) + at(micro_batch)];
  }
  /// Offers a device's part of an operation, ready after `after` (null: now): the memory to send,
  /// to receive into, or to all-reduce in place. The spans have the same order at all ends.
  void offer(int operation, int device, std::vector<ExchangedSpan> spans, const StreamPoint* after);
  /// Waits until a device's part has been issued and returns the point after it, valid for the
  /// round. Throws ChannelAborted.
  const StreamPoint* wait(int operation, int device);
  /// Waits until a device has finished its exchanges of this round, or was aborted.
  void finish(int device);
  /// Aborts the round's exchanges on all devices; the next round reconnects.
  void abort();

 private:
  struct Rank;
  struct Part {
    bool offered = false;
    bool begun = false;  // its device's stream was seen to reach it
    std::vector<ExchangedSpan> spans;
    const StreamPoint* after = nullptr;
    const StreamPoint* done = nullptr;
  };
  /// A group that was issued and was pending at the last check.
  struct Open {
    std::size_t group;
    double begun = 0;  // when its stream was first seen to reach it; 0: not yet
    double met = 0;    // when the streams of all devices here were
  };

  void work(Rank& rank);
  void run_round(Rank& rank);
  void connect(Rank& rank);
  void issue(Rank& rank, std::size_t group);
  void settle(Rank& rank, Communicator& communicator, const std::string& what);
  /// Checks pending groups; Error (kDevice) when one times out.
  void look_after(Rank& rank);
  void release(Rank& rank);
  Part& part(int operation, int device);
  bool all_offered(const Rank& rank, const std::vector<int>& group);
  void note_begun(const Rank& rank, std::size_t group);
  bool all_have_begun(const Rank& rank, std::size_t group);
  /// An operation as text: "stage 1 waits for the activations of …".
  std::string describe(const Rank& rank, int operation) const;
  void stop_if_aborted();

  Collectives& collectives_;
  std::vector<Device*> devices_;
  std::vector<int> rank_of_device_;
  double timeout_seconds_;
  std::function<void(std::exception_ptr)> failed_;
  ProcessGroup* processes_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::vector<int>> sums_;  // sets of ranks that add up gradients, each once

  std::mutex mutex_;
  std::condition_variable changed_;
  const Program* program_ = nullptr;
  std::shared_ptr<const CommunicationPlan> plan_;
  std::map<const Program*, std::shared_ptr<const CommunicationPlan>> kept_;
  std::vector<std::vector<Part>> parts_;  // [operations][its devices]
  CommunicatorId edges_id_{};
  std::vector<CommunicatorId> sums_ids_;
  int epoch_ = 0;  // of connections: a failed round ends one
  bool aborted_ = false, reported_ = false, stopping_ = false;
  int round_ = 0;
};

}  // namespace pipetrain
