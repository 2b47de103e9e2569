#include "support/recorded_devices.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "device/recorded_work.h"
#include "ops/kernel/logged_kernel.h"
#include "ops/registry/registry.h"
#include "optim/update.h"
#include "support/recorded_streams.h"

namespace pipetrain::test {
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

  void put(const std::shared_ptr<ExchangeGroup>& group) {
    expect_no_recording();
    streams_.put(index_, group);
  }
  void put(const std::vector<MemoryRange>& accesses, bool kernel, const std::string& what,
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
      std::vector<MemoryRange> accesses;
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
MemoryRange reads(const T* data, std::size_t count) {
  return {reinterpret_cast<const std::byte*>(data), count * sizeof(T), false};
}
template <class T>
MemoryRange writes(T* data, std::size_t count) {
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
    std::vector<MemoryRange> accesses;
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
    std::vector<MemoryRange> accesses = {writes(sums, values.size()),
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
    std::vector<MemoryRange> accesses;
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
  static void put(Stream& stream, const std::vector<MemoryRange>& accesses, const char* what,
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
    group_ = std::make_shared<ExchangeGroup>(ExchangeGroup{&device_, {}});
  }
  void send(Stream& stream, const void* from, std::size_t bytes, int peer) override {
    add(stream, ExchangePart::Kind::kSend, const_cast<void*>(from), bytes, peer);
  }
  void receive(Stream& stream, void* to, std::size_t bytes, int peer) override {
    add(stream, ExchangePart::Kind::kReceive, to, bytes, peer);
  }
  void all_reduce(Stream& stream, float* values, std::size_t count) override {
    add(stream, ExchangePart::Kind::kSum, values, count * sizeof(float), -1);
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
  void add(Stream& stream, ExchangePart::Kind kind, void* data, std::size_t bytes, int peer) {
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
  std::shared_ptr<ExchangeGroup> group_;
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
