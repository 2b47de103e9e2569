#include "onnx_io/tensor_decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/parallel_blocks.h"
#include "pt_onnx.pb.h"
#include "tensor/finite.h"

namespace pipetrain {

static_assert(std::endian::native == std::endian::little, "ONNX's payloads are little-endian");

namespace {

constexpr std::size_t kMaximumRank = 8;

constexpr std::array<const char*, 29> kTypeNames = {
    "undefined",      "float32",    "uint8",          "int8",       "uint16",    "int16",
    "int32",          "int64",      "string",         "bool",       "float16",   "float64",
    "uint32",         "uint64",     "complex64",      "complex128", "bfloat16",  "float8e4m3fn",
    "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "uint4",      "int4",      "float4e2m1",
    "float8e8m0",     "uint2",      "int2",           "float6e2m3", "float6e3m2"};

std::string why_unusable(std::int32_t type) {
  const std::string name = onnx_type_name(type);
  if (type == 8) return "strings cannot be trained or computed with";
  if (type >= 17 && type < static_cast<std::int32_t>(kTypeNames.size())) {
    return fmt::format("its type is {}: a model quantized for inference; train the float model",
                       name);
  }
  return fmt::format("its type is {}, which is not supported", name);
}

/// The decimal number of an external_data entry.
std::uint64_t parse_number(const std::string& text, const char* key, const std::string& name) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  PT_CHECK(error == std::errc() && end == text.data() + text.size() &&
               value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()),
           kModel, "tensor '{}': {} '{}' of its external data is not a byte count", printable(name),
           key, printable(text));
  return value;
}

template <class To, class Values>
void copy_narrowed(const Values& values, HostTensor& out, const std::string& what) {
  To* to = out.view().as<To>();
  for (const auto value : values) {
    PT_CHECK(std::in_range<To>(value), kModel, "{}: the value {} does not fit {}", what, value,
             name_of(out.dtype()));
    *to++ = static_cast<To>(value);
  }
}

/// The fields of a tensor that may hold its values.
enum class PayloadField : std::uint8_t {
  kNone,
  kRaw,
  kFloats,
  kInt32s,
  kInt64s,
  kDoubles,
  kUint64s,
  kStrings
};

struct Payload {
  PayloadField field = PayloadField::kNone;
  const char* name = "";
  std::size_t count = 0;  // of values; of bytes in raw_data
};

/// The field that holds values; none for a tensor without elements. Error (kModel) if two do.
Payload payload_of(const onnx::Tensor& tensor, std::size_t raw_bytes, const std::string& what) {
  const Payload fields[] = {
      {PayloadField::kRaw, "raw_data", raw_bytes},
      {PayloadField::kFloats, "float_data", static_cast<std::size_t>(tensor.float_data_size())},
      {PayloadField::kInt32s, "int32_data", static_cast<std::size_t>(tensor.int32_data_size())},
      {PayloadField::kInt64s, "int64_data", static_cast<std::size_t>(tensor.int64_data_size())},
      {PayloadField::kDoubles, "double_data", static_cast<std::size_t>(tensor.double_data_size())},
      {PayloadField::kUint64s, "uint64_data", static_cast<std::size_t>(tensor.uint64_data_size())},
      {PayloadField::kStrings, "string_data", static_cast<std::size_t>(tensor.string_data_size())},
  };
  Payload found;
  for (const Payload& candidate : fields) {
    if (candidate.count == 0) continue;
    PT_CHECK(found.count == 0, kModel, "{} has two payloads, {} and {}", what, found.name,
             candidate.name);
    found = candidate;
  }
  return found;
}

/// Copies typed values. Error (kModel) if the type's values belong into another field.
void copy_values(const onnx::Tensor& tensor, const Payload& payload, const std::string& what,
                 HostTensor& value) {
  const auto check_field = [&](PayloadField field) {
    PT_CHECK(payload.field == field, kModel,
             "{} of {} keeps its values in {}, which cannot hold that type", what,
             value.type().text(), payload.name);
  };
  const auto copy = [&](PayloadField field, const auto& values) {
    check_field(field);
    std::memcpy(value.view().data, values.data(), value.type().bytes());
  };
  switch (value.dtype()) {
    case DType::kFloat32:
      return copy(PayloadField::kFloats, tensor.float_data());
    case DType::kInt32:
      return copy(PayloadField::kInt32s, tensor.int32_data());
    case DType::kInt64:
      return copy(PayloadField::kInt64s, tensor.int64_data());
    case DType::kFloat64:
      return copy(PayloadField::kDoubles, tensor.double_data());
    case DType::kUint64:
      return copy(PayloadField::kUint64s, tensor.uint64_data());
    case DType::kUint32:
      check_field(PayloadField::kUint64s);
      return copy_narrowed<std::uint32_t>(tensor.uint64_data(), value, what);
    default:
      check_field(PayloadField::kInt32s);
  }
  switch (value.dtype()) {
    case DType::kInt8:
      return copy_narrowed<std::int8_t>(tensor.int32_data(), value, what);
    case DType::kInt16:
      return copy_narrowed<std::int16_t>(tensor.int32_data(), value, what);
    case DType::kUint8:
    case DType::kBool:
      return copy_narrowed<std::uint8_t>(tensor.int32_data(), value, what);
    default:
      return copy_narrowed<std::uint16_t>(tensor.int32_data(), value, what);
  }
}

}  // namespace

