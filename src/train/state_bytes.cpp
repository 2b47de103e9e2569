#include "train/state_bytes.h"

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "train/manifest.h"

namespace pipetrain {
namespace {

/// Writes the content into memory; without memory it only counts the bytes.
class Writer {
 public:
  explicit Writer(std::byte* to) : to_(to) {}
  void put(const void* from, std::size_t bytes) {
    if (to_) std::memcpy(to_ + written_, from, bytes);
    written_ += bytes;
  }
  void put(std::int64_t number) { put(&number, sizeof number); }
  void put(const std::string& text) {
    put(static_cast<std::int64_t>(text.size()));
    put(text.data(), text.size());
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
    PT_CHECK(bytes <= from_.size(), kInternal, "a copy of a run's state ends early");
    std::memcpy(to, from_.data(), bytes);
    from_ = from_.subspan(bytes);
  }
  std::int64_t number() {
    std::int64_t number = 0;
    get(&number, sizeof number);
    return number;
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

void write_to(const std::string& manifest, const Checkpoint& checkpoint, Writer& out) {
  out.put(manifest);
  out.put(checkpoint.weights);
  out.put(checkpoint.optimizer);
  out.put(checkpoint.best_weights);
  out.put(static_cast<std::int64_t>(checkpoint.stashed.size()));
  for (const auto& [version, tensors] : checkpoint.stashed) {
    out.put(std::int64_t{version});
    out.put(tensors);
  }
}

}  // namespace

StateBytes::StateBytes(const Checkpoint& checkpoint)
    : checkpoint_(checkpoint), manifest_(manifest_text(checkpoint, {})) {
  Writer counter(nullptr);
  write_to(manifest_, checkpoint_, counter);
  size_ = counter.written();
}

void StateBytes::write(std::byte* to) const {
  Writer writer(to);
  write_to(manifest_, checkpoint_, writer);
}

Checkpoint read_state(std::span<const std::byte> bytes) {
  Reader in(bytes);
  std::vector<FileRecord> none;
  Checkpoint checkpoint = parse_manifest(in.text(), "the state in memory", none);
  checkpoint.is_own = true;
  checkpoint.weights = in.tensors();
  checkpoint.optimizer = in.tensors();
  checkpoint.best_weights = in.tensors();
  for (std::int64_t left = in.number(); left > 0; --left) {
    const auto version = static_cast<int>(in.number());
    checkpoint.stashed[version] = in.tensors();
  }
  return checkpoint;
}

}  // namespace pipetrain
