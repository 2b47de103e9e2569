#include "support/recorded_devices.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "device/recorded_work.h"
#include "ops/kernel/logged_kernel.h"
#include "ops/registry/registry.h"
#include "optim/update.h"

namespace pipetrain::test {
namespace {

using Clock = std::vector<std::uint64_t>;  // by stream: work that has been waited for

void join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (std::size_t s = 0; s < other.size(); ++s) clock[s] = std::max(clock[s], other[s]);
}

struct Range {
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
struct Part {
  enum class Kind { kSend, kReceive, kSum } kind;
  std::shared_ptr<Meeting> meeting;
  int rank, peer;
  std::byte* data;
  std::size_t bytes;
  bool done = false;
  bool could_be_done = false;    // with the device's groups one by one
  double reached = 0, over = 0;  // by the streams' clocks
};

struct Group {
  const Device* device;
  std::vector<Part> parts;
};
using Groups = std::vector<std::shared_ptr<Group>>;

bool finished(const Group& group) {
  return std::all_of(group.parts.begin(), group.parts.end(),
                     [](const Part& part) { return part.done || part.meeting->aborted; });
}

/// Finds the ends that meet in groups that have been reached: of each rank the first part that is
/// not over (as `done` says), of each kind to each peer. Calls `meet` with the ends of each.
template <class Done, class Meet>
void find_meetings(const Groups& reached, const Done& done, const Meet& meet) {
  using Key = std::tuple<const Meeting*, int, int, int>;
  std::map<Key, Part*> first;
  for (const auto& group : reached) {
    for (Part& part : group->parts) {
      if (done(part)) continue;
      first.try_emplace(Key(part.meeting.get(), static_cast<int>(part.kind), part.rank, part.peer),
                        &part);
    }
  }
  for (const auto& [key, part] : first) {
    const auto& [meeting, kind, rank, peer] = key;
    if (part->kind == Part::Kind::kSend) {
      const auto other =
          first.find(Key(meeting, static_cast<int>(Part::Kind::kReceive), peer, rank));
      if (other != first.end()) meet(std::vector<Part*>{part, other->second});
    } else if (part->kind == Part::Kind::kSum && rank == 0) {
      std::vector<Part*> all;
      for (int r = 0; r < meeting->ranks; ++r) {
        const auto other = first.find(Key(meeting, kind, r, -1));
        if (other != first.end()) all.push_back(other->second);
      }
      if (static_cast<int>(all.size()) == meeting->ranks) meet(all);
    }
  }
}

}  // namespace

/// All streams of a machine, and the thread that does their work.
class RecordedStreams {
 public:
  explicit RecordedStreams(std::uint64_t seed) : random_(seed), worker_([this] { work(); }) {}
  ~RecordedStreams() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  struct Point {
    std::size_t stream = 0;
    std::uint64_t number = 0;  // 0: never recorded
    Clock clock;
  };

  std::size_t open(const Device* device) {
    const std::lock_guard lock(mutex_);
    queues_.push_back({device, {}, 0, 0, {}, 0, {}});
    return queues_.size() - 1;
  }

  /// Puts work into a stream. `kernel`: all memory must be the device's. `extra`: seconds.
  void put(std::size_t stream, const std::vector<Range>& accesses, bool kernel,
           const std::string& what, std::function<void()> body, double extra) {
    {
      const std::lock_guard lock(mutex_);
      Queue& queue = queues_[stream];
      join(queue.clock, known_);
      const std::uint64_t number = next(stream);
      for (const Range& range : accesses) {
        note(stream, number, range, kernel, what);
        const Block* block = block_of(range);
        const bool on_device = block && block->device;
        if (!range.writes && !on_device) uploaded_ += range.bytes;
        if (range.writes && !on_device) downloads_ += !kernel && reads_device(accesses);
      }
      if (parted_ && !kernel) check_way(accesses);
      queue.work.push_back(
          {std::move(body), nullptr, nullptr, host_time_, accesses, recorded_seconds(0) + extra});
    }
    changed_.notify_all();
  }

  /// Puts a group into a stream.
  void put(std::size_t stream, const std::shared_ptr<Group>& group) {
    {
      const std::lock_guard lock(mutex_);
      join(queues_[stream].clock, known_);
      const std::uint64_t number = next(stream);
      for (const Part& part : group->parts) {
        const bool writes = part.kind != Part::Kind::kSend;
        note(stream, number, {part.data, part.bytes, writes}, /*kernel=*/true,
             part.kind == Part::Kind::kSum    ? "a sum over replicas"
             : part.kind == Part::Kind::kSend ? "a send"
                                              : "a receive");
      }
      queues_[stream].work.push_back({[] {}, nullptr, group, host_time_});
      issued_[group->device].push_back(group);
      ++groups_;
      stuck_ = false;
    }
    changed_.notify_all();
  }

