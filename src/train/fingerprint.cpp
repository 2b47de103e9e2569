#include "train/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checksum.h"

namespace pipetrain {
namespace {

/// Hashes values with their lengths, so that no two sequences of them are the same bytes.
class Fingerprint {
 public:
  void add(std::string_view text) {
    add(static_cast<std::int64_t>(text.size()));
    hash_.add(text);
  }
  void add(std::int64_t number) { hash_.add(std::as_bytes(std::span(&number, 1))); }
  void add(float number) { hash_.add(std::as_bytes(std::span(&number, 1))); }
  template <class T>
  void add(const std::vector<T>& list) {
    add(static_cast<std::int64_t>(list.size()));
    for (const T& item : list) add(item);
  }
  void add(const OnnxDim& dim) {
    add(dim.symbol);
    add(dim.value);
  }
  void add(const OnnxValue& value) {
    add(value.name);
    add(static_cast<std::int64_t>(value.dtype));
    add(value.dims);
  }
  void add(const HostTensor& tensor) {
    add(tensor.type().text());
    if (tensor)
      hash_.add({static_cast<const std::byte*>(tensor.view().data), tensor.type().bytes()});
  }
  void add(const OnnxAttribute& attribute) {
    add(attribute.name);
    add(static_cast<std::int64_t>(attribute.kind));
    add(attribute.f);
    add(attribute.i);
    add(attribute.s);
    if (!is_float(attribute.tensor.dtype())) add(attribute.tensor);
    add(attribute.floats);
    add(attribute.ints);
    add(attribute.strings);
  }
  void add(const OnnxNode& node) {
    add(node.op_type);
    add(node.domain);
    add(node.opset);
    add(node.inputs);
    add(node.outputs);
    add(node.attributes);
  }
  void add(const OnnxNodes& nodes) {
    add(static_cast<std::int64_t>(nodes.size()));
    for (const OnnxNode& node : nodes) add(node);
  }
  void add(const OnnxInitializer& initializer) {
    add(initializer.name);
    add(static_cast<std::int64_t>(initializer.file_dtype));
    add(initializer.shape.dims());
    if (!is_float(initializer.file_dtype)) add(initializer.value);
  }
  std::string digest() { return hash_.digest(); }

 private:
  Sha256 hash_;
};

std::uint32_t checksum(const Dataset& dataset, std::span<const std::size_t> indices,
                       std::uint32_t crc) {
  for (std::size_t c = 0; c < dataset.columns().size(); ++c) {
    const HostTensor values(dataset.columns()[c].batch_type(indices.size()));
    dataset.gather(indices, c, values.view());
    crc = crc32c({static_cast<const std::byte*>(values.view().data), values.type().bytes()}, crc);
  }
  return crc;
}

}  // namespace

std::string fingerprint(const OnnxModel& model) {
  Fingerprint out;
  out.add(model.inputs);
  out.add(model.outputs);
  out.add(model.nodes);
  out.add(model.initializers);
  return out.digest();
}

std::string fingerprint(const Dataset& dataset) {
  constexpr std::size_t kLooked = 16;
  const std::size_t samples = dataset.size();
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < std::min(kLooked, samples); ++i)
    indices.push_back(i * samples / std::min(kLooked, samples));
  return fmt::format("{} samples, {:08x}", samples, checksum(dataset, indices, 0));
}

std::string content_fingerprint(const Dataset& dataset) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 30, kLooked = 4'096, kAtOnce = 1'024;
  std::size_t bytes = 0;
  for (const Column& column : dataset.columns()) bytes += column.batch_type(1).bytes();
  const bool all = bytes * dataset.size() <= kMostBytes;
  const std::size_t looked = all ? dataset.size() : kLooked;
  std::uint32_t crc = 0;
  for (std::size_t begin = 0; begin < looked; begin += kAtOnce) {
    std::vector<std::size_t> indices;
    for (std::size_t i = begin; i < std::min(looked, begin + kAtOnce); ++i)
      indices.push_back(all ? i : i * dataset.size() / looked);
    crc = checksum(dataset, indices, crc);
  }
  return fmt::format("{} samples, {:08x}", dataset.size(), crc);
}

}  // namespace pipetrain
