// Element types, with ONNX's numbers (TensorProto.DataType).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pipetrain {

enum class DType : std::int32_t {
  kUndefined = 0,
  kFloat32 = 1,
  kUint8 = 2,
  kInt8 = 3,
  kUint16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kBool = 9,
  kFloat16 = 10,
  kFloat64 = 11,
  kUint32 = 12,
  kUint64 = 13,
  kBFloat16 = 16,
};

/// Bytes of one element.
std::size_t size_of(DType dtype);
/// "float32", "int64", …; "type 21" for what is not in the list.
std::string_view name_of(DType dtype);
/// Whether the type is in the list above.
bool is_known(DType dtype);
bool is_float(DType dtype);

/// The C++ type's DType: dtype_of<float>() == DType::kFloat32. bool is one byte.
template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::kFloat32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::kFloat64;
}
template <>
constexpr DType dtype_of<bool>() {
  return DType::kBool;
}
template <>
constexpr DType dtype_of<std::int8_t>() {
  return DType::kInt8;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::kUint8;
}
template <>
constexpr DType dtype_of<std::int16_t>() {
  return DType::kInt16;
}
template <>
constexpr DType dtype_of<std::uint16_t>() {
  return DType::kUint16;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::kInt32;
}
template <>
constexpr DType dtype_of<std::uint32_t>() {
  return DType::kUint32;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::kInt64;
}
template <>
constexpr DType dtype_of<std::uint64_t>() {
  return DType::kUint64;
}

}  // namespace pipetrain