  /// Lets work continue only when all threads have issued what they can.
  bool reached(const Point& point) {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::microseconds(200),
                      [&] { return queues_[point.stream].done >= point.number; });
    --waiting_;
    report_failure();
    if (queues_[point.stream].done < point.number) return false;
    join(known_, point.clock);
    host_time_ = std::max(host_time_, time_of(point));
    return true;
  }

  void called(const Device* device) {
    const std::lock_guard lock(mutex_);
    const auto found = callers_.try_emplace(device, std::this_thread::get_id()).first;
    if (found->second != std::this_thread::get_id())
      complain(device->name() + " is given exchanges by two threads");
  }

  std::shared_ptr<Meeting> meet(const CommunicatorId& id, int ranks) {
    const std::lock_guard lock(mutex_);
    auto& meeting = meetings_[std::string(id.data(), 16)];
    if (!meeting) meeting = std::make_shared<Meeting>(Meeting{ranks, 0, false});
    ++meeting->joined;
    if (meeting->ranks != ranks) complain("ranks join a communicator of different sizes");
    return meeting;
  }
  bool all_joined(const Meeting& meeting) {
    const std::lock_guard lock(mutex_);
    return meeting.aborted || meeting.joined >= meeting.ranks;
  }
  void abort(Meeting& meeting) {
    {
      const std::lock_guard lock(mutex_);
      meeting.aborted = true;
      exchanges_aborted_ = true;
    }
    changed_.notify_all();
  }
  void complain_of(const std::string& text) {
    const std::lock_guard lock(mutex_);
    complain(text);
  }

  /// Whether all issued work could finish if each device ran its groups one by one.
  void check_turns() {
    const std::lock_guard lock(mutex_);
    if (exchanges_aborted_) return;
    std::map<const Device*, std::size_t> next;
    for (bool moved = true; moved;) {
      moved = false;
      Groups turns;
      for (auto& [device, groups] : issued_) {
        std::size_t& g = next[device];
        while (g < groups.size() &&
               std::all_of(groups[g]->parts.begin(), groups[g]->parts.end(),
                           [](const Part& part) { return part.could_be_done; }))
          ++g;
        if (g < groups.size()) turns.push_back(groups[g]);
      }
      find_meetings(
          turns, [](const Part& part) { return part.could_be_done; },
          [&](const std::vector<Part*>& ends) {
            for (Part* end : ends) end->could_be_done = true;
            moved = true;
          });
    }
    for (const auto& [device, groups] : issued_) {
      if (next[device] < groups.size())
        complain(device->name() + " issues its groups in an order in which they wait for others");
    }
  }

  /// `timed`: the point is work of its own, which takes no time.
  void record(std::size_t stream, Point& point, bool timed) {
    const std::lock_guard lock(mutex_);
    join(queues_[stream].clock, known_);
    if (timed) {
      next(stream);
      queues_[stream].work.push_back({[] {}, nullptr, nullptr, host_time_});
    }
    point = {stream, queues_[stream].put, queues_[stream].clock};
  }

  void wait(std::size_t stream, const Point& point) {
    const std::lock_guard lock(mutex_);
    if (point.number == 0) return;
    join(queues_[stream].clock, point.clock);
    next(stream);
    queues_[stream].work.push_back({[] {}, std::make_unique<Point>(point), nullptr, host_time_});
  }

  double seconds_between(const Point& earlier, const Point& later) {
    const std::lock_guard lock(mutex_);
    for (const Point* point : {&earlier, &later}) {
      if (point->number > 0 && queues_[point->stream].done >= point->number) continue;
      complain("the time of a point is asked for that has not been reached");
      return 0;
    }
    if (queues_[earlier.stream].device != queues_[later.stream].device)
      complain("the clocks of two devices are compared");
    return time_of(later) - time_of(earlier);
  }

  void part_devices() {
    const std::lock_guard lock(mutex_);
    parted_ = true;
  }
  bool parted() {
    const std::lock_guard lock(mutex_);
    return parted_;
  }

  void host_writes(const std::byte* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const Block* block = block_of({data, bytes, true});
    if (!block) return complain("the host writes memory of its own, which no device knows");
    const std::byte* begin = std::prev(blocks_.upper_bound(data))->first;
    const auto first = static_cast<std::size_t>(data - begin);
    for (const Access& access : block->accesses) {
      if (access.first < first + bytes && first < access.last &&
          queues_[access.stream].done < access.number)
        complain(fmt::format("the host overwrites what {} has yet to read", access.what));
    }
  }

