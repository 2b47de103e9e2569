#include "base/vectors.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace pipetrain {
namespace {

enum class Vectors { kNone, kAvx2, kAvx512, kBFloat16AsFloats, kBFloat16, kAmx };

std::string_view wanted() {
  const char* text = std::getenv("PIPETRAIN_VECTORS");
  return text ? text : "";
}

/// A feature bit of CPUID.
struct KnownInstructions {
  InstructionSet set;
  const char* name;
  std::uint32_t ProcessorWords::*word;
  unsigned bit;
  std::uint64_t registers;  // register state that the operating system must save
};
constexpr std::uint64_t kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;
constexpr KnownInstructions kKnown[] = {
    {kSse42, "SSE4.2", &ProcessorWords::leaf1_ecx, 20, 0},
    {kPopcnt, "POPCNT", &ProcessorWords::leaf1_ecx, 23, 0},
    {kMovbe, "MOVBE", &ProcessorWords::leaf1_ecx, 22, 0},
    {kAvx, "AVX", &ProcessorWords::leaf1_ecx, 28, kYmm},
    {kF16c, "F16C", &ProcessorWords::leaf1_ecx, 29, kYmm},
    {kFma, "FMA", &ProcessorWords::leaf1_ecx, 12, kYmm},
    {kAvx2, "AVX2", &ProcessorWords::leaf7_ebx, 5, kYmm},
    {kBmi, "BMI1", &ProcessorWords::leaf7_ebx, 3, 0},
    {kBmi2, "BMI2", &ProcessorWords::leaf7_ebx, 8, 0},
    {kLzcnt, "LZCNT", &ProcessorWords::extended_ecx, 5, 0},
    {kAvx512f, "AVX-512F", &ProcessorWords::leaf7_ebx, 16, kZmm},
    {kAvx512bw, "AVX-512BW", &ProcessorWords::leaf7_ebx, 30, kZmm},
    {kAvx512vl, "AVX-512VL", &ProcessorWords::leaf7_ebx, 31, kZmm},
    {kAmxTile, "AMX-TILE", &ProcessorWords::leaf7_edx, 24, kTiles},
    {kAmxBfloat16, "AMX-BF16", &ProcessorWords::leaf7_edx, 22, kTiles},
};

ProcessorWords words_of_processor() {
  ProcessorWords words;
#ifdef __x86_64__
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d)) words.leaf1_ecx = c;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    words.leaf7_ebx = b;
    words.leaf7_edx = d;
  }
  if (__get_cpuid(0x80000001U, &a, &b, &c, &d)) words.extended_ecx = c;
  constexpr std::uint32_t kReadsXcr0 = 1U << 27U;
  if (words.leaf1_ecx & kReadsXcr0) {
    std::uint32_t low = 0, high = 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    words.saved_registers = (std::uint64_t{high} << 32U) | low;
  }
#endif
  return words;
}

InstructionSets sets_of_processor() {
  return wanted() == "none" ? 0 : instruction_sets(words_of_processor());
}

/// Asks the operating system to save tile registers, once for all threads of the process. It may
/// refuse, for example where a signal stack is too small for them.
bool may_use_tiles() {
#ifdef __x86_64__
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

/// Without AMX.
Vectors with_bfloat16() {
#ifdef __x86_64__
  if (__builtin_cpu_is("intel") && !__builtin_cpu_is("cooperlake"))
    return Vectors::kBFloat16AsFloats;
#endif
  return Vectors::kBFloat16;
}

Vectors of_processor() {
  const InstructionSets there = sets_of_processor();
  const auto has = [&](InstructionSets sets) { return (there & sets) == sets; };
  if (has(kAvx512f | kAvx512bw | kAvx512vl)) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512bf16"))
      return has(kAmxTile | kAmxBfloat16) ? Vectors::kAmx : with_bfloat16();
#endif
    return Vectors::kAvx512;
  }
  return has(kAvx2 | kFma) ? Vectors::kAvx2 : Vectors::kNone;
}

/// What PIPETRAIN_VECTORS may limit vectors to, with oneDNN's name for it.
struct Limit {
  std::string_view name;
  Vectors vectors;
  const char* onednn;
};
constexpr Limit kLimits[] = {
    {"AVX2", Vectors::kAvx2, "AVX2"},
    {"AVX-512-BF16-AS-FLOATS", Vectors::kBFloat16AsFloats, "AVX512_CORE_BF16"},
    {"AVX-512-BF16", Vectors::kBFloat16, "AVX512_CORE_BF16"}};

Vectors choose() {
  Vectors vectors = of_processor();
  for (const Limit& limit : kLimits) {
    // Slow instructions can be asked for.
    const bool is_there = vectors >= limit.vectors || (limit.vectors == Vectors::kBFloat16 &&
                                                       vectors == Vectors::kBFloat16AsFloats);
    if (wanted() != limit.name || !is_there) continue;
    setenv("DNNL_MAX_CPU_ISA", limit.onednn, /*overwrite=*/1);  // read by oneDNN on first use
    vectors = limit.vectors;
  }
  return vectors == Vectors::kAmx && !may_use_tiles() ? with_bfloat16() : vectors;
}

const Vectors kVectors = choose();

}  // namespace

InstructionSets instruction_sets(const ProcessorWords& words) {
  InstructionSets sets = 0;
  for (const KnownInstructions& known : kKnown) {
    const bool there = (words.*known.word >> known.bit) & 1U;
    if (there && (words.saved_registers & known.registers) == known.registers) sets |= known.set;
  }
  return sets;
}

std::string missing_instructions(InstructionSets needed, InstructionSets there) {
  std::string missing;
  for (const KnownInstructions& known : kKnown) {
    if (known.set & needed & ~there)
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", known.name);
  }
  return missing;
}

std::string missing_instructions() {
  return missing_instructions(kInstructionsOfKernels, sets_of_processor());
}

void check_processor() {
  static const std::string missing = missing_instructions();
  PT_CHECK(missing.empty(), kResource,
           "the CPU kernels of this build need instructions that this processor lacks: {}; use an "
           "x86-64 processor with AVX2 (Intel since 2013, AMD since 2015), or build with cmake "
           "-DPIPETRAIN_CPU_ARCH=x86-64 for slower kernels without them",
           missing);
}

bool has_avx512() { return kVectors >= Vectors::kAvx512; }
bool has_avx512_bfloat16() { return kVectors >= Vectors::kBFloat16AsFloats; }
bool has_fast_bfloat16_products() { return kVectors >= Vectors::kBFloat16; }
bool has_amx() { return kVectors == Vectors::kAmx; }

std::string vector_instructions() {
  static constexpr const char* kNames[] = {"none",
                                           "AVX2",
                                           "AVX-512",
                                           "AVX-512 with bfloat16 as floats",
                                           "AVX-512 with bfloat16",
                                           "AVX-512 with AMX"};
  return kNames[static_cast<int>(kVectors)];
}

void check_vectors_wanted() {
  bool known = wanted().empty() || wanted() == "none";
  for (const Limit& limit : kLimits) known = known || wanted() == limit.name;
  PT_CHECK(
      known, kUsage,
      "PIPETRAIN_VECTORS is \"{}\"; it must be AVX2 (use 256-bit vectors even if the processor "
      "has wider ones), AVX-512-BF16 (use no AMX), AVX-512-BF16-AS-FLOATS (multiply bfloat16 as "
      "floats), none (as if it had none), or unset",
      printable(std::string(wanted())));
}

}  // namespace pipetrain
