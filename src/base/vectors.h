// Which instructions the processor has, and which vectors the CPU's kernels use: the widest that it
// has, unless the environment wants narrower ones. Layouts of tensors and the bits of numbers
// follow them.
#pragma once

#include <cstdint>
#include <string>

namespace pipetrain {

/// Instructions beyond those that every x86-64 processor has.
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
};

/// What the kernels of this build need.
extern const InstructionSets kInstructionsOfKernels;

/// What a processor says of itself: words of CPUID and of the register XCR0.
struct ProcessorWords {
  std::uint32_t leaf1_ecx = 0, leaf7_ebx = 0, extended_ecx = 0;
  std::uint64_t saved_registers = 0;  // by the operating system
};
/// The instructions that such a processor can run.
InstructionSets instruction_sets(const ProcessorWords& words);
/// Names of those that are needed and not there: "AVX2, FMA".
std::string missing_instructions(InstructionSets needed, InstructionSets there);
/// What this processor lacks of those that the kernels of this build need.
std::string missing_instructions();
/// Error (kResource) where it lacks any: to be called before a kernel is made.
void check_processor();

/// Vectors of 16 floats.
bool has_avx512();
/// And products of bfloat16 numbers.
bool has_avx512_bfloat16();
/// "AVX2", "AVX-512", "AVX-512 with bfloat16", or "none" where the processor is too old for them.
std::string vector_instructions();
/// Error (kUsage) where PIPETRAIN_VECTORS says what is no choice.
void check_vectors_wanted();

}  // namespace pipetrain
