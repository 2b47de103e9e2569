#include "support/recorded_devices.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <thread>

#include "base/error.h"
#include "ops/registry.h"
#include "optim/update.h"

namespace pipetrain::test {
namespace {

using Clock = std::vector<std::uint64_t>;  // by stream: work that is known to be done

void join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (std::size_t s = 0; s < other.size(); ++s) clock[s] = std::max(clock[s], other[s]);
}

struct Range {
  const std::byte* data;
  std::size_t bytes;
  bool writes;
};

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
    queues_.push_back({device, {}, 0, 0, {}});
    return queues_.size() - 1;
  }

  /// Puts work into a stream. `kernel`: all memory must be the device's.
  void put(std::size_t stream, const std::vector<Range>& accesses, bool kernel,
           const std::string& what, std::function<void()> body) {
    {
      const std::lock_guard lock(mutex_);
      Queue& queue = queues_[stream];
      join(queue.clock, known_);
      const std::uint64_t number = next(stream);
      for (const Range& range : accesses) note(stream, number, range, kernel, what);
      queue.work.push_back({std::move(body), nullptr});
    }
    changed_.notify_all();
  }

  void record(std::size_t stream, Point& point) {
    const std::lock_guard lock(mutex_);
    join(queues_[stream].clock, known_);
    point = {stream, queues_[stream].put, queues_[stream].clock};
  }

  void wait(std::size_t stream, const Point& point) {
    const std::lock_guard lock(mutex_);
    if (point.number == 0) return;
    join(queues_[stream].clock, point.clock);
    next(stream);
    queues_[stream].work.push_back({[] {}, std::make_unique<Point>(point)});
  }

  void wait_for(const Point& point) {
    std::unique_lock lock(mutex_);
    changed_.notify_all();
    ++waiting_;
    changed_.wait(lock, [&] { return stuck_ || queues_[point.stream].done >= point.number; });
    --waiting_;
    join(known_, point.clock);
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
    for (const Access& access : block->second.accesses) {
      if (queues_[access.stream].done < access.number)
        complain(fmt::format("memory is freed that {} may still use", access.what));
    }
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
  std::uint64_t compared() const {
    const std::lock_guard lock(mutex_);
    return compared_;
  }

 private:
  struct Work {
    std::function<void()> body;
    std::unique_ptr<Point> after;
  };
  struct Queue {
    const Device* device;
    std::deque<Work> work;
    std::uint64_t put, done;
    Clock clock;
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

  /// Compares an access with all that touch the same memory.
  void note(std::size_t stream, std::uint64_t number, const Range& range, bool kernel,
            const std::string& what) {
    if (range.bytes == 0) return;
    auto block = blocks_.upper_bound(range.data);
    if (block != blocks_.begin()) --block;
    if (block == blocks_.end() || range.data < block->first ||
        range.data + range.bytes > block->first + block->second.bytes) {
      if (kernel) complain(what + " is given memory of no device");
      return;  // memory of the host
    }
    Block& in = block->second;
    if (kernel && in.device != queues_[stream].device)
      complain(what + " is given memory of another device");
    const auto first = static_cast<std::size_t>(range.data - block->first);
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
    const Point* after = queue.work.front().after.get();
    return !after || queues_[after->stream].done >= after->number;
  }

  /// Works only while somebody waits, so that as much as can be is put in before it is done.
  void work() {
    omp_set_num_threads(1);
    std::unique_lock lock(mutex_);
    for (;;) {
      if (waiting_ == 0) {
        if (stopping_) return;
        changed_.wait(lock);
        continue;
      }
      std::vector<std::size_t> ready;
      bool empty = true;
      for (std::size_t s = 0; s < queues_.size(); ++s) {
        if (can_go_on(queues_[s])) ready.push_back(s);
        empty = empty && queues_[s].work.empty();
      }
      if (ready.empty()) {
        if (!empty && !stuck_) {
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
      ++operations_;
      changed_.notify_all();
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Queue> queues_;
  std::map<const std::byte*, Block> blocks_;
  Clock known_;  // what somebody has waited for: everything put in later comes after it
  std::vector<std::string> problems_;
  std::string failure_;
  std::uint64_t operations_ = 0, compared_ = 0, random_;
  int waiting_ = 0;
  bool stopping_ = false, stuck_ = false;
  std::thread worker_;
};

namespace {

class RecordedPoint final : public StreamPoint {
 public:
  explicit RecordedPoint(RecordedStreams& streams) : streams_(streams) {}
  void synchronize() override { streams_.wait_for(point); }
  RecordedStreams::Point point;

 private:
  RecordedStreams& streams_;
};

class RecordedStream final : public Stream {
 public:
  RecordedStream(RecordedStreams& streams, Device& device)
      : streams_(streams), device_(device), index_(streams.open(&device)) {}
  Device& device() override { return device_; }
  void copy(void* to, const void* from, std::size_t bytes) override {
    put({{static_cast<const std::byte*>(to), bytes, true},
         {static_cast<const std::byte*>(from), bytes, false}},
        /*kernel=*/false, "a copy", [=] { std::memcpy(to, from, bytes); });
  }
  void record(StreamPoint& point) override {
    streams_.record(index_, static_cast<RecordedPoint&>(point).point);
  }
  void wait(const StreamPoint& point) override {
    streams_.wait(index_, static_cast<const RecordedPoint&>(point).point);
  }
  void synchronize() override { streams_.synchronize(index_); }

  void put(const std::vector<Range>& accesses, bool kernel, const std::string& what,
           std::function<void()> body) {
    streams_.put(index_, accesses, kernel, what, std::move(body));
  }

 private:
  RecordedStreams& streams_;
  Device& device_;
  std::size_t index_;
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
  RecordedKernel(RecordedStream& stream, const KernelRequest& request)
      : stream_(stream),
        kernel_(make_kernel(Backend::kCpu, request)),
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
    stream_.put(accesses, /*kernel=*/true, what_,
                [this, in, out, context] { kernel_->run(in, out, context); });
  }
  std::size_t workspace_bytes() const override { return kernel_->workspace_bytes(); }

 private:
  RecordedStream& stream_;
  std::unique_ptr<Kernel> kernel_;
  std::string what_;
};

class RecordedDevice final : public Device {
 public:
  RecordedDevice(RecordedStreams& streams, int index) : streams_(streams), index_(index) {}
  std::string name() const override { return fmt::format("recorded {}", index_); }
  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<RecordedStream>(streams_, *this);
  }
  std::unique_ptr<StreamPoint> make_point() override {
    return std::make_unique<RecordedPoint>(streams_);
  }
  std::unique_ptr<Kernel> make_kernel(Stream& stream, const KernelRequest& request) override {
    // One operator without a kernel: its operands go through the host.
    if (request.node.op->name == "Softmax" || request.node.op->name == "ReluGrad") return nullptr;
    return std::make_unique<RecordedKernel>(static_cast<RecordedStream&>(stream), request);
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

}  // namespace

RecordedMachine::RecordedMachine(int devices, std::uint64_t seed)
    : streams_(std::make_unique<RecordedStreams>(seed)) {
  for (int d = 0; d < devices; ++d)
    devices_.push_back(std::make_unique<RecordedDevice>(*streams_, d));
}

RecordedMachine::~RecordedMachine() = default;

Device& RecordedMachine::device(int index) { return *devices_.at(static_cast<std::size_t>(index)); }
std::vector<std::string> RecordedMachine::problems() const { return streams_->problems(); }
std::uint64_t RecordedMachine::operations() const { return streams_->operations(); }
std::uint64_t RecordedMachine::compared() const { return streams_->compared(); }

}  // namespace pipetrain::test