  void wait_for(const Point& point) {
    std::unique_lock lock(mutex_);
    changed_.notify_all();
    ++waiting_;
    changed_.wait(lock, [&] { return stuck_ || queues_[point.stream].done >= point.number; });
    --waiting_;
    join(known_, point.clock);
    host_time_ = std::max(host_time_, time_of(point));
    forget();
    report_failure();
  }

  void synchronize(std::size_t stream) {
    std::unique_lock lock(mutex_);
    const std::uint64_t last = queues_[stream].put;
    changed_.notify_all();
    ++waiting_;
    changed_.wait(lock, [&] { return stuck_ || queues_[stream].done >= last; });
    --waiting_;
    join(known_, queues_[stream].clock);
    host_time_ = std::max(host_time_, queues_[stream].time);
    forget();
    report_failure();
  }

  void own(const std::byte* data, std::size_t bytes, const Device* device) {
    const std::lock_guard lock(mutex_);
    blocks_[data] = {bytes, device, {}};
  }

  void disown(const std::byte* data) {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(data);
    ++frees_;
    for (const Access& access : block->second.accesses) {
      if (queues_[access.stream].done < access.number)
        complain(fmt::format("memory is freed that {} may still use", access.what));
    }
    for (auto& [device, cache] : caches_)
      cache.used.erase(cache.used.lower_bound(data),
                       cache.used.lower_bound(data + block->second.bytes));
    blocks_.erase(block);
  }

  std::vector<std::string> problems() const {
    const std::lock_guard lock(mutex_);
    return problems_;
  }
  std::uint64_t operations() const {
    const std::lock_guard lock(mutex_);
    return operations_;
  }
  std::uint64_t uploaded() const {
    const std::lock_guard lock(mutex_);
    return uploaded_;
  }
  std::uint64_t frees() const {
    const std::lock_guard lock(mutex_);
    return frees_;
  }
  std::uint64_t downloads() const {
    const std::lock_guard lock(mutex_);
    return downloads_;
  }
  std::pair<std::uint64_t, std::uint64_t> pageable_copies() const {
    const std::lock_guard lock(mutex_);
    return {pageable_copies_, pageable_bytes_};
  }
  std::uint64_t groups() const {
    const std::lock_guard lock(mutex_);
    return groups_;
  }
  std::uint64_t exchanged() const {
    const std::lock_guard lock(mutex_);
    return exchanged_;
  }
  std::uint64_t compared() const {
    const std::lock_guard lock(mutex_);
    return compared_;
  }

 private:
  struct Work {
    std::function<void()> body;
    std::unique_ptr<Point> after;
    std::shared_ptr<Group> group = nullptr;
    double put_at = 0;                 // what the host knew to be over
    std::vector<Range> accesses = {};  // which it is done with later the more bytes they have
    double seconds = 0;                // that it takes beside them
  };
  struct Queue {
    const Device* device;
    std::deque<Work> work;
    std::uint64_t put, done;
    Clock clock;
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

  std::uint64_t next(std::size_t stream) {
    Queue& queue = queues_[stream];
    if (queue.clock.size() <= stream) queue.clock.resize(stream + 1);
    return queue.clock[stream] = ++queue.put;
  }

  void complain(std::string text) {
    if (problems_.size() < 20) problems_.push_back(std::move(text));
  }

  double time_of(const Point& point) const {
    return point.number == 0 ? 0 : queues_[point.stream].times[point.number - 1];
  }

  /// The block that holds all of a range; null: memory of the host.
  Block* block_of(const Range& range) {
    auto block = blocks_.upper_bound(range.data);
    if (block != blocks_.begin()) --block;
    if (block == blocks_.end() || range.data < block->first ||
        range.data + range.bytes > block->first + block->second.bytes)
      return nullptr;
    return &block->second;
  }

  bool reads_device(const std::vector<Range>& accesses) {
    return std::any_of(accesses.begin(), accesses.end(), [&](const Range& range) {
      const Block* block = range.writes ? nullptr : block_of(range);
      return block && block->device;
    });
  }

  /// Where devices do not reach each other, no copy has both ends on devices.
  void check_way(const std::vector<Range>& ends) {
    const Device* known = nullptr;
    for (const Range& end : ends) {
      const Block* block = end.bytes > 0 ? block_of(end) : nullptr;
      if (!block || !block->device) continue;
      if (known && known != block->device)
        complain("a copy goes between devices that do not reach each other");
      known = block->device;
    }
  }

