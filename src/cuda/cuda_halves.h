// Between float and the bits of its narrow forms, by a GPU's instructions. The emulator has a
// header of this name (tests/emulator), found first where kernels are built for tests.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace pipetrain {

__device__ __forceinline__ float from_bfloat16_bits(std::uint16_t bits) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}
__device__ __forceinline__ std::uint16_t to_bfloat16_bits(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
__device__ __forceinline__ float from_half_bits(std::uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}
__device__ __forceinline__ std::uint16_t to_half_bits(float value) {
  return __half_as_ushort(__float2half_rn(value));
}

}  // namespace pipetrain
