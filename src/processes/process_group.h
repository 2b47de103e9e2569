// What processes that train together tell each other beside the data of the stages: that they are
// there, that one has failed, and small things that all must know.
//
// Collectives are messages to process 0 and back, so that any transport will do. Whoever waits here
// also listens, and stops waiting when another process has failed.
#pragma once

#include <atomic>
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

class ProcessGroup {
 public:
  /// The tags below kFreeTag are the group's own.
  static constexpr int kNoticeTag = 1, kValuesTag = 2, kFreeTag = 16;

  explicit ProcessGroup(Processes& processes);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Whether this process speaks for all: terminal, files, decisions.
  bool leads() const { return rank_ == 0; }
  Processes& processes() { return processes_; }
  /// "process 1 on node7", as far as that is known.
  std::string name_of(int rank) const;

  // All processes call these in the same order; of a process, one thread at a time. Error when
  // another process fails meanwhile (its error), or interrupt() was called.

  /// What every process has given, at process 0; elsewhere nothing.
  std::vector<std::string> gather(std::string_view mine);
  std::vector<std::string> all_gather(std::string_view mine);
  /// Process 0's bytes for all.
  std::string broadcast(std::string_view mine);

  // Of one process to another, in order; the other one must receive it.

  void send(std::string bytes, int peer);
  std::string receive(int peer);

  /// Ends what a thread of this process waits for here, and everything else: a group that was
  /// interrupted does nothing any more.
  void interrupt();

  struct Failure {
    int rank = 0;
    ErrorKind kind = ErrorKind::kInternal;
    std::string text;  // with its frames
  };
  /// Takes in what others have said; never waits.
  void listen();
  /// The first failure that another process has told of.
  std::optional<Failure> failure() const;
  /// Throws it as an Error that says where it was.
  void check_failure() const;
  /// Tells all others that this process has failed; once.
  void say_failed(const Error& error);
  /// Waits until process 0 (there: all others) has said that it failed too. False: it has not come
  /// in so many seconds.
  bool wait_for_failures(double seconds);

  /// Tells all others that this process is there, and whom it waits for: nothing when somebody
  /// computes (or a thread waits here, which is added). `progress`: a number that changes when
  /// something has been done.
  void say_alive(std::string_view waits_for, std::uint64_t progress);
  /// From now on others say that they are there: whoever waits here for one that has not for so
  /// many seconds ends with an Error (kDevice). 0: no longer. Again, when this process itself stood
  /// still.
  void expect_signs_of_life(double seconds);
  /// When everybody waits, and nobody has got on for so long, who waits for whom; or who has not
  /// been heard of for so long. Empty: all is well.
  std::string describe_hang(double seconds) const;

  /// The clean end: all processes call it.
  void leave();

 private:
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
    double heard = 0;   // when it last said something
    double got_on = 0;  // when it last said that something had been done or was being computed
    bool failed = false;
  };
  struct Outgoing {
    Notice notice;
    Processes::Request request;
    int peer;
  };
  void tell(int peer, const Notice& notice);
  void take_in(int rank);
  std::string describe_silence(double seconds) const;
  void listen_locked();
  /// A message, and how much of it there is.
  struct Letter {
    std::uint64_t count = 0;
    std::string bytes;
    std::vector<Processes::Request> requests;
  };
  void wait_for(std::unique_ptr<Letter>& letter);
  void check_silence() const;
  void post_parts(Letter& letter, int peer, bool sends);

  Processes& processes_;
  const int rank_, size_;
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> waits_{false};
  double most_silence_ = 0;  // seconds; 0: any
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Peer>> peers_;  // null: this process
  std::list<Outgoing> outgoing_;
  std::vector<std::unique_ptr<Letter>> abandoned_;  // what the transport may still use
  std::optional<Failure> failure_;
  bool said_failed_ = false, left_ = false;
};

/// Bytes of plain values one after another, and back: how processes hand structures over.
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
    T value;
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
