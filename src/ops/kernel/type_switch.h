// From a DType known at run time to a C++ type: visit(T{}) is called with the type's zero. The
// result says whether the type was in the list. bool is visited as std::uint8_t.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace pipetrain {

template <class Visit>
bool visit_float(DType dtype, Visit visit) {
  if (dtype == DType::kFloat32) return visit(float{}), true;
  if (dtype == DType::kFloat64) return visit(double{}), true;
  return false;
}

template <class Visit>
bool visit_integer(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::kInt64:
      return visit(std::int64_t{}), true;
    case DType::kInt32:
      return visit(std::int32_t{}), true;
    case DType::kInt16:
      return visit(std::int16_t{}), true;
    case DType::kInt8:
      return visit(std::int8_t{}), true;
    case DType::kUint64:
      return visit(std::uint64_t{}), true;
    case DType::kUint32:
      return visit(std::uint32_t{}), true;
    case DType::kUint16:
      return visit(std::uint16_t{}), true;
    case DType::kUint8:
      return visit(std::uint8_t{}), true;
    default:
      return false;
  }
}

/// Floats and integers, not bool.
template <class Visit>
bool visit_number(DType dtype, Visit visit) {
  return visit_float(dtype, visit) || visit_integer(dtype, visit);
}

/// Dispatch on the element size only, for operators that move data: std::uint8_t … std::uint64_t.
template <class Visit>
bool visit_size(DType dtype, Visit visit) {
  switch (size_of(dtype)) {
    case 1:
      return visit(std::uint8_t{}), true;
    case 2:
      return visit(std::uint16_t{}), true;
    case 4:
      return visit(std::uint32_t{}), true;
    case 8:
      return visit(std::uint64_t{}), true;
    default:
      return false;
  }
}

}  // namespace pipetrain
