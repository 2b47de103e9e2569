#include "onnx_io/encode.h"

#include <bit>

#include "base/error.h"
#include "onnx_io/wire.h"

namespace pipetrain {

using namespace onnx_wire;

namespace {

void append_float(std::string& out, std::uint32_t number, float value) {
  append_tag(out, number, Wire::kFixed32);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(bits >> shift & 0xff);
}

void append_signed(std::string& out, std::uint32_t number, std::int64_t value) {
  append_int(out, number, static_cast<std::uint64_t>(value));
}

// What every TensorProto begins with.
std::string encode_type(std::string_view name, const TensorType& type) {
  std::string out;
  for (const std::int64_t extent : type.shape) append_signed(out, 1, extent);
  append_signed(out, 2, static_cast<std::int64_t>(type.dtype));
  append_bytes(out, 8, name);
  return out;
}

// AttributeProto.type by kind, in the order of OnnxAttribute::Kind.
constexpr std::int64_t kTypes[] = {1, 2, 3, 4, 6, 7, 8};

}  // namespace

std::string encode_pair(std::string_view key, std::string_view value) {
  std::string out;
  append_bytes(out, 1, key);
  append_bytes(out, 2, value);
  return out;
}

std::string encode_opset(std::string_view domain, std::int64_t version) {
  std::string out;
  append_bytes(out, 1, domain);
  append_signed(out, 2, version);
  return out;
}

std::string encode_tensor(std::string_view name, const HostTensor& value,
                          const ExternalPlace* place) {
  if (place) return encode_external_tensor(name, value.type(), *place);
  std::string out = encode_type(name, value.type());
  append_bytes(out, 9, {static_cast<const char*>(value.view().data), value.type().bytes()});
  return out;
}

std::string encode_external_tensor(std::string_view name, const TensorType& type,
                                   const ExternalPlace& place) {
  std::string out = encode_type(name, type);
  append_bytes(out, 13, encode_pair("location", place.location));
  append_bytes(out, 13, encode_pair("offset", fmt::format("{}", place.offset)));
  append_bytes(out, 13, encode_pair("length", fmt::format("{}", place.length)));
  append_int(out, 14, 1);
  return out;
}

std::string encode_attribute(const OnnxAttribute& attribute) {
  using Kind = OnnxAttribute::Kind;
  std::string out;
  append_bytes(out, 1, attribute.name);
  switch (attribute.kind) {
    case Kind::kFloat:
      append_float(out, 2, attribute.f);
      break;
    case Kind::kInt:
      append_signed(out, 3, attribute.i);
      break;
    case Kind::kString:
      append_bytes(out, 4, attribute.s);
      break;
    case Kind::kTensor:
      append_bytes(out, 5, encode_tensor("", attribute.tensor));
      break;
    case Kind::kFloats:
      for (const float value : attribute.floats) append_float(out, 7, value);
      break;
    case Kind::kInts:
      for (const std::int64_t value : attribute.ints) append_signed(out, 8, value);
      break;
    case Kind::kStrings:
      for (const std::string& value : attribute.strings) append_bytes(out, 9, value);
      break;
    case Kind::kGraph:
    case Kind::kOther:
      PT_FAIL(kInternal, "attribute '{}' cannot be written: it is {}", printable(attribute.name),
              name_of(attribute.kind));
  }
  append_signed(out, 20, kTypes[static_cast<std::size_t>(attribute.kind)]);
  return out;
}

std::string encode_node(const OnnxNode& node) {
  std::string out;
  for (const std::string& input : node.inputs) append_bytes(out, 1, input);
  for (const std::string& output : node.outputs) append_bytes(out, 2, output);
  if (!node.name.empty()) append_bytes(out, 3, node.name);
  append_bytes(out, 4, node.op_type);
  for (const OnnxAttribute& attribute : node.attributes) {
    append_bytes(out, 5, encode_attribute(attribute));
  }
  if (!node.domain.empty()) append_bytes(out, 7, node.domain);
  return out;
}

std::string encode_value(const OnnxValue& value) {
  std::string shape;
  for (const OnnxDim& dim : value.dims) {
    std::string extent;
    if (!dim.symbol.empty()) {
      append_bytes(extent, 2, dim.symbol);
    } else if (dim.value >= 0) {
      append_signed(extent, 1, dim.value);
    }
    append_bytes(shape, 1, extent);
  }
  std::string tensor;
  append_signed(tensor, 1, static_cast<std::int64_t>(value.dtype));
  if (value.has_shape) append_bytes(tensor, 2, shape);
  std::string type;
  append_bytes(type, 1, tensor);
  std::string out;
  append_bytes(out, 1, value.name);
  append_bytes(out, 2, type);
  return out;
}

}  // namespace pipetrain
