#include "train/snapshot.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/units.h"

namespace pipetrain {
namespace {

/// What a copy begins with.
struct Head {
  std::atomic<std::uint64_t> number;  // the larger one is newer; 0: not whole
  std::uint64_t bytes;                // of the content, which follows
  std::uint32_t crc32c;               // of the content
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
constexpr std::size_t kHeadBytes = 64;
static_assert(sizeof(Head) <= kHeadBytes);

Head& head_of(std::byte* memory) { return *reinterpret_cast<Head*>(memory); }

/// Writes the content into memory; without memory it only counts the bytes.
class Writer {
 public:
  explicit Writer(std::byte* to) : to_(to) {}
  void put(const void* from, std::size_t bytes) {
    if (to_) std::memcpy(to_ + written_, from, bytes);
    written_ += bytes;
  }
  void put(std::int64_t number) { put(&number, sizeof number); }
  void put(double number) { put(&number, sizeof number); }
  void put(const std::string& text) {
    put(static_cast<std::int64_t>(text.size()));
    put(text.data(), text.size());
  }
  void put(const std::vector<Setting>& settings) {
    put(static_cast<std::int64_t>(settings.size()));
    for (const auto& [name, value] : settings) {
      put(name);
      put(value);
    }
  }
  template <class Number>
  void put(const std::vector<Number>& numbers) {
    put(static_cast<std::int64_t>(numbers.size()));
    for (const Number number : numbers) put(std::int64_t{number});
  }
  void put(const NamedTensors& tensors) {
    put(static_cast<std::int64_t>(tensors.size()));
    for (const auto& [name, tensor] : tensors) {
      put(name);
      put(static_cast<std::int64_t>(tensor.dtype()));
      put(static_cast<std::int64_t>(tensor.shape().rank()));
      for (const std::int64_t dim : tensor.shape()) put(dim);
      put(tensor.view().data, tensor.type().bytes());
    }
  }
  std::size_t written() const { return written_; }

 private:
  std::byte* to_;
  std::size_t written_ = 0;
};

/// Reads what a Writer of this program has written; its checksum is right.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> from) : from_(from) {}
  void get(void* to, std::size_t bytes) {
    PT_CHECK(bytes <= from_.size(), kInternal, "a snapshot ends early");
    std::memcpy(to, from_.data(), bytes);
    from_ = from_.subspan(bytes);
  }
  std::int64_t number() {
    std::int64_t number = 0;
    get(&number, sizeof number);
    return number;
  }
  double real() {
    double number = 0;
    get(&number, sizeof number);
    return number;
  }
  template <class Number>
  std::vector<Number> numbers() {
    std::vector<Number> numbers(static_cast<std::size_t>(number()));
    for (Number& each : numbers) each = static_cast<Number>(number());
    return numbers;
  }
  std::vector<Setting> settings() {
    std::vector<Setting> settings(static_cast<std::size_t>(number()));
    for (auto& [name, value] : settings) {
      name = text();
      value = text();
    }
    return settings;
  }
  std::string text() {
    std::string text(static_cast<std::size_t>(number()), '\0');
    get(text.data(), text.size());
    return text;
  }
  NamedTensors tensors() {
    NamedTensors tensors;
    for (std::int64_t left = number(); left > 0; --left) {
      const std::string name = text();
      TensorType type;
      type.dtype = static_cast<DType>(number());
      std::vector<std::int64_t> dims(static_cast<std::size_t>(number()));
      for (std::int64_t& dim : dims) dim = number();
      type.shape = Shape(std::move(dims));
      HostTensor tensor(type);
      get(tensor.view().data, type.bytes());
      tensors.emplace(name, std::move(tensor));
    }
    return tensors;
  }

