#include "pipeline/stage/content_bytes.h"

#include <cstring>
#include <vector>

#include "processes/process_group.h"

namespace pipetrain {

using Tensors = std::map<std::string, HostTensor>;

void put_tensors(ByteWriter& writer, const Tensors& tensors) {
  writer.put(static_cast<std::uint64_t>(tensors.size()));
  for (const auto& [name, value] : tensors) {
    writer.put_text(name);
    writer.put(value.dtype());
    const auto& dims = value.shape().dims();
    writer.put_text({reinterpret_cast<const char*>(dims.data()), dims.size() * sizeof dims[0]});
    writer.put_text({static_cast<const char*>(value.view().data), value.type().bytes()});
  }
}

Tensors get_tensors(ByteReader& reader) {
  Tensors tensors;
  const auto count = reader.get<std::uint64_t>();
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string name(reader.get_text());
    const auto dtype = reader.get<DType>();
    const std::string_view axes = reader.get_text();
    std::vector<std::int64_t> dims(axes.size() / sizeof(std::int64_t));
    axes.copy(reinterpret_cast<char*>(dims.data()), axes.size());
    HostTensor value(TensorType{dtype, Shape(dims)});
    const std::string_view bytes = reader.get_text();
    PT_CHECK(bytes.size() == value.type().bytes(), kInternal, "{} has {} bytes, not {}",
             printable(name), bytes.size(), value.type().bytes());
    if (!bytes.empty()) std::memcpy(value.view().data, bytes.data(), bytes.size());
    tensors.emplace(name, std::move(value));
  }
  return tensors;
}

std::string bytes_of(const StageContent& content) {
  ByteWriter writer;
  for (const Tensors* tensors :
       {&content.weights, &content.states[0], &content.states[1], &content.averages})
    put_tensors(writer, *tensors);
  writer.put(static_cast<std::uint64_t>(content.stashed.size()));
  for (const auto& [version, tensors] : content.stashed) {
    writer.put(version);
    put_tensors(writer, tensors);
  }
  writer.put(content.updates);
  return writer.take();
}

StageContent content_of(std::string_view bytes) {
  ByteReader reader(bytes);
  StageContent content;
  for (Tensors* tensors :
       {&content.weights, &content.states[0], &content.states[1], &content.averages})
    *tensors = get_tensors(reader);
  const auto versions = reader.get<std::uint64_t>();
  for (std::uint64_t i = 0; i < versions; ++i) {
    const int version = reader.get<int>();
    content.stashed.emplace(version, get_tensors(reader));
  }
  content.updates = reader.get<std::int64_t>();
  return content;
}

}  // namespace pipetrain
