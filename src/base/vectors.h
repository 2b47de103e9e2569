// Which vectors the CPU's kernels use: the widest that the processor has, unless the environment
// wants narrower ones. Layouts of tensors and the bits of numbers follow them.
#pragma once

#include <string>

namespace pipetrain {

/// Vectors of 16 floats.
bool has_avx512();
/// And products of bfloat16 numbers.
bool has_avx512_bfloat16();
/// "AVX2", "AVX-512", "AVX-512 with bfloat16", or "none" where the processor is too old for the
/// kernels.
std::string vector_instructions();
/// Error (kUsage) where PIPETRAIN_VECTORS says what is no choice.
void check_vectors_wanted();

}  // namespace pipetrain