  /// Of operands, but for those that the device has used so lately that they are in its cache.
  double seconds_of(const Device* device, const std::vector<Range>& accesses) {
    Cache& cache = caches_[device];
    double seconds = 0;
    for (const Range& range : accesses) {
      if (range.bytes == 0) continue;
      const auto [found, added] = cache.used.try_emplace(range.data, 0);
      if (added || cache.traffic - found->second > kRecordedCache)
        seconds += recorded_seconds(range.bytes) - recorded_seconds(0);
    }
    for (const Range& range : accesses) {
      // What is larger than the cache pushes itself out.
      if (range.bytes > 0)
        cache.used[range.data] = std::exchange(cache.traffic, cache.traffic + range.bytes);
    }
    return seconds;
  }

  /// When a stream starts its next work, and when it finishes it.
  double start_of(const Queue& queue, const Work& work) const {
    return std::max({queue.time, work.put_at, work.after ? time_of(*work.after) : 0.0});
  }
  double end_of(const Queue& queue, const Work& work) {
    double end = start_of(queue, work) + work.seconds + seconds_of(queue.device, work.accesses);
    if (!work.group) return end;
    for (const Part& part : work.group->parts) end = std::max(end, part.over);
    return end;
  }

  /// Compares an access with all that touch the same memory.
  void note(std::size_t stream, std::uint64_t number, const Range& range, bool kernel,
            const std::string& what) {
    if (range.bytes == 0) return;
    Block* block = block_of(range);
    if (!block) {
      if (kernel) complain(what + " is given memory of no device");
      if (!kernel && !range.writes) {
        ++pageable_copies_;
        pageable_bytes_ += range.bytes;
      }
      return;
    }
    Block& in = *block;
    const std::byte* begin = std::prev(blocks_.upper_bound(range.data))->first;
    if (kernel && in.device != queues_[stream].device)
      complain(what + " is given memory of another device");
    const auto first = static_cast<std::size_t>(range.data - begin);
    const std::size_t last = first + range.bytes;
    const Clock& clock = queues_[stream].clock;
    for (const Access& other : in.accesses) {
      if (other.stream == stream || other.first >= last || first >= other.last) continue;
      if (!other.writes && !range.writes) continue;
      ++compared_;
      const std::uint64_t known = other.stream < clock.size() ? clock[other.stream] : 0;
      if (known < other.number) {
        complain(fmt::format("nothing orders {} ({}) and {} ({})", other.what,
                             other.writes ? "writes" : "reads", what,
                             range.writes ? "writes" : "reads"));
      }
    }
    in.accesses.push_back({stream, number, first, last, range.writes, what});
  }

  /// Drops accesses that everything put in later comes after.
  void forget() {
    for (auto& [data, block] : blocks_) {
      std::erase_if(block.accesses, [&](const Access& access) {
        return access.stream < known_.size() && access.number <= known_[access.stream];
      });
    }
  }

  void report_failure() const {
    if (stuck_) PT_FAIL(kDevice, "the streams wait for each other");
    if (!failure_.empty()) PT_FAIL(kDevice, "{}", failure_);
  }

  bool can_go_on(const Queue& queue) const {
    if (queue.work.empty()) return false;
    if (queue.work.front().group) return finished(*queue.work.front().group);
    const Point* after = queue.work.front().after.get();
    return !after || queues_[after->stream].done >= after->number;
  }

  /// Does what can be done between groups that streams have come to.
  void exchange() {
    Groups reached;
    for (const Queue& queue : queues_) {
      if (queue.work.empty() || !queue.work.front().group) continue;
      reached.push_back(queue.work.front().group);
      for (Part& part : reached.back()->parts) part.reached = start_of(queue, queue.work.front());
    }
    const auto over = [](const Part& part) { return part.done || part.meeting->aborted; };
    bool moved = true;
    while (moved) {
      moved = false;
      find_meetings(reached, over, [&](const std::vector<Part*>& ends) {
        for (const Part* end : ends) {
          if (end->bytes != ends[0]->bytes)
            complain(fmt::format("{} bytes are exchanged for {}", ends[0]->bytes, end->bytes));
        }
        if (ends[0]->kind == Part::Kind::kSend) {
          std::memcpy(ends[1]->data, ends[0]->data, std::min(ends[0]->bytes, ends[1]->bytes));
        } else {
          add_up(ends);
        }
        double both = 0;
        for (const Part* end : ends) both = std::max(both, end->reached);
        for (Part* end : ends) {
          end->done = true;
          end->over = both + recorded_seconds(end->bytes);
        }
        exchanged_ += ends.size();
        moved = true;
      });
    }
  }

