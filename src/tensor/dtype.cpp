#include "tensor/dtype.h"

namespace pipetrain {
namespace {

struct Info {
  DType dtype;
  std::size_t size;
  std::string_view name;
  bool floating;
};

constexpr Info kInfos[] = {
    {DType::kFloat32, 4, "float32", true},   {DType::kUint8, 1, "uint8", false},
    {DType::kInt8, 1, "int8", false},        {DType::kUint16, 2, "uint16", false},
    {DType::kInt16, 2, "int16", false},      {DType::kInt32, 4, "int32", false},
    {DType::kInt64, 8, "int64", false},      {DType::kBool, 1, "bool", false},
    {DType::kFloat16, 2, "float16", true},   {DType::kFloat64, 8, "float64", true},
    {DType::kUint32, 4, "uint32", false},    {DType::kUint64, 8, "uint64", false},
    {DType::kBFloat16, 2, "bfloat16", true},
};

const Info* find(DType dtype) {
  for (const Info& info : kInfos) {
    if (info.dtype == dtype) return &info;
  }
  return nullptr;
}

}  // namespace

std::size_t size_of(DType dtype) {
  const Info* info = find(dtype);
  return info ? info->size : 0;
}

std::string_view name_of(DType dtype) {
  const Info* info = find(dtype);
  return info ? info->name : "an unknown type";
}

bool is_known(DType dtype) { return find(dtype) != nullptr; }

bool is_float(DType dtype) {
  const Info* info = find(dtype);
  return info && info->floating;
}

}  // namespace pipetrain
