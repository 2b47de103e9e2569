// Control messages between the processes of a run: heartbeats, failures, and small collectives.
//
// Collectives are made of messages, so any point-to-point transport will do. A process that waits
// here also receives failure reports and stops waiting when another process has failed.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "processes/processes.h"

namespace pipetrain {

/// Seconds between the heartbeats of a process that is missed after so many seconds of silence.
inline double heartbeat_period(double timeout_seconds) {
  return std::clamp(timeout_seconds / 8, 0.05, 5.0);
}

class ProcessGroup {
 public:
  /// The tags below kFreeTag are the group's own.
  static constexpr int kNoticeTag = 1, kValuesTag = 2, kMeasureTag = 3, kLettersTag = 4,
                       kFreeTag = 16;

  explicit ProcessGroup(Processes& processes);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Whether this is process 0, which prints, writes files and decides.
  bool leads() const { return rank_ == 0; }
  Processes& processes() { return processes_; }
  /// "process 1 on node7", as far as that is known.
  std::string name_of(int rank) const;
  /// The machine of a process; empty before all have said it.
  std::string host_of(int rank) const;

  // All processes call these in the same order, one thread of each at a time. Error when another
  // process fails (its error) or interrupt() was called.

  /// Gathers the bytes of all processes at process 0; empty elsewhere.
  std::vector<std::string> gather(std::string_view mine);
  std::vector<std::string> all_gather(std::string_view mine);
  /// How many messages follow one another in an all_gather(): few processes send each other
  /// theirs, many send them to process 0, which sends all to each.
  int messages_to_gather() const { return size_ <= kMostPairs ? 1 : 2; }
  /// Broadcasts the bytes of process 0.
  std::string broadcast(std::string_view mine);
  /// `mine`: what has failed here, if anything. Error in all processes if it is so in any of them:
  /// their own, or that of the first one.
  void fail_together(const std::optional<Error>& mine);
  /// The first process that the last of these errors was of; -1: there was none.
  int failed_together() const { return failed_together_; }

  /// Finds out which processes can read each other's memory. Called once all are known to be of the
  /// same build; until then, none can.
  void find_readable_processes();
  /// Whether this process and another one can read each other's memory. Both get the same answer.
  bool can_read(int peer) const { return readable_[static_cast<std::size_t>(peer)] != 0; }
  /// Whether all processes can read those on their host; nothing if no host has two.
  std::optional<bool> hosts_read() const { return hosts_read_; }
  /// Copies memory of a process that can_read() is true for. Error (kDevice) if that fails, for
  /// example because it has ended.
  void read(int peer, std::uint64_t from, void* to, std::size_t bytes);

  // Point to point, in order; every send needs a receive.

  void send(std::string bytes, int peer);
  std::string receive(int peer);

  /// Wakes a thread of this process that waits here. An interrupted group can no longer be used.
  void interrupt();
  /// For who waits for something else from other processes. Error when one of them has failed or
  /// is silent, or interrupt() was called.
  void check();
  /// Keeps memory that messages on their way may still use.
  void keep(std::shared_ptr<void> memory);

  struct Failure {
    int rank = 0;
    ErrorKind kind = ErrorKind::kInternal;
    std::string text;  // with its frames
  };
  /// Receives pending reports of other processes; never blocks.
  void listen();
  /// The first failure reported by another process.
  std::optional<Failure> failure() const;
  /// Whether no process has reported a failure, and interrupt() was not called.
  bool can_go_on() const { return !interrupted_ && !failure(); }
  /// Throws that failure as an Error that names the process.
  void check_failure() const;
  /// Reports the failure of this process to all others, once.
  void say_failed(const Error& error);
  /// Waits until process 0 (on process 0: all others) has reported a failure too. False on timeout
  /// and once one that has not is lost.
  bool wait_for_failures(double seconds);

  /// Sends a heartbeat with what this process waits for: empty while a device computes. `progress`
  /// changes whenever work has been done.
  void say_alive(std::string_view waits_for, std::uint64_t progress);
  /// Sends the heartbeat of a process that computes, unless one was sent in the last `seconds`.
  void say_alive_if_quiet(double seconds);
  /// Starts the heartbeat timeout: waiting for a process that has been silent for this many seconds
  /// is an Error (kDevice). 0: back to the timeout given to expect_heartbeats().
  void expect_signs_of_life(double seconds);
  /// The same from now on, also between runs (heartbeat.h). 0: off.
  void expect_heartbeats(double seconds);
  /// Error (kDevice) if a process has been silent for this much longer than is allowed.
  void check_silence(double longer_seconds = 0) const;
  /// A description of a hang: who waits for whom when all processes have waited for this long, or
  /// which process has been silent for this long. Empty: no hang.
  std::string describe_hang(double seconds) const;

  /// Regular shutdown: all processes call it.
  void leave();

 private:
  static constexpr int kMostPairs = 8;
  struct Notice {
    std::int32_t failed = 0;  // else: alive
    std::int32_t kind = 0;
    std::uint64_t progress = 0;
    char text[1'000] = {};
  };
  struct Peer {
    Notice incoming;
    Processes::Request request = 0;
    std::string host;
    std::string waits_for;
    std::uint64_t progress = 0;
    double heard = 0;   // time of its last message
    double got_on = 0;  // time of its last progress
    bool failed = false;
  };
  struct Outgoing {
    Notice notice;
    Processes::Request request;
    int peer;
  };
  void say_alive_locked(std::string_view waits_for, std::uint64_t progress);
  void hear_all_locked(double now);
  void tell(int peer, const Notice& notice);
  void take_in(int rank);
  std::string describe_silence(double seconds) const;
  void listen_locked();
  /// A message and how much of it has been read.
  struct Message {
    std::uint64_t count = 0;
    std::string bytes;
    std::vector<Processes::Request> requests;
  };
  void check_interrupted() const;
  std::shared_ptr<Message> post(std::string bytes, int peer);
  std::vector<std::string> exchange_all(std::string_view mine);
  void wait_for(std::shared_ptr<Message>& message);

  Processes& processes_;
  const int rank_, size_;
  std::vector<std::int64_t> readable_;  // [processes]: process IDs; 0: cannot be read
  std::optional<bool> hosts_read_;
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> waits_{false};
  double most_silence_ = 0;       // seconds; 0: any
  double heartbeat_silence_ = 0;  // the same outside of training
  double patience_ = 0;           // the last most_silence_ that was not 0
  double said_alive_ = 0;         // time of the last heartbeat
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Peer>> peers_;  // null: this process
  std::list<Outgoing> outgoing_;
  std::vector<std::shared_ptr<void>> kept_;  // still used by the transport
  std::optional<Failure> failure_;
  int failed_together_ = -1;
  bool said_failed_ = false, left_ = false;
};

/// The pause between two polls for a message. It is short at first: a reply takes microseconds, and
/// messages that the processes copy themselves make progress only while both poll. A longer wait is
/// for the work of another process.
class PollPause {
 public:
  void rest();

 private:
  double since_ = 0;
  std::chrono::microseconds pause_{5};
};

/// Serializes plain values to bytes, and back.
class ByteWriter {
 public:
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_text(std::string_view text) {
    put(static_cast<std::uint64_t>(text.size()));
    bytes_.append(text);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const std::string_view from = next(sizeof value);
    from.copy(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  }
  std::string_view get_text() { return next(get<std::uint64_t>()); }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view next(std::size_t count) {
    PT_CHECK(count <= bytes_.size(), kInternal, "a message of another process is too short");
    const std::string_view out = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return out;
  }
  std::string_view bytes_;
};

}  // namespace pipetrain
