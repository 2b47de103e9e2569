// Instruction sets of the processor, and the vector width of the CPU kernels: the widest available,
// unless PIPETRAIN_VECTORS limits it. Tensor layouts and the bits of results depend on it.
#pragma once

#include <cstdint>
#include <string>

namespace pipetrain {

/// Instruction set extensions beyond baseline x86-64.
using InstructionSets = std::uint32_t;
enum InstructionSet : InstructionSets {
  kSse42 = 1U << 0U,
  kPopcnt = 1U << 1U,
  kMovbe = 1U << 2U,
  kAvx = 1U << 3U,
  kF16c = 1U << 4U,
  kFma = 1U << 5U,
  kAvx2 = 1U << 6U,
  kBmi = 1U << 7U,
  kBmi2 = 1U << 8U,
  kLzcnt = 1U << 9U,
  kAvx512f = 1U << 10U,
  kAvx512bw = 1U << 11U,
  kAvx512vl = 1U << 12U,
  kAmxTile = 1U << 13U,
  kAmxBfloat16 = 1U << 14U,
};

/// The extensions that the kernels of this build need.
extern const InstructionSets kInstructionsOfKernels;

/// Feature words of a processor: CPUID and the register XCR0.
struct ProcessorWords {
  std::uint32_t leaf1_ecx = 0, leaf7_ebx = 0, leaf7_edx = 0, extended_ecx = 0;
  std::uint64_t saved_registers = 0;  // XCR0: saved by the operating system
};
/// The extensions of a processor with these feature words.
InstructionSets instruction_sets(const ProcessorWords& words);
/// Names of the missing extensions: "AVX2, FMA".
std::string missing_instructions(InstructionSets needed, InstructionSets there);
/// The extensions that the kernels of this build need and this processor lacks.
std::string missing_instructions();
/// Error (kResource) if any is missing. Call it before making a kernel.
void check_processor();

/// Vectors of 16 floats.
bool has_avx512();
/// AVX-512 with instructions for bfloat16.
bool has_avx512_bfloat16();
/// The same, where products of bfloat16 are faster than those of floats. Intel's processors since
/// Sapphire Rapids make half a dot product of 512 bits (VDPBF16PS: 32 multiplications) per cycle,
/// but two fused multiply-adds of floats (16 each): without AMX, bfloat16 is multiplied as floats
/// there.
bool has_fast_bfloat16_products();
/// The same, and tiles of bfloat16 (AMX), which the operating system lets this process use.
bool has_amx();
/// "AVX2", "AVX-512", "AVX-512 with bfloat16 as floats" (without fast products), "AVX-512 with
/// bfloat16", "AVX-512 with AMX", or "none" where the processor is too old for them.
std::string vector_instructions();
/// Error (kUsage) if PIPETRAIN_VECTORS has an invalid value.
void check_vectors_wanted();

}  // namespace pipetrain