  static void add_up(const std::vector<Part*>& ends) {
    const auto values = [&](std::size_t r) { return reinterpret_cast<float*>(ends[r]->data); };
    for (std::size_t i = 0; i < ends[0]->bytes / sizeof(float); ++i) {
      float sum = values(0)[i];
      for (std::size_t r = 1; r < ends.size(); ++r) sum += values(r)[i];
      for (std::size_t r = 0; r < ends.size(); ++r) values(r)[i] = sum;
    }
  }

  /// Runs only while a thread waits, so that as much work as possible is issued before it runs.
  void work() {
    omp_set_num_threads(1);
    std::unique_lock lock(mutex_);
    for (;;) {
      if (waiting_ == 0) {
        if (stopping_) return;
        changed_.wait(lock);
        continue;
      }
      exchange();
      std::vector<std::size_t> ready;
      bool empty = true;
      for (std::size_t s = 0; s < queues_.size(); ++s) {
        if (can_go_on(queues_[s])) ready.push_back(s);
        empty = empty && queues_[s].work.empty();
      }
      if (ready.empty()) {
        // A group may wait for one that has yet to be issued.
        const bool issuing = std::any_of(queues_.begin(), queues_.end(), [](const Queue& queue) {
          return !queue.work.empty() && queue.work.front().group;
        });
        if (!empty && !stuck_ && !issuing) {
          stuck_ = true;
          complain("the streams wait for each other");
          changed_.notify_all();
        }
        if (stopping_) return;
        changed_.wait(lock);
        continue;
      }
      random_ = random_ * 6364136223846793005U + 1442695040888963407U;
      const std::size_t stream = ready[(random_ >> 33) % ready.size()];
      const double end = end_of(queues_[stream], queues_[stream].work.front());
      Work now = std::move(queues_[stream].work.front());
      queues_[stream].work.pop_front();
      lock.unlock();
      std::string failure;
      try {
        now.body();
      } catch (const Error& error) {
        failure = error.what();
      }
      lock.lock();
      if (failure_.empty()) failure_ = failure;
      ++queues_[stream].done;
      queues_[stream].time = end;
      queues_[stream].times.push_back(end);
      ++operations_;
      changed_.notify_all();
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Queue> queues_;
  std::map<const std::byte*, Block> blocks_;
  Clock known_;  // what a thread has waited for: everything issued later comes after it
  std::vector<std::string> problems_;
  std::string failure_;
  std::map<const Device*, Groups> issued_;
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

namespace {

class RecordedPoint final : public TimedPoint {
 public:
  RecordedPoint(RecordedStreams& streams, bool timed) : timed(timed), streams_(streams) {}
  void synchronize() override { streams_.wait_for(point); }
  bool reached() override { return streams_.reached(point); }
  double seconds_since(const TimedPoint& earlier) override {
    return streams_.seconds_between(static_cast<const RecordedPoint&>(earlier).point, point);
  }
  RecordedStreams::Point point;
  const bool timed;

 private:
  RecordedStreams& streams_;
};

/// Which streams record work, and what has come of it.
struct Recordings {
  bool allowed = false;
  int failing = 0;
  std::atomic<std::uint64_t> replayed = 0;
};

class RecordedStream final : public Stream, public WorkRecorder {
 public:
  RecordedStream(RecordedStreams& streams, Device& device, Recordings& recordings)
      : streams_(streams),
        device_(device),
        recordings_(recordings),
        records_(recordings.allowed),
        index_(streams.open(&device)) {}
  ~RecordedStream() override {
    if (users_.use_count() > 1)
      streams_.complain_of("a stream is destroyed before kernels or recordings of it");
  }
  RecordedStream(const RecordedStream&) = delete;
  RecordedStream& operator=(const RecordedStream&) = delete;
  /// What is made for the stream keeps this.
  const std::shared_ptr<int>& users() const { return users_; }
  Device& device() override { return device_; }
  void copy(void* to, const void* from, std::size_t bytes) override {
    put({{static_cast<const std::byte*>(to), bytes, true},
         {static_cast<const std::byte*>(from), bytes, false}},
        /*kernel=*/false, "a copy", [=] { std::memcpy(to, from, bytes); });
  }
  void record(StreamPoint& point) override {
    expect_no_recording();
    auto& recorded = static_cast<RecordedPoint&>(point);
    streams_.record(index_, recorded.point, recorded.timed);
  }
  void wait(const StreamPoint& point) override {
    expect_no_recording();
    streams_.wait(index_, static_cast<const RecordedPoint&>(point).point);
  }
  void synchronize() override {
    expect_no_recording();
    streams_.synchronize(index_);
  }

  void put(const std::shared_ptr<Group>& group) {
    expect_no_recording();
    streams_.put(index_, group);
  }
  void put(const std::vector<Range>& accesses, bool kernel, const std::string& what,
           std::function<void()> body, double extra = 0) {
    if (recording_) {
      recording_->work.push_back({accesses, kernel, what, std::move(body), extra});
    } else {
      streams_.put(index_, accesses, kernel, what, std::move(body), extra);
    }
  }

  bool begin_recording() override {
    expect_no_recording();
    if (!records_) return false;
    recording_ = std::make_unique<Recording>();
    recording_->user = users_;
    return true;
  }
  std::unique_ptr<RecordedWork> end_recording() override {
    if (!recording_) streams_.complain_of("a recording ends that never began");
    auto out = std::move(recording_);
    if (recordings_.failing > 0 && ++made_ % recordings_.failing == 0) return nullptr;
    return out;
  }
  void put(RecordedWork& work) override {
    expect_no_recording();
    ++recordings_.replayed;
    log_kernel("graph launched");
    for (const Recording::Work& one : static_cast<Recording&>(work).work)
      streams_.put(index_, one.accesses, one.kernel, one.what, one.body, one.extra);
  }

 private:
  struct Recording final : public RecordedWork {
    struct Work {
      std::vector<Range> accesses;
      bool kernel;
      std::string what;
      std::function<void()> body;
      double extra;
    };
    std::vector<Work> work;
    std::shared_ptr<int> user;
  };
  void expect_no_recording() {
    if (recording_) streams_.complain_of("a stream that records is asked for something else");
  }

  std::unique_ptr<Recording> recording_;
  int made_ = 0;
  RecordedStreams& streams_;
  Device& device_;
  Recordings& recordings_;
  bool records_;
  std::size_t index_;
  std::shared_ptr<int> users_ = std::make_shared<int>();
};

template <class T>
Range reads(const T* data, std::size_t count) {
  return {reinterpret_cast<const std::byte*>(data), count * sizeof(T), false};
}
template <class T>
Range writes(T* data, std::size_t count) {
  return {reinterpret_cast<const std::byte*>(data), count * sizeof(T), true};
}

class RecordedKernel final : public Kernel {
 public:
  RecordedKernel(RecordedStream& stream, const KernelRequest& request,
                 std::unique_ptr<Kernel> kernel)
      : stream_(stream),
        user_(stream.users()),
        kernel_(std::move(kernel)),
        what_(fmt::format("{} of {}", request.node.op->name, request.node.name)) {}
  void run(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
           const RunContext& context) override {
    std::vector<Tensor> in(inputs.begin(), inputs.end()), out(outputs.begin(), outputs.end());
    std::vector<Range> accesses;
    for (const Tensor& tensor : in) {
      if (tensor) accesses.push_back(reads(tensor.as<std::byte>(), tensor.bytes()));
    }
    for (const Tensor& tensor : out) {
      if (tensor) accesses.push_back(writes(tensor.as<std::byte>(), tensor.bytes()));
    }
    if (kernel_->workspace_bytes() > 0)
      accesses.push_back(writes(context.workspace, kernel_->workspace_bytes()));
    stream_.put(
        accesses, /*kernel=*/true, what_,
        [this, in, out, context] { kernel_->run(in, out, context); },
        std::exchange(is_compiled_, true) ? 0 : kRecordedCompiling);
  }
  std::size_t workspace_bytes() const override { return kernel_->workspace_bytes(); }

 private:
  RecordedStream& stream_;
  std::shared_ptr<int> user_;
  std::unique_ptr<Kernel> kernel_;
  std::string what_;
  bool is_compiled_ = false;
};

/// Some operators have none: their operands go through the host.
std::unique_ptr<Kernel> kernel_of_cpu(const KernelRequest& request) {
  const bool lacks = request.node.op->name == "Softmax" || request.node.op->name == "ReluGrad";
  if (lacks && !std::getenv("RECORDED_ALL_KERNELS")) return nullptr;
  return make_kernel(Backend::kCpu, request);
}

class RecordedDevice final : public Device {
 public:
  RecordedDevice(RecordedStreams& streams, int index) : streams_(streams), index_(index) {}
  Recordings recordings;
  MakeKernelOfRequest make_of_request = kernel_of_cpu;
  std::string name() const override { return fmt::format("recorded {}", index_); }
  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<RecordedStream>(streams_, *this, recordings);
  }
  std::unique_ptr<StreamPoint> make_point() override {
    return std::make_unique<RecordedPoint>(streams_, /*timed=*/false);
  }
  std::unique_ptr<TimedPoint> make_timed_point() override {
    return std::make_unique<RecordedPoint>(streams_, /*timed=*/true);
  }
  std::string make() const override { return "recorded"; }
  std::size_t cache_bytes() const override { return kRecordedCache; }
  bool reaches(const Device& other) const override { return &other == this || !streams_.parted(); }
  std::unique_ptr<Kernel> make_kernel(Stream& stream, const KernelRequest& request) override {
    // The bits of some kernels follow the threads that they are made for: one, however many stages
    // share this machine's.
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    std::unique_ptr<Kernel> kernel = make_of_request(request);
    omp_set_num_threads(threads);
    if (!kernel) return nullptr;
    return std::make_unique<RecordedKernel>(static_cast<RecordedStream&>(stream), request,
                                            std::move(kernel));
  }
  void set(Stream& stream, float* to, float value) override {
    put(stream, {writes(to, 1)}, "a scalar", [=] { *to = value; });
  }
  void add(Stream& stream, float* to, const float* from, std::size_t count) override {
    put(stream, {writes(to, count), reads(from, count)}, "an addition", [=] {
      for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
    });
  }
  void sums_of_squares(Stream& stream, std::span<const std::span<const float>> values, double* sums,
                       double* scratch) override {
    std::vector<Range> accesses = {writes(sums, values.size()),
                                   writes(scratch, kScratch * values.size())};
    for (const std::span<const float> one : values)
      accesses.push_back(reads(one.data(), one.size()));
    put(stream, accesses, "norms", [sums, values = std::vector(values.begin(), values.end())] {
      for (std::size_t k = 0; k < values.size(); ++k)
        sums[k] = pipetrain::sum_of_squares(values[k]);
    });
    log_kernel("own norms float32");
  }
  void update(Stream& stream, std::int64_t step, double gradient_scale, double average_decay,
              std::span<const DeviceUpdate> parameters) override {
    std::vector<Range> accesses;
    for (const DeviceUpdate& one : parameters) {
      accesses.push_back(reads(one.gradient.data(), one.gradient.size()));
      for (const std::span<float> written : {one.parameter, one.state0, one.state1, one.average})
        accesses.push_back(writes(written.data(), written.size()));
    }
    put(stream, accesses, "an update",
        [=, parameters = std::vector(parameters.begin(), parameters.end())] {
          for (const DeviceUpdate& one : parameters) {
            pipetrain::update(*one.settings, one.learning_rate, step, gradient_scale, one.parameter,
                              one.gradient, one.state0, one.state1);
            if (one.average.empty()) continue;
            if (step == 1)
              std::copy(one.parameter.begin(), one.parameter.end(), one.average.begin());
            update_average(average_decay, one.average, one.parameter);
          }
        });
    log_kernel("own update float32");
  }

 private:
  static void put(Stream& stream, const std::vector<Range>& accesses, const char* what,
                  std::function<void()> body) {
    static_cast<RecordedStream&>(stream).put(accesses, /*kernel=*/true, what, std::move(body));
  }
  std::byte* take(std::size_t bytes, bool on_host) override {
    auto* data = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64}));
    std::memset(data, 0, bytes);
    streams_.own(data, bytes, on_host ? nullptr : this);
    return data;
  }
  void give_back(std::byte* data, bool) noexcept override {
    streams_.disown(data);
    ::operator delete (data, std::align_val_t{64});
  }

