// The thread that sends and receives all values between processes:
//
//   RemoteLink ─send→ memory of the stage ─→ message ─→ receive buffer ─→ RemoteLink
//        ←release─ when it has left        |      into a free one, early     ─send→
//
// It polls for completed messages and sleeps in between, so that the cores are free for the stages.
// It also sends and receives heartbeats.
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
  /// Distinct tags of one link: more than micro-batches in flight.
  static constexpr int kMicroBatches = 1'024;

  /// `failed` is called at most once a round, from the thread of this class, when another process
  /// has failed or messages have. `state`: what this process waits for (empty while a device
  /// computes), and its progress.
  MessageThread(ProcessGroup& group, std::function<void(std::exception_ptr)> failed,
                std::function<std::pair<std::string, std::uint64_t>()> state,
                double timeout_seconds);
  ~MessageThread();
  MessageThread(const MessageThread&) = delete;
  MessageThread& operator=(const MessageThread&) = delete;

  /// A micro-batch that another process sends, and the memory of its buffer.
  struct Arrival {
    int micro_batch = 0;
    int peer = 0;
    int slot = 0;
    std::vector<ExchangedSpan> spans;
  };
  /// The messages of a link to one replica of a stage, in the order of its receives; they share its
  /// buffers.
  struct Inbox {
    int link = 0;
    Channel* channel = nullptr;  // that wakes the receiver
    std::vector<Arrival> arrivals;
    std::vector<bool> held;  // slots
    std::size_t posted = 0;  // arrivals
  };

  /// Called when all processes have created this thread.
  void expect_signs_of_life();
  /// Begins a round without pending receives.
  void start_round();
  /// Adds the receives of one replica in this round. Returns the inbox's number.
  int add(Inbox inbox);
  /// Sends a micro-batch's values; the channel's entry is released when they have left.
  void send(int link, int micro_batch, int peer, Channel& channel,
            std::vector<ExchangedSpan> spans);
  /// Frees a slot of an inbox.
  void release(int inbox, int slot);
  /// Waits until everything has been sent. Throws ChannelAborted.
  void finish_round();
  /// Aborts the round: nothing more is sent or received, but messages in flight may still use their
  /// memory.
  void abort();
  /// Ends the thread. Returns whether messages may still be in flight and use their memory, which
  /// is known only after the thread has ended.
  bool stop();

 private:
  struct Message {
    std::vector<Processes::Request> requests;
    Channel* channel = nullptr;
    int micro_batch = 0;
    const std::byte* base = nullptr;  // of a received message; null: it was sent
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
