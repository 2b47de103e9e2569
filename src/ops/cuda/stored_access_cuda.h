// Loads and stores of floats that are stored in one of several types; for .cu files.
#pragma once

#include <cstring>

#include "gpu/halves.h"
#include "ops/cuda/stored_cuda.h"

namespace pipetrain {

__device__ __forceinline__ float widened(std::uint16_t bits, Stored stored) {
  return stored == Stored::kBFloat16 ? from_bfloat16_bits(bits) : from_half_bits(bits);
}
__device__ __forceinline__ std::uint16_t narrowed(float value, Stored stored) {
  return stored == Stored::kBFloat16 ? to_bfloat16_bits(value) : to_half_bits(value);
}

__device__ __forceinline__ float ConstFloatView::operator[](std::int64_t index) const {
  if (stored == Stored::kFloat) return static_cast<const float*>(data)[index];
  return widened(static_cast<const std::uint16_t*>(data)[index], stored);
}
__device__ __forceinline__ ConstFloatView ConstFloatView::operator+(std::int64_t elements) const {
  ConstFloatView out = *this;
  out.data = static_cast<const char*>(data) + elements * (stored == Stored::kFloat ? 4 : 2);
  return out;
}

__device__ __forceinline__ void FloatView::One::operator=(float value) const {
  if (places.stored == Stored::kFloat) {
    static_cast<float*>(places.data)[index] = value;
  } else {
    static_cast<std::uint16_t*>(places.data)[index] = narrowed(value, places.stored);
  }
}
__device__ __forceinline__ FloatView FloatView::operator+(std::int64_t elements) const {
  FloatView out = *this;
  out.data = static_cast<char*>(data) + elements * (stored == Stored::kFloat ? 4 : 2);
  return out;
}

/// Storage types of a kernel's main operands, known to the compiler, which then issues loads
/// together that a branch on the type would keep apart.
template <Stored... kStored>
struct KnownTypes {
  static constexpr bool kKnown = true;
  template <int kOperand>
  __device__ static ConstFloatView from(ConstFloatView view) {
    view.stored = type<kOperand>();
    return view;
  }
  template <int kOperand>
  __device__ static FloatView to(FloatView view) {
    view.stored = type<kOperand>();
    return view;
  }

 private:
  template <int kOperand>
  __device__ static constexpr Stored type() {
    constexpr Stored kTypes[] = {kStored...};
    return kTypes[kOperand];
  }
};

/// Any types.
struct AnyTypes {
  static constexpr bool kKnown = false;
  template <int kOperand>
  __device__ static ConstFloatView from(const ConstFloatView& view) {
    return view;
  }
  template <int kOperand>
  __device__ static FloatView to(const FloatView& view) {
    return view;
  }
};

struct WideFloats {
  float values[kWide];
};

/// Elements kWide * group …; the data are aligned to 16 bytes.
__device__ __forceinline__ WideFloats load_wide(const ConstFloatView& from, std::int64_t group) {
  struct alignas(16) Floats {
    float values[4];
  };
  struct alignas(16) Narrow {
    std::uint16_t values[kWide];
  };
  WideFloats out;
  if (from.stored == Stored::kFloat) {
    const auto* at = static_cast<const Floats*>(from.data) + 2 * group;
    const Floats low = at[0], high = at[1];
    for (int i = 0; i < 4; ++i) {
      out.values[i] = low.values[i];
      out.values[4 + i] = high.values[i];
    }
    return out;
  }
  const Narrow narrow = static_cast<const Narrow*>(from.data)[group];
  for (int i = 0; i < kWide; ++i) out.values[i] = widened(narrow.values[i], from.stored);
  return out;
}

__device__ __forceinline__ void store_wide(const FloatView& to, std::int64_t group,
                                           const WideFloats& from) {
  struct alignas(16) Floats {
    float values[4];
  };
  struct alignas(16) Narrow {
    std::uint16_t values[kWide];
  };
  if (to.stored == Stored::kFloat) {
    Floats low, high;
    for (int i = 0; i < 4; ++i) {
      low.values[i] = from.values[i];
      high.values[i] = from.values[4 + i];
    }
    auto* at = static_cast<Floats*>(to.data) + 2 * group;
    at[0] = low;
    at[1] = high;
    return;
  }
  Narrow narrow;
  for (int i = 0; i < kWide; ++i) narrow.values[i] = narrowed(from.values[i], to.stored);
  static_cast<Narrow*>(to.data)[group] = narrow;
}

}  // namespace pipetrain