  RecordedStreams& streams_;
  int index_;
};

/// Devices whose next group is lost.
using Losses = std::map<const Device*, bool>;

class RecordedCommunicator final : public Communicator {
 public:
  RecordedCommunicator(RecordedStreams& streams, Losses& losses, const Device& device,
                       const CommunicatorId& id, int rank, int ranks)
      : streams_(streams), losses_(losses), device_(device), rank_(rank) {
    streams_.called(&device_);
    meeting_ = streams_.meet(id, ranks);
  }
  ~RecordedCommunicator() override { streams_.called(&device_); }
  void begin_group() override {
    streams_.called(&device_);
    if (group_) streams_.complain_of("a group is begun within another");
    group_ = std::make_shared<Group>(Group{&device_, {}});
  }
  void send(Stream& stream, const void* from, std::size_t bytes, int peer) override {
    add(stream, Part::Kind::kSend, const_cast<void*>(from), bytes, peer);
  }
  void receive(Stream& stream, void* to, std::size_t bytes, int peer) override {
    add(stream, Part::Kind::kReceive, to, bytes, peer);
  }
  void all_reduce(Stream& stream, float* values, std::size_t count) override {
    add(stream, Part::Kind::kSum, values, count * sizeof(float), -1);
  }
  void end_group() override {
    streams_.called(&device_);
    auto group = std::exchange(group_, nullptr);
    if (group->parts.empty()) return;
    const auto loss = losses_.find(&device_);
    if (loss != losses_.end() && std::exchange(loss->second, false)) return;
    stream_->put(group);
  }
  bool is_settled() override {
    streams_.called(&device_);
    return streams_.all_joined(*meeting_);
  }
  void abort() noexcept override { streams_.abort(*meeting_); }

