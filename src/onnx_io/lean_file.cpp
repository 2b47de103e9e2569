#include "onnx_io/lean_file.h"

#include "onnx_io/wire.h"

namespace pipetrain {

using namespace onnx_wire;

namespace {

// Numbers of fields in ONNX's schema.
constexpr std::uint32_t kGraph = 7, kInitializer = 5, kRawData = 9;

/// Appends the fields of a message; `take` says for each whether it has dealt with it.
template <class Take>
void copy_fields(std::span<const std::byte> file, Range message, std::string& out, Take&& take) {
  Reader reader(file, message);
  while (!reader.at_end()) {
    const Field field = reader.next();
    if (field.wire != Wire::kBytes || !take(field)) out += text(file, field.record);
  }
}

}  // namespace

LeanFile without_weights(std::span<const std::byte> file, std::size_t least_bytes) {
  LeanFile lean;
  const auto take_payload = [&](const Field& field) {
    if (field.number != kRawData || field.content.size() < least_bytes) return false;
    lean.raw_data.back() = file.subspan(field.content.begin, field.content.size());
    return true;
  };
  copy_fields(file, {0, file.size()}, lean.bytes, [&](const Field& graph) {
    if (graph.number != kGraph) return false;
    std::string fields;
    copy_fields(file, graph.content, fields, [&](const Field& initializer) {
      if (initializer.number != kInitializer) return false;
      lean.raw_data.emplace_back();
      std::string tensor;
      copy_fields(file, initializer.content, tensor, take_payload);
      append_bytes(fields, kInitializer, tensor);
      return true;
    });
    append_bytes(lean.bytes, kGraph, fields);
    return true;
  });
  return lean;
}

}  // namespace pipetrain
