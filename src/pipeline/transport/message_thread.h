// The thread of a process that moves values between processes, and the only one that does:
//
//   RemoteLink ─send→ memory of the stage ─→ message ─→ receive buffer ─→ RemoteLink
//        ←release─ when it has left        |      into a free one, early     ─send→
//
// It asks for what is done instead of waiting for it, and sleeps in between, so that cores are left
// to the stages. It also tells the other processes that this one is there, and listens to them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "pipeline/transport/channel.h"
#include "pipeline/transport/exchange.h"
#include "processes/process_group.h"

namespace pipetrain {

class MessageThread {
 public:
  /// Micro-batches of one link that are told apart, by their tags: more than are ever under way.
  static constexpr int kMicroBatches = 1'024;

  /// `failed` is called at most once a round, from the thread of this class, when another process
  /// has failed or messages have. `state`: whom this process waits for (nothing while somebody
  /// computes), and its progress.
  MessageThread(ProcessGroup& group, std::function<void(std::exception_ptr)> failed,
                std::function<std::pair<std::string, std::uint64_t>()> state,
                double timeout_seconds);
  ~MessageThread();
  MessageThread(const MessageThread&) = delete;
  MessageThread& operator=(const MessageThread&) = delete;

  /// A micro-batch that another process sends, and the spans of the buffer that it is for.
  struct Arrival {
    int micro_batch = 0;
    int peer = 0;
    int slot = 0;
    std::vector<ExchangedSpan> spans;
  };
  /// What other processes send over a link to one replica of a stage, in the order of its receives:
  /// they share its buffers.
  struct Inbox {
    int link = 0;
    Channel* channel = nullptr;  // that tells the receiver
    std::vector<Arrival> arrivals;
    std::vector<bool> held;  // slots
    std::size_t posted = 0;  // arrivals
  };

  /// All processes have such a thread now.
  void expect_signs_of_life();
  /// Begins a round: nothing is to be received.
  void start_round();
  /// Something is to be received in this round. Returns the inbox's number.
  int add(Inbox inbox);
  /// A micro-batch's values are to go; the channel's entry is released when they have gone.
  void send(int link, int micro_batch, int peer, Channel& channel,
            std::vector<ExchangedSpan> spans);
  /// What lies in a slot of an inbox is no longer read.
  void release(int inbox, int slot);
  /// Waits until all has gone. Throws ChannelAborted.
  void finish_round();
  /// Gives the round up: nothing is sent or received any more, but messages that are under way may
  /// still use their memory.
  void abort();
  /// Ends the thread. Returns whether messages may still be under way and use their memory: only
  /// now is that known, since the thread itself may be giving the round up.
  bool stop();

 private:
  struct Message {
    std::vector<Processes::Request> requests;
    Channel* channel = nullptr;
    int micro_batch = 0;
    const std::byte* base = nullptr;  // of what has come; null: it was sent
  };
  void work();
  void post_receives();
  bool look_at_messages();
  void say_alive();
  static int tag_of(int link, int micro_batch);

  ProcessGroup& group_;
  std::function<void(std::exception_ptr)> failed_;
  std::function<std::pair<std::string, std::uint64_t>()> state_;
  const double timeout_seconds_, period_seconds_;
  double said_alive_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Inbox> inboxes_;
  std::vector<Message> open_;
  std::size_t sending_ = 0;
  bool wakes_ = false, aborted_ = false, reported_ = false, stopping_ = false, expects_ = false;
  std::thread thread_;
};

}  // namespace pipetrain
