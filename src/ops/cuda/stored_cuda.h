// Float operands of kernels: stored in one of three types, computed in float. The type is a
// run-time value that is the same for all threads, so one kernel serves every mix of operands
// (C++17: nvcc compiles this file).
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/queue_cuda.h"

namespace pipetrain {

enum class Stored : std::uint8_t { kFloat, kBFloat16, kFloat16 };

/// A read-only view of elements. Null for an absent tensor.
struct ConstFloatView {
  const void* data = nullptr;
  Stored stored = Stored::kFloat;

  ConstFloatView() = default;
  ConstFloatView(const void* data, Stored stored) : data(data), stored(stored) {}
  ConstFloatView(const float* data) : data(data) {}

  // Defined in stored_access_cuda.h, for kernels only.
  __device__ float operator[](std::int64_t index) const;
  __device__ ConstFloatView operator+(std::int64_t elements) const;
  __host__ __device__ explicit operator bool() const { return data != nullptr; }
};

/// A writable view of elements; stores round to nearest, ties to even.
struct FloatView {
  void* data = nullptr;
  Stored stored = Stored::kFloat;

  FloatView() = default;
  FloatView(void* data, Stored stored) : data(data), stored(stored) {}
  FloatView(float* data) : data(data) {}
  operator ConstFloatView() const { return {data, stored}; }

  struct One {
    const FloatView& places;
    std::int64_t index;
    __device__ void operator=(float value) const;
  };
  __device__ One operator[](std::int64_t index) const { return {*this, index}; }
  __device__ FloatView operator+(std::int64_t elements) const;
  __host__ __device__ explicit operator bool() const { return data != nullptr; }
};

/// Elements that a thread loads or stores with one or two 16-byte instructions.
constexpr int kWide = 8;
/// Whether groups of kWide elements can be loaded and stored at once.
inline bool moves_wide(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

}  // namespace pipetrain