 private:
  std::span<const std::byte> from_;
};

// All but the tensors. Not as a manifest: making and signing one takes longer than all the rest of
// a small state.
void write_fields(const Checkpoint& checkpoint, Writer& out) {
  out.put(checkpoint.run.model_fingerprint);
  out.put(checkpoint.run.data_fingerprint);
  out.put(checkpoint.run.settings);
  out.put(checkpoint.run.outputs);
  out.put(checkpoint.run.numbers);
  out.put(checkpoint.reason);
  out.put(checkpoint.step);
  out.put(checkpoint.total_steps);
  out.put(checkpoint.batches_per_epoch);
  out.put(checkpoint.learning_rate);
  out.put(checkpoint.loss_scale.value);
  out.put(checkpoint.loss_scale.finite_steps);
  out.put(checkpoint.loss_scale.skipped);
  out.put(checkpoint.seconds);
  out.put(std::int64_t{checkpoint.best.has_value()});
  const BestResult best = checkpoint.best.value_or(BestResult());
  out.put(best.step);
  out.put(best.value);
  out.put(best.metric);
  out.put(best.stalled);
  out.put(checkpoint.cuts);
  out.put(checkpoint.round_start);
  out.put(checkpoint.round_batches);
  out.put(checkpoint.updates);
}

Checkpoint read_fields(Reader& in) {
  Checkpoint out;
  out.is_own = true;
  out.run.model_fingerprint = in.text();
  out.run.data_fingerprint = in.text();
  out.run.settings = in.settings();
  out.run.outputs = in.settings();
  out.run.numbers = in.settings();
  out.reason = in.text();
  out.step = in.number();
  out.total_steps = in.number();
  out.batches_per_epoch = in.number();
  out.learning_rate = in.real();
  out.loss_scale.value = in.real();
  out.loss_scale.finite_steps = in.number();
  out.loss_scale.skipped = in.number();
  out.seconds = in.real();
  const bool has_best = in.number() != 0;
  BestResult best;
  best.step = in.number();
  best.value = in.real();
  best.metric = in.text();
  best.stalled = in.number();
  if (has_best) out.best = best;
  out.cuts = in.numbers<int>();
  out.round_start = in.number();
  out.round_batches = in.number();
  out.updates = in.numbers<std::int64_t>();
  return out;
}

void write(const Checkpoint& checkpoint, Writer& out) {
  write_fields(checkpoint, out);
  out.put(checkpoint.weights);
  out.put(checkpoint.optimizer);
  out.put(checkpoint.best_weights);
  out.put(static_cast<std::int64_t>(checkpoint.stashed.size()));
  for (const auto& [version, tensors] : checkpoint.stashed) {
    out.put(std::int64_t{version});
    out.put(tensors);
  }
}

Checkpoint read(Reader in) {
  Checkpoint checkpoint = read_fields(in);
  checkpoint.weights = in.tensors();
  checkpoint.optimizer = in.tensors();
  checkpoint.best_weights = in.tensors();
  for (std::int64_t left = in.number(); left > 0; --left) {
    const auto version = static_cast<int>(in.number());
    checkpoint.stashed[version] = in.tensors();
  }
  return checkpoint;
}

}  // namespace

Snapshot::Snapshot() {
  costs_.fill(std::numeric_limits<double>::infinity());
  for (Copy& copy : copies_) {
    copy.file = ::memfd_create("pipetrain snapshot", MFD_CLOEXEC);
    PT_CHECK(copy.file >= 0, kResource, "cannot make a snapshot in memory: {}",
             std::strerror(errno));
  }
}

Snapshot::~Snapshot() {
  for (const Copy& copy : copies_) {
    if (copy.memory) ::munmap(copy.memory, copy.bytes);
    if (copy.file >= 0) ::close(copy.file);
  }
}

void Snapshot::forget() {
  for (Copy& copy : copies_) {
    if (copy.memory) ::munmap(copy.memory, copy.bytes);
    copy.memory = nullptr;
    copy.bytes = 0;
    [[maybe_unused]] const int ignored = ::ftruncate(copy.file, 0);
  }
}

/// Makes a copy's memory at least that large, and resident.
void Snapshot::map(Copy& copy, std::size_t bytes) {
  if (bytes <= copy.bytes) return;
  if (copy.memory) ::munmap(copy.memory, copy.bytes);
  copy.memory = nullptr;
  copy.bytes = 0;
  int failure = ::posix_fallocate(copy.file, 0, static_cast<off_t>(bytes));
  void* memory = MAP_FAILED;
  if (failure == 0) {
    memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, copy.file, 0);
    if (memory == MAP_FAILED) failure = errno;
  }
  PT_CHECK(failure == 0, kResource, "a snapshot in memory needs 2 x {}: {}", bytes_text(bytes),
           std::strerror(failure));
  copy.memory = static_cast<std::byte*>(memory);
  copy.bytes = bytes;
}