 private:
  void add(Stream& stream, Part::Kind kind, void* data, std::size_t bytes, int peer) {
    streams_.called(&device_);
    if (!group_) return streams_.complain_of("something is exchanged outside of a group");
    if (peer == rank_ || peer >= meeting_->ranks) streams_.complain_of("there is no such peer");
    if (&stream.device() != &device_) streams_.complain_of("an exchange in a stream of another");
    stream_ = static_cast<RecordedStream*>(&stream);
    group_->parts.push_back({kind, meeting_, rank_, peer, static_cast<std::byte*>(data), bytes});
  }

  RecordedStreams& streams_;
  Losses& losses_;
  const Device& device_;
  int rank_;
  std::shared_ptr<Meeting> meeting_;
  std::shared_ptr<Group> group_;
  RecordedStream* stream_ = nullptr;
};

class RecordedCollectives final : public Collectives {
 public:
  explicit RecordedCollectives(RecordedStreams& streams) : streams_(streams) {}
  std::string name() const override { return "recorded"; }
  CommunicatorId make_id() override {
    CommunicatorId id{};
    std::snprintf(id.data(), id.size(), "id %d", ++ids_);
    return id;
  }
  std::unique_ptr<Communicator> connect(Device& device, const CommunicatorId& id, int rank,
                                        int ranks, CommunicatorUse) override {
    return std::make_unique<RecordedCommunicator>(streams_, losses, device, id, rank, ranks);
  }
  Losses losses;  // set before the threads of the devices look

