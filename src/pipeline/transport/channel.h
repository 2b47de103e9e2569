// A zero-copy channel between two stages of one process: the sender publishes the address of its
// values, the receiver reads them there and releases them, and the sender then reuses the memory.
// Micro-batches are addressed by number: the replicas of a stage send theirs in any order.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

namespace pipetrain {

class StreamPoint;

class Channel {
 public:
  /// With a latency a link is emulated: a micro-batch arrives this much later.
  explicit Channel(double latency_seconds = 0) : latency_seconds_(latency_seconds) {}
  /// Resets the channel for the micro-batches of a round.
  void reset(int micro_batches);
  /// Publishes the memory that holds a micro-batch's values. Error (kInternal) if it has been
  /// already. `written`: the point of a device's stream that completes them; null: complete.
  void send(int micro_batch, const std::byte* base, const StreamPoint* written = nullptr);
  /// Whether receive() or wait_released() would return at once.
  bool is_there(int micro_batch);
  bool is_released(int micro_batch);
  /// Waits for a micro-batch and returns its memory; `there_at` gets its arrival time
  /// (steady_seconds). Throws ChannelAborted.
  const std::byte* receive(int micro_batch, double* there_at = nullptr,
                           const StreamPoint** written = nullptr);
  /// Says that a micro-batch has been read for the last time: `read`, at which point of a device's
  /// stream; null: now.
  void release(int micro_batch, const StreamPoint* read = nullptr);
  /// Waits until a micro-batch is released, so that its memory may be overwritten, after the
  /// returned point if there is one. Throws ChannelAborted.
  const StreamPoint* wait_released(int micro_batch);
  /// Wakes all waiting threads with ChannelAborted, now and later, until reset().
  void abort();

 private:
  enum class State : std::uint8_t { kNothing, kSent, kReleased };
  struct Entry {
    const std::byte* base = nullptr;
    const StreamPoint* done = nullptr;  // written, then read
    double there_at = 0;
    State state = State::kNothing;
  };
  Entry& at(int micro_batch) { return entries_.at(static_cast<std::size_t>(micro_batch)); }

  const double latency_seconds_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Entry> entries_;
  bool aborted_ = false;
};

/// Thrown in waiting stages when another one has failed, whose error is the one to report.
struct ChannelAborted : std::exception {
  const char* what() const noexcept override { return "another stage failed"; }
};

/// A barrier for all stages or the replicas of one. Throws ChannelAborted.
class Barrier {
 public:
  explicit Barrier(int count) : count_(count) {}
  void arrive_and_wait();
  void abort();
  void reset();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_;
  int arrived_ = 0;
  int generation_ = 0;
  bool aborted_ = false;
};

}  // namespace pipetrain
