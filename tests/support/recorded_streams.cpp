#include "support/recorded_streams.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>

#include "base/error.h"
#include "support/recorded_devices.h"

namespace pipetrain::test {

RecordedStreams::~RecordedStreams() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

std::size_t RecordedStreams::open(const Device* device) {
  const std::lock_guard lock(mutex_);
  queues_.push_back({device, {}, 0, 0, {}, 0, {}});
  return queues_.size() - 1;
}

void RecordedStreams::put(std::size_t stream, const std::vector<MemoryRange>& accesses, bool kernel,
                          const std::string& what, std::function<void()> body, double extra) {
  {
    const std::lock_guard lock(mutex_);
    Queue& queue = queues_[stream];
    join_clocks(queue.clock, known_);
    const std::uint64_t number = next(stream);
    for (const MemoryRange& range : accesses) {
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

bool RecordedStreams::reached(const Point& point) {
  std::unique_lock lock(mutex_);
  ++waiting_;
  changed_.notify_all();
  changed_.wait_for(lock, std::chrono::microseconds(200),
                    [&] { return queues_[point.stream].done >= point.number; });
  --waiting_;
  report_failure();
  if (queues_[point.stream].done < point.number) return false;
  join_clocks(known_, point.clock);
  host_time_ = std::max(host_time_, time_of(point));
  return true;
}

void RecordedStreams::complain_of(const std::string& text) {
  const std::lock_guard lock(mutex_);
  complain(text);
}

void RecordedStreams::record(std::size_t stream, Point& point, bool timed) {
  const std::lock_guard lock(mutex_);
  join_clocks(queues_[stream].clock, known_);
  if (timed) {
    next(stream);
    queues_[stream].work.push_back({[] {}, nullptr, nullptr, host_time_});
  }
  point = {stream, queues_[stream].put, queues_[stream].clock};
}

void RecordedStreams::wait(std::size_t stream, const Point& point) {
  const std::lock_guard lock(mutex_);
  if (point.number == 0) return;
  join_clocks(queues_[stream].clock, point.clock);
  next(stream);
  queues_[stream].work.push_back({[] {}, std::make_unique<Point>(point), nullptr, host_time_});
}

double RecordedStreams::seconds_between(const Point& earlier, const Point& later) {
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

void RecordedStreams::part_devices() {
  const std::lock_guard lock(mutex_);
  parted_ = true;
}

bool RecordedStreams::parted() {
  const std::lock_guard lock(mutex_);
  return parted_;
}

void RecordedStreams::host_writes(const std::byte* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const Block* block = block_of({data, bytes, true});
  if (!block) return complain("the host writes memory of its own, which no device knows");
  const std::byte* begin = std::prev(blocks_.upper_bound(data))->first;
  const auto first = static_cast<std::size_t>(data - begin);
  for (const Access& access : block->accesses) {
    const bool waited_for = access.stream < known_.size() && access.number <= known_[access.stream];
    if (access.first < first + bytes && first < access.last && !waited_for)
      complain(fmt::format("the host overwrites what {} has yet to read", access.what));
  }
}

void RecordedStreams::wait_for(const Point& point) {
  std::unique_lock lock(mutex_);
  changed_.notify_all();
  ++waiting_;
  changed_.wait(lock, [&] { return stuck_ || queues_[point.stream].done >= point.number; });
  --waiting_;
  join_clocks(known_, point.clock);
  host_time_ = std::max(host_time_, time_of(point));
  forget();
  report_failure();
}

void RecordedStreams::synchronize(std::size_t stream) {
  std::unique_lock lock(mutex_);
  const std::uint64_t last = queues_[stream].put;
  changed_.notify_all();
  ++waiting_;
  changed_.wait(lock, [&] { return stuck_ || queues_[stream].done >= last; });
  --waiting_;
  join_clocks(known_, queues_[stream].clock);
  host_time_ = std::max(host_time_, queues_[stream].time);
  forget();
  report_failure();
}

void RecordedStreams::own(const std::byte* data, std::size_t bytes, const Device* device) {
  const std::lock_guard lock(mutex_);
  blocks_[data] = {bytes, device, {}};
}

void RecordedStreams::disown(const std::byte* data) {
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

std::vector<std::string> RecordedStreams::problems() const {
  const std::lock_guard lock(mutex_);
  return problems_;
}

std::uint64_t RecordedStreams::operations() const {
  const std::lock_guard lock(mutex_);
  return operations_;
}

std::uint64_t RecordedStreams::uploaded() const {
  const std::lock_guard lock(mutex_);
  return uploaded_;
}

std::uint64_t RecordedStreams::frees() const {
  const std::lock_guard lock(mutex_);
  return frees_;
}

std::uint64_t RecordedStreams::downloads() const {
  const std::lock_guard lock(mutex_);
  return downloads_;
}

std::pair<std::uint64_t, std::uint64_t> RecordedStreams::pageable_copies() const {
  const std::lock_guard lock(mutex_);
  return {pageable_copies_, pageable_bytes_};
}

std::uint64_t RecordedStreams::groups() const {
  const std::lock_guard lock(mutex_);
  return groups_;
}

std::uint64_t RecordedStreams::exchanged() const {
  const std::lock_guard lock(mutex_);
  return exchanged_;
}

std::uint64_t RecordedStreams::compared() const {
  const std::lock_guard lock(mutex_);
  return compared_;
}

std::uint64_t RecordedStreams::next(std::size_t stream) {
  Queue& queue = queues_[stream];
  if (queue.clock.size() <= stream) queue.clock.resize(stream + 1);
  return queue.clock[stream] = ++queue.put;
}

void RecordedStreams::complain(std::string text) {
  if (problems_.size() < 20) problems_.push_back(std::move(text));
}

double RecordedStreams::time_of(const Point& point) const {
  return point.number == 0 ? 0 : queues_[point.stream].times[point.number - 1];
}

RecordedStreams::Block* RecordedStreams::block_of(const MemoryRange& range) {
  auto block = blocks_.upper_bound(range.data);
  if (block != blocks_.begin()) --block;
  if (block == blocks_.end() || range.data < block->first ||
      range.data + range.bytes > block->first + block->second.bytes)
    return nullptr;
  return &block->second;
}

bool RecordedStreams::reads_device(const std::vector<MemoryRange>& accesses) {
  return std::any_of(accesses.begin(), accesses.end(), [&](const MemoryRange& range) {
    const Block* block = range.writes ? nullptr : block_of(range);
    return block && block->device;
  });
}

void RecordedStreams::check_way(const std::vector<MemoryRange>& ends) {
  const Device* known = nullptr;
  for (const MemoryRange& end : ends) {
    const Block* block = end.bytes > 0 ? block_of(end) : nullptr;
    if (!block || !block->device) continue;
    if (known && known != block->device)
      complain("a copy goes between devices that do not reach each other");
    known = block->device;
  }
}

double RecordedStreams::seconds_of(const Device* device, const std::vector<MemoryRange>& accesses) {
  Cache& cache = caches_[device];
  double seconds = 0;
  for (const MemoryRange& range : accesses) {
    if (range.bytes == 0) continue;
    const auto [found, added] = cache.used.try_emplace(range.data, 0);
    if (added || cache.traffic - found->second > kRecordedCache)
      seconds += recorded_seconds(range.bytes) - recorded_seconds(0);
  }
  for (const MemoryRange& range : accesses) {
    // What is larger than the cache pushes itself out.
    if (range.bytes > 0)
      cache.used[range.data] = std::exchange(cache.traffic, cache.traffic + range.bytes);
  }
  return seconds;
}

double RecordedStreams::start_of(const Queue& queue, const Work& work) const {
  return std::max({queue.time, work.put_at, work.after ? time_of(*work.after) : 0.0});
}

double RecordedStreams::end_of(const Queue& queue, const Work& work) {
  double end = start_of(queue, work) + work.seconds + seconds_of(queue.device, work.accesses);
  if (!work.group) return end;
  for (const ExchangePart& part : work.group->parts) end = std::max(end, part.over);
  return end;
}

void RecordedStreams::note(std::size_t stream, std::uint64_t number, const MemoryRange& range,
                           bool kernel, const std::string& what) {
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
  const StreamClock& clock = queues_[stream].clock;
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

void RecordedStreams::forget() {
  for (auto& [data, block] : blocks_) {
    std::erase_if(block.accesses, [&](const Access& access) {
      return access.stream < known_.size() && access.number <= known_[access.stream];
    });
  }
}

void RecordedStreams::report_failure() const {
  if (stuck_) PT_FAIL(kDevice, "the streams wait for each other");
  if (!failure_.empty()) PT_FAIL(kDevice, "{}", failure_);
}

bool RecordedStreams::can_go_on(const Queue& queue) const {
  if (queue.work.empty()) return false;
  if (queue.work.front().group) return finished(*queue.work.front().group);
  const Point* after = queue.work.front().after.get();
  return !after || queues_[after->stream].done >= after->number;
}

void RecordedStreams::work() {
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

}  // namespace pipetrain::test