std::span<const std::byte> Snapshot::content(const Copy& copy) {
  return {copy.memory + kHeadBytes, head_of(copy.memory).bytes};
}

bool Snapshot::is_due() const { return steady_seconds() >= due_seconds_; }

void Snapshot::keep(const Checkpoint& checkpoint, double seconds) {
  double start = steady_seconds();
  Writer counter(nullptr);
  write(checkpoint, counter);
  const std::size_t bytes = kHeadBytes + counter.written();
  for (Copy& copy : copies_) {
    if (bytes <= copy.bytes) continue;
    seconds += steady_seconds() - start;  // but not the time to take memory, once
    struct stat status {};
    // What an earlier process has left there is still needed.
    const auto before =
        ::fstat(copy.file, &status) == 0 ? static_cast<std::size_t>(status.st_size) : 0;
    map(copy, std::max(before, bytes + bytes / 8));
    start = steady_seconds();
  }
  const bool second = head_of(copies_[1].memory).number < head_of(copies_[0].memory).number;
  Copy& copy = copies_[second ? 1 : 0];
  const std::uint64_t newest = head_of(copies_[second ? 0 : 1].memory).number;
  Head& head = head_of(copy.memory);
  head.number.store(0, std::memory_order_seq_cst);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  Writer writer(copy.memory + kHeadBytes);
  write(checkpoint, writer);
  head.bytes = writer.written();
  head.crc32c = crc32c(content(copy));
  head.number.store(newest + 1, std::memory_order_seq_cst);
  const double now = steady_seconds();
  // Another program may have had the processor meanwhile: the least of some copies tells the cost.
  costs_[static_cast<std::size_t>(newest % costs_.size())] = seconds + now - start;
  const double cost = *std::min_element(costs_.begin(), costs_.end());
  due_seconds_ = now + cost * (1 / kMostShare - 1);
}

std::optional<Checkpoint> Snapshot::newest() const {
  std::array<Copy, 2> copies = copies_;
  for (Copy& copy : copies) {
    struct stat status {};
    copy.memory = nullptr;
    copy.bytes = 0;
    if (::fstat(copy.file, &status) == 0 && status.st_size > static_cast<off_t>(kHeadBytes))
      map(copy, static_cast<std::size_t>(status.st_size));
  }
  const auto number = [](const Copy& copy) {
    return copy.memory ? head_of(copy.memory).number.load() : std::uint64_t{0};
  };
  if (number(copies[0]) < number(copies[1])) std::swap(copies[0], copies[1]);
  std::optional<Checkpoint> found;
  for (const Copy& copy : copies) {
    if (found || number(copy) == 0) continue;
    const bool fits = head_of(copy.memory).bytes <= copy.bytes - kHeadBytes;
    if (fits && crc32c(content(copy)) == head_of(copy.memory).crc32c)
      found = read(Reader(content(copy)));
  }
  for (const Copy& copy : copies) {
    if (copy.memory) ::munmap(copy.memory, copy.bytes);
  }
  return found;
}

}  // namespace pipetrain