std::string onnx_type_name(std::int32_t type) {
  if (type >= 0 && type < static_cast<std::int32_t>(kTypeNames.size())) {
    return kTypeNames[static_cast<std::size_t>(type)];
  }
  return fmt::format("number {}", type);
}

Shape checked_shape(const std::vector<std::int64_t>& dims, const std::string& what) {
  PT_CHECK(dims.size() <= kMaximumRank, kModel, "{} has rank {}; {} is the most that is supported",
           what, dims.size(), kMaximumRank);
  // Extents of zero count as one here, so that strides cannot overflow either.
  std::int64_t product = 16;  // no element is larger than 16 bytes
  for (std::size_t axis = 0; axis < dims.size(); ++axis) {
    PT_CHECK(dims[axis] >= 0, kModel, "{}: extent {} of axis {} is negative", what, dims[axis],
             axis);
    PT_CHECK(!__builtin_mul_overflow(product, std::max<std::int64_t>(dims[axis], 1), &product),
             kModel, "{}: the size of shape ({}) overflows", what, fmt::join(dims, ", "));
  }
  return Shape(dims);
}

ExternalRange external_range(const onnx::Tensor& tensor, const std::string& name,
                             std::vector<std::string>& warnings) {
  ExternalRange range;
  std::set<std::string> keys;
  for (const onnx::StringPair& entry : tensor.external_data()) {
    PT_CHECK(keys.insert(entry.key()).second, kModel,
             "tensor '{}': its external data has two entries '{}'", printable(name),
             printable(entry.key()));
    if (entry.key() == "location") {
      range.location = entry.value();
    } else if (entry.key() == "offset") {
      range.offset = parse_number(entry.value(), "offset", name);
    } else if (entry.key() == "length") {
      range.length = parse_number(entry.value(), "length", name);
    } else if (entry.key() != "checksum" && entry.key() != "basepath") {
      warnings.push_back(fmt::format("tensor '{}': unknown external-data key '{}' is ignored",
                                     printable(name), printable(entry.key())));
    }
  }
  return range;
}

TensorDecoder::TensorDecoder(std::filesystem::path directory, ExternalDataRules rules,
                             std::uint64_t maximum_bytes)
    : directory_(std::move(directory)), rules_(rules), maximum_bytes_(maximum_bytes) {}

void TensorDecoder::look_for_data(const onnx::Tensor& tensor) {
  if (has_written_data_ || tensor.data_location() != 1) return;
  for (const onnx::StringPair& entry : tensor.external_data()) {
    if (entry.key() != "location" || !looked_at_.insert(entry.value()).second) continue;
    try {
      const ExternalFile file =
          ExternalFile::open(directory_, entry.value(), tensor.name(), rules_);
      has_written_data_ = file.bytes() > 0 && !file.is_unwritten();
    } catch (const Error&) {
      // decode() refuses the tensor.
    }
    return;
  }
}

DecodedTensor TensorDecoder::decode(const onnx::Tensor& tensor, const std::string& name,
                                    std::span<const std::byte> raw_data) {
  const std::string what = fmt::format("tensor '{}'", printable(name));
  DecodedTensor out;
  out.shape = checked_shape({tensor.dims().begin(), tensor.dims().end()}, what);
  out.dtype = static_cast<DType>(tensor.data_type());
  out.external = tensor.data_location() == 1;
  PT_CHECK(tensor.data_location() == 0 || out.external, kModel, "{}: data_location {} is unknown",
           what, tensor.data_location());
  PT_CHECK(tensor.data_type() != 0, kModel, "{} has no element type", what);
  if (!is_known(out.dtype)) {
    out.dtype = DType::kUndefined;
    out.unusable = why_unusable(tensor.data_type());
    if (out.external) {  // its data go along when the model is exported
      const ExternalRange range = open_data(tensor, name);
      check_external_range(range, open_->bytes(), range.length.value_or(0), name);
    }
    return out;
  }
  const std::uint64_t needed = TensorType{out.dtype, out.shape}.bytes();
  if (raw_data.empty()) raw_data = std::as_bytes(std::span(tensor.raw_data()));
  if (out.external) {
    PT_CHECK(raw_data.empty(), kModel, "{} has data both in the model and outside", what);
    read_external(tensor, name, what, out, needed);
  } else {
    if (tensor.external_data_size() > 0) {
      warnings.push_back(what +
                         " names external data but is stored in the model; the model's own "
                         "data are used");
    }
    read_inline(tensor, raw_data, what, out, needed);
  }
  if (out.dtype == DType::kBool && out.value) {  // other bytes than 0 and 1 are no bool in C++
    for (std::uint8_t& byte : out.value.span<std::uint8_t>()) byte = byte != 0;
  }
  warn_of_non_finite(out.value, what);
  return out;
}