 private:
  RecordedStreams& streams_;
  int ids_ = 0;
};

}  // namespace

RecordedMachine::RecordedMachine(int devices, std::uint64_t seed)
    : streams_(std::make_unique<RecordedStreams>(seed)),
      collectives_(std::make_unique<RecordedCollectives>(*streams_)) {
  for (int d = 0; d < devices; ++d)
    devices_.push_back(std::make_unique<RecordedDevice>(*streams_, d));
}

RecordedMachine::~RecordedMachine() = default;

Device& RecordedMachine::device(int index) { return *devices_.at(static_cast<std::size_t>(index)); }
Collectives& RecordedMachine::collectives() { return *collectives_; }
void RecordedMachine::lose_group(int index) {
  static_cast<RecordedCollectives&>(*collectives_).losses[&device(index)] = true;
}
void RecordedMachine::allow_recordings(int failing) {
  for (const auto& device : devices_) {
    Recordings& recordings = static_cast<RecordedDevice&>(*device).recordings;
    recordings.allowed = true;
    recordings.failing = failing;
  }
}
void RecordedMachine::use_kernels(MakeKernelOfRequest make) {
  for (const auto& device : devices_) static_cast<RecordedDevice&>(*device).make_of_request = make;
}
void RecordedMachine::part_devices() { streams_->part_devices(); }
void RecordedMachine::host_writes(const void* data, std::size_t bytes) {
  streams_->host_writes(static_cast<const std::byte*>(data), bytes);
}
std::uint64_t RecordedMachine::replayed() const {
  std::uint64_t out = 0;
  for (const auto& device : devices_)
    out += static_cast<RecordedDevice&>(*device).recordings.replayed;
  return out;
}
std::vector<std::string> RecordedMachine::problems() const {
  streams_->check_turns();
  return streams_->problems();
}
std::uint64_t RecordedMachine::frees() const { return streams_->frees(); }
std::uint64_t RecordedMachine::downloads() const { return streams_->downloads(); }
std::pair<std::uint64_t, std::uint64_t> RecordedMachine::pageable_copies() const {
  return streams_->pageable_copies();
}
std::uint64_t RecordedMachine::groups() const { return streams_->groups(); }
std::uint64_t RecordedMachine::exchanged() const { return streams_->exchanged(); }
std::uint64_t RecordedMachine::operations() const { return streams_->operations(); }
std::uint64_t RecordedMachine::uploaded() const { return streams_->uploaded(); }
std::uint64_t RecordedMachine::compared() const { return streams_->compared(); }

}  // namespace pipetrain::test
