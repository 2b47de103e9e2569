// The streams of recorded devices (recorded_devices.h): what is put into them, the thread that does
// it late and in any order that points allow, and what is checked of it.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/communicator.h"
#include "device/device.h"

namespace pipetrain::test {

using StreamClock = std::vector<std::uint64_t>;  // by stream: work that has been waited for

inline void join_clocks(StreamClock& clock, const StreamClock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (std::size_t s = 0; s < other.size(); ++s) clock[s] = std::max(clock[s], other[s]);
}

/// Memory that work reads or writes.
struct MemoryRange {
  const std::byte* data;
  std::size_t bytes;
  bool writes;
};

/// What the ranks of a communicator know of each other.
struct Meeting {
  int ranks = 0, joined = 0;
  bool aborted = false;
};

/// A send, a receive or a sum of one rank, in a group.
struct ExchangePart {
  enum class Kind { kSend, kReceive, kSum } kind;
  std::shared_ptr<Meeting> meeting;
  int rank, peer;
  std::byte* data;
  std::size_t bytes;
  bool done = false;
  bool could_be_done = false;    // with the device's groups one by one
  double reached = 0, over = 0;  // by the streams' clocks
};

/// What a device exchanges at once.
struct ExchangeGroup {
  const Device* device;
  std::vector<ExchangePart> parts;
};
using ExchangeGroups = std::vector<std::shared_ptr<ExchangeGroup>>;

/// Whether all parts of a group are done, or will never be.
inline bool finished(const ExchangeGroup& group) {
  return std::all_of(group.parts.begin(), group.parts.end(),
                     [](const ExchangePart& part) { return part.done || part.meeting->aborted; });
}

/// All streams of a machine, and the thread that does their work.
class RecordedStreams {
 public:
  explicit RecordedStreams(std::uint64_t seed) : random_(seed), worker_([this] { work(); }) {}
  ~RecordedStreams();

  struct Point {
    std::size_t stream = 0;
    std::uint64_t number = 0;  // 0: never recorded
    StreamClock clock;
  };

  std::size_t open(const Device* device);

  /// Puts work into a stream. `kernel`: all memory must be the device's. `extra`: seconds.
  void put(std::size_t stream, const std::vector<MemoryRange>& accesses, bool kernel,
           const std::string& what, std::function<void()> body, double extra);

  /// Puts a group into a stream.
  void put(std::size_t stream, const std::shared_ptr<ExchangeGroup>& group);

  /// Lets work continue only when all threads have issued what they can.
  bool reached(const Point& point);

  /// Checks that one thread alone exchanges for a device.
  void called(const Device* device);
  std::shared_ptr<Meeting> meet(const CommunicatorId& id, int ranks);
  bool all_joined(const Meeting& meeting);
  void abort(Meeting& meeting);
  void complain_of(const std::string& text);

  /// Whether all issued work could finish if each device ran its groups one by one.
  void check_turns();

  /// `timed`: the point is work of its own, which takes no time.
  void record(std::size_t stream, Point& point, bool timed);
  void wait(std::size_t stream, const Point& point);
  double seconds_between(const Point& earlier, const Point& later);

  void part_devices();
  bool parted();
  void host_writes(const std::byte* data, std::size_t bytes);

  void wait_for(const Point& point);
  void synchronize(std::size_t stream);

  void own(const std::byte* data, std::size_t bytes, const Device* device);
  void disown(const std::byte* data);

  std::vector<std::string> problems() const;
  std::uint64_t operations() const;
  std::uint64_t uploaded() const;
  std::uint64_t frees() const;
  std::uint64_t downloads() const;
  std::pair<std::uint64_t, std::uint64_t> pageable_copies() const;
  std::uint64_t groups() const;
  std::uint64_t exchanged() const;
  std::uint64_t compared() const;

 private:
  struct Work {
    std::function<void()> body;
    std::unique_ptr<Point> after;
    std::shared_ptr<ExchangeGroup> group = nullptr;
    double put_at = 0;                       // what the host knew to be over
    std::vector<MemoryRange> accesses = {};  // which it is done with later the more bytes they have
    double seconds = 0;                      // that it takes beside them
  };
  struct Queue {
    const Device* device;
    std::deque<Work> work;
    std::uint64_t put, done;
    StreamClock clock;
    double time;                // when what is done was done
    std::vector<double> times;  // of each work that is done
  };
  struct Access {
    std::size_t stream;
    std::uint64_t number;
    std::size_t first, last;  // in the block
    bool writes;
    std::string what;
  };
  struct Block {
    std::size_t bytes;
    const Device* device;  // null: host memory for transfers
    std::vector<Access> accesses;
  };

  std::uint64_t next(std::size_t stream);
  void complain(std::string text);
  double time_of(const Point& point) const;

  /// The block that holds all of a range; null: memory of the host.
  Block* block_of(const MemoryRange& range);
  bool reads_device(const std::vector<MemoryRange>& accesses);

  /// Where devices do not reach each other, no copy has both ends on devices.
  void check_way(const std::vector<MemoryRange>& ends);

  /// Of operands, but for those that the device has used so lately that they are in its cache.
  double seconds_of(const Device* device, const std::vector<MemoryRange>& accesses);

  /// When a stream starts its next work, and when it finishes it.
  double start_of(const Queue& queue, const Work& work) const;
  double end_of(const Queue& queue, const Work& work);

  /// Compares an access with all that touch the same memory.
  void note(std::size_t stream, std::uint64_t number, const MemoryRange& range, bool kernel,
            const std::string& what);

  /// Drops accesses that everything put in later comes after.
  void forget();
  void report_failure() const;

  bool can_go_on(const Queue& queue) const;

  /// Does what can be done between groups that streams have come to.
  void exchange();
  static void add_up(const std::vector<ExchangePart*>& ends);

  /// Runs only while a thread waits, so that as much work as possible is issued before it runs.
  void work();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Queue> queues_;
  std::map<const std::byte*, Block> blocks_;
  StreamClock known_;  // what a thread has waited for: everything issued later comes after it
  std::vector<std::string> problems_;
  std::string failure_;
  std::map<const Device*, ExchangeGroups> issued_;
  std::map<const Device*, std::thread::id> callers_;
  std::map<std::string, std::shared_ptr<Meeting>> meetings_;
  bool exchanges_aborted_ = false;
  std::uint64_t operations_ = 0, compared_ = 0, uploaded_ = 0, downloads_ = 0, frees_ = 0,
                groups_ = 0, exchanged_ = 0, random_;
  std::uint64_t pageable_copies_ = 0, pageable_bytes_ = 0;
  int waiting_ = 0;
  double host_time_ = 0;  // the latest that a thread has waited for
  bool parted_ = false;
  struct Cache {
    std::uint64_t traffic = 0;                       // bytes
    std::map<const std::byte*, std::uint64_t> used;  // at which traffic
  };
  std::map<const Device*, Cache> caches_;
  bool stopping_ = false, stuck_ = false;
  std::thread worker_;
};

}  // namespace pipetrain::test