HostTensor TensorDecoder::allocate(const DecodedTensor& tensor, const std::string& what) {
  TensorType type{tensor.dtype, tensor.shape};
  PT_CHECK(
      type.bytes() <= maximum_bytes_ - used_bytes_, kModel,
      "{} of {} bytes would exceed the model's limit of {} bytes, 80 % of this machine's memory",
      what, type.bytes(), maximum_bytes_);
  used_bytes_ += type.bytes();
  return HostTensor(std::move(type));
}

ExternalRange TensorDecoder::open_data(const onnx::Tensor& tensor, const std::string& name) {
  ExternalRange range = external_range(tensor, name, warnings);
  if (!open_ || open_location_ != range.location) {
    open_ = ExternalFile::open(directory_, range.location, name, rules_);
    open_location_ = range.location;
    data_files[range.location] = open_->state();
  }
  return range;
}

void TensorDecoder::read_external(const onnx::Tensor& tensor, const std::string& name,
                                  const std::string& what, DecodedTensor& out,
                                  std::uint64_t needed) {
  PT_CHECK(!tensor.has_raw_data() && tensor.float_data().empty() && tensor.int32_data().empty() &&
               tensor.int64_data().empty() && tensor.double_data().empty() &&
               tensor.uint64_data().empty() && tensor.string_data().empty(),
           kModel, "tensor '{}' has data both in the model and outside", printable(name));
  const ExternalRange range = open_data(tensor, name);
  check_external_range(range, open_->bytes(), needed, name);
  if (needed > 0 && !has_written_data_ && open_->is_unwritten()) {
    unwritten_bytes += needed;
    return;
  }
  out.value = allocate(out, what);
  open_->read(range.offset,
              std::as_writable_bytes(std::span(static_cast<char*>(out.value.view().data), needed)));
}

void TensorDecoder::read_inline(const onnx::Tensor& tensor, std::span<const std::byte> raw_data,
                                const std::string& what, DecodedTensor& out, std::uint64_t needed) {
  const Payload payload = payload_of(tensor, raw_data.size(), what);
  const auto elements = static_cast<std::size_t>(out.shape.count());
  const std::string type = TensorType{out.dtype, out.shape}.text();
  PT_CHECK(payload.count > 0 || elements == 0, kModel, "{} of {} has no data", what, type);
  if (payload.field == PayloadField::kRaw) {
    PT_CHECK(payload.count == needed, kModel, "{} of {} needs {} bytes of raw_data and has {}",
             what, type, needed, payload.count);
  } else {
    PT_CHECK(payload.count == elements, kModel, "{} of {} needs {} values of {} and has {}", what,
             type, elements, payload.name, payload.count);
  }
  HostTensor value = allocate(out, what);
  if (payload.field == PayloadField::kRaw) {
    copy_in_parallel(value.view().data, raw_data.data(), needed);
  } else if (payload.count > 0) {
    copy_values(tensor, payload, what, value);
  }
  out.value = value;
}

void TensorDecoder::warn_of_non_finite(const HostTensor& value, const std::string& what) {
  if (!value || all_finite(value.view())) return;
  // Masks of zeros and minus infinity are meant; anything else that is not finite is a mishap.
  std::size_t bad = 0;
  std::size_t minus_infinity = 0;
  bool is_mask = true;
  for (const double x : value.to_doubles()) {
    if (std::isfinite(x)) {
      is_mask = is_mask && x == 0;
    } else if (std::isnan(x) || x > 0) {
      ++bad;
    } else {
      ++minus_infinity;
    }
  }
  if (!is_mask) bad += minus_infinity;
  if (bad == 0) return;
  warnings.push_back(fmt::format("{} holds {} value{} that {} not finite (NaN or infinity)", what,
                                 bad, bad == 1 ? "" : "s", bad == 1 ? "is" : "are"));
}

}  // namespace pipetrain
