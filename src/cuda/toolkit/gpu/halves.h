// Conversions between float and the bits of bfloat16 and float16, and 2^x, by GPU instructions, for
// nvcc and NVRTC (no toolkit header is needed). tests/emulator/gpu has the version for the host's
// compiler.
#pragma once

#include <cstdint>

namespace pipetrain {

__device__ __forceinline__ float from_bfloat16_bits(std::uint16_t bits) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}
__device__ __forceinline__ std::uint16_t to_bfloat16_bits(float value) {
#if __CUDA_ARCH__ >= 800
  std::uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else  // Turing does not have this instruction
  const unsigned bits = __float_as_uint(value);
  if (value != value) return 0x7fff;
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
}
__device__ __forceinline__ float from_half_bits(std::uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
__device__ __forceinline__ std::uint16_t to_half_bits(float value) {
  std::uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
/// 2^value in one instruction; 0 for results below the least normal number.
__device__ __forceinline__ float exp2_or_zero(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

}  // namespace pipetrain
