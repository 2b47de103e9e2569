// The thread that sends and receives all values between processes:
//
//   RemoteLink ─send→ memory of the stage ─→ message ─→ receive buffer ─→ RemoteLink
//        ←release─ when it has left        |      into a free one, early     ─send→
//
// It polls for completed messages. In between it sleeps while a stage here computes, so that the
// cores are free for the stages: longer if no device waits and all messages under way are short
// receives, which arrive without polling. Otherwise it only yields, since messages that the
// processes copy themselves make progress only while both poll. It also handles heartbeats.
#pragma once

#include <chrono>
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

/// Messages that belong to no link: the sums of replicas.
class MessageTask {
 public:
  virtual ~MessageTask() = default;
  /// Called in the message thread: makes progress without blocking. Returns whether it made any.
  virtual bool go_on() = 0;
  /// Whether messages are under way.
  virtual bool is_open() const = 0;
};

class MessageThread {
 public:
  /// `failed` is called from this thread when another process or a message has failed, at most once
  /// per round. `state`: what this process waits for (empty while a device computes), and its
  /// progress. `computes`: whether a device of this process computes. `notify`: called from any
  /// thread when messages have arrived or left; may be empty.
  MessageThread(ProcessGroup& group, std::function<void(std::exception_ptr)> failed,
                std::function<std::pair<std::string, std::uint64_t>()> state,
                std::function<bool()> computes, double timeout_seconds,
                std::function<void()> notify = {});
  ~MessageThread();
  MessageThread(const MessageThread&) = delete;
  MessageThread& operator=(const MessageThread&) = delete;

  /// Messages have moved, also such that another thread waits for.
  void say_moved() const {
    if (notify_) notify_();
  }

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

  /// Adds a task, which outlives the thread.
  void add(MessageTask& task);
  /// Has the thread look at messages and tasks now.
  void wake();
  /// Called when a device begins to wait for a message, and when it no longer does. While one
  /// waits, the thread polls often.
  void begin_wait();
  void end_wait();
  /// Called when all processes have created this thread.
  void expect_signs_of_life();
  /// The tags of a round's messages, the same in all processes: from `first` on each link has
  /// `of_link` of them, which its micro-batches take in turn. More than micro-batches in flight.
  struct LinkTags {
    int first = ProcessGroup::kFreeTag;
    int of_link = 1;
  };
  /// Begins a round without pending receives.
  void start_round(const LinkTags& tags);
  /// Adds the receives of one replica in this round. Returns the inbox's number.
  int add(Inbox inbox);
  /// Sends a micro-batch's values; the channel's entry is released when they have left.
  void send(int link, int micro_batch, int peer, Channel& channel,
            std::vector<ExchangedSpan> spans);
  /// Frees a slot of an inbox and posts what is received into it next.
  void release(int inbox, int slot);
  /// Waits until everything has been sent, and no longer expects anything. Throws ChannelAborted.
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
    bool needs_polling = true;        // moves only while both ends poll
  };
  void work();
  bool get_on(bool& has_open_tasks);
  bool rest(bool has_open_tasks);
  bool post_receives(Inbox& inbox);
  bool wakes_after_post(bool needs_polling);
  bool look_at_messages();
  void say_alive();
  int tag_of(int link, int micro_batch) const;

  ProcessGroup& group_;
  std::function<void(std::exception_ptr)> failed_;
  std::function<std::pair<std::string, std::uint64_t>()> state_;
  std::function<bool()> computes_;
  std::function<void()> notify_;
  const double timeout_seconds_, period_seconds_;
  std::vector<std::size_t> eager_bytes_;  // [processes], most of messages that need no polling
  double said_alive_ = 0;
  double moved_ = 0;  // when a message was last posted or completed
  std::chrono::microseconds pause_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  LinkTags tags_;
  std::vector<Inbox> inboxes_;
  std::vector<Message> open_;
  std::vector<MessageTask*> tasks_;
  std::size_t sending_ = 0;
  int waiting_ = 0;                                             // devices
  bool wakes_ = false, posted_ = false, polls_seldom_ = false;  // seldom: in rest()
  bool aborted_ = false, reported_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace pipetrain
