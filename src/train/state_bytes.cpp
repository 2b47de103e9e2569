#include "train/state_bytes.h"

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"

namespace pipetrain {
namespace {

/// Writes the content into memory; without memory it only counts the bytes.
class Writer {
 public:
  explicit Writer(std::byte* to) : to_(to) {}
  void put(const void* from, std::size_t bytes) {
    if (to_ && bytes > 0) std::memcpy(to_ + written_, from, bytes);
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
  void put(const ReplicaRecord& record) {
    put(static_cast<std::int64_t>(record.parts.size()));
    put(record.parts.data(), record.parts.size() * sizeof(DataPart));
    put(static_cast<std::int64_t>(record.rates.size()));
    put(record.rates.data(), record.rates.size() * sizeof(double));
    put(record.next_part);
    put(record.unfinished);
    put(record.start);
    put(record.changed_at);
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
    PT_CHECK(bytes <= from_.size(), kInternal, "a copy of a run's state ends early");
    if (bytes > 0) std::memcpy(to, from_.data(), bytes);
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
  ReplicaRecord replica_record() {
    ReplicaRecord record;
    record.parts.resize(static_cast<std::size_t>(number()));
    get(record.parts.data(), record.parts.size() * sizeof(DataPart));
    record.rates.resize(static_cast<std::size_t>(number()));
    get(record.rates.data(), record.rates.size() * sizeof(double));
    record.next_part = number();
    record.unfinished = numbers<std::int64_t>();
    record.start = text();
    record.changed_at = number();
    return record;
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
  out.put(checkpoint.unmeasured.metric);
  out.put(checkpoint.unmeasured.validations);
  out.put(std::int64_t{checkpoint.unevaluated});
  out.put(checkpoint.cuts);
  out.put(checkpoint.order);
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
  out.unmeasured.metric = in.text();
  out.unmeasured.validations = in.number();
  out.unevaluated = in.number() != 0;
  out.cuts = in.numbers<int>();
  out.order = in.numbers<int>();
  out.round_start = in.number();
  out.round_batches = in.number();
  out.updates = in.numbers<std::int64_t>();
  return out;
}

void write_to(const Checkpoint& checkpoint, Writer& out) {
  write_fields(checkpoint, out);
  out.put(checkpoint.weights);
  out.put(checkpoint.optimizer);
  out.put(checkpoint.best_weights);
  out.put(static_cast<std::int64_t>(checkpoint.stashed.size()));
  for (const auto& [version, tensors] : checkpoint.stashed) {
    out.put(std::int64_t{version});
    out.put(tensors);
  }
  out.put(std::int64_t{checkpoint.replicas.has_value()});
  if (checkpoint.replicas) out.put(*checkpoint.replicas);
}

}  // namespace

StateBytes::StateBytes(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {
  Writer counter(nullptr);
  write_to(checkpoint_, counter);
  size_ = counter.written();
}

void StateBytes::write(std::byte* to) const {
  Writer writer(to);
  write_to(checkpoint_, writer);
}

Checkpoint read_state(std::span<const std::byte> bytes) {
  Reader in(bytes);
  Checkpoint checkpoint = read_fields(in);
  checkpoint.weights = in.tensors();
  checkpoint.optimizer = in.tensors();
  checkpoint.best_weights = in.tensors();
  for (std::int64_t left = in.number(); left > 0; --left) {
    const auto version = static_cast<int>(in.number());
    checkpoint.stashed[version] = in.tensors();
  }
  if (in.number() != 0) checkpoint.replicas = in.replica_record();
  return checkpoint;
}

}  // namespace pipetrain
