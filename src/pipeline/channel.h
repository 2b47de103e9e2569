// A channel hands one edge's values from stage to stage inside a process, without copying: the
// sender publishes where its values lie, the receiver reads them there and says when it is done,
// the sender then reuses the memory. Units go through in order.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <vector>

namespace pipetrain {

class Channel {
 public:
  /// A channel that remembers at most `capacity` units that are published and not yet released.
  explicit Channel(int capacity) : base_(static_cast<std::size_t>(capacity)) {}

  /// Forgets everything: the start of a round.
  void reset();
  /// Waits until unit `unit - reuse` is released, so that its memory may be overwritten. Throws
  /// ChannelAborted.
  void wait_released(int unit, int reuse);
  /// Publishes the memory that holds the values of the next unit.
  void send(int unit, const std::byte* base);
  /// Waits for a unit and returns its memory. Throws ChannelAborted.
  const std::byte* receive(int unit);
  /// Says that every unit up to this one has been read for the last time.
  void release(int unit);
  /// Wakes everybody with ChannelAborted, now and later, until reset().
  void abort();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<const std::byte*> base_;
  int sent_ = 0;      // units published
  int released_ = 0;  // units released
  bool aborted_ = false;
};

/// Thrown by a waiting stage when another one has failed. The other one's error is the one to
/// report.
struct ChannelAborted : std::exception {
  const char* what() const noexcept override { return "another stage failed"; }
};

/// Where all stages meet. Throws ChannelAborted.
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
