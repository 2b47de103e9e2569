// Processes that are threads of one test: messages between them are copies in memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "processes/processes.h"

namespace pipetrain::test {

/// Messages leave when both ends are there, which each end learns some calls of test() later; small
/// ones sometimes leave at once.
class MemoryWorld {
 public:
  MemoryWorld(int size, std::uint64_t seed);
  ~MemoryWorld();
  Processes& process(int rank);
  /// The hosts of the processes, which are all on one otherwise. Before they begin.
  void name_hosts(std::vector<std::string> hosts) { hosts_ = std::move(hosts); }
  /// Whether processes of one host read each other's memory. By default they do if the seed is
  /// even. Before they begin.
  void share_memory(bool shares) { shares_memory_.assign(shares_memory_.size(), shares); }
  void share_memory(int rank, bool shares) {
    shares_memory_[static_cast<std::size_t>(rank)] = shares;
  }
  /// What reads give from now on: the processes have ended, or process IDs are those of others.
  enum class Reads { kRight, kEnded, kOthers };
  void set_reads(Reads reads) { reads_ = reads; }
  /// From now on nothing that the process sends arrives, as if it had been stopped.
  void mute(int rank);
  /// From now on ends learn up to so many calls of test() later that a message is there.
  void delay_messages(int calls);
  /// How often a process was asked to end all.
  int aborts() const;
  std::uint64_t messages() const;
  std::uint64_t bytes() const;       // of all messages
  std::uint64_t most_bytes() const;  // of one message

 private:
  class One;
  struct Pending {
    int rank = 0;  // whose request
    Processes::Request number = 0;
    const void* from = nullptr;
    void* to = nullptr;
    std::size_t bytes = 0;
    bool has_left = false;  // sent at once; its content is in `copy`
    std::string copy;
  };
  using Key = std::tuple<int, int, int>;  // from, to, tag
  /// A long run has more requests than an int can number.
  static constexpr Processes::Request kFirst{std::int64_t{1} << 31};

  void deliver(const Key& key);

  mutable std::mutex mutex_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<One>> processes_;
  std::map<Key, std::deque<Pending>> sent_, wanted_;
  /// [rank]: requests that are done, and calls until it is said.
  std::vector<std::map<Processes::Request, int>> done_;
  std::vector<bool> muted_;
  std::vector<std::string> hosts_;   // [rank]; empty: one for all
  std::vector<char> shares_memory_;  // [rank]
  std::atomic<Reads> reads_{Reads::kRight};
  Processes::Request last_ = kFirst;
  int aborts_ = 0;
  std::uint64_t most_calls_ = 2;
  std::uint64_t messages_ = 0, bytes_ = 0, most_bytes_ = 0;
};

}  // namespace pipetrain::test
