#include "base/vectors.h"

#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace pipetrain {
namespace {

enum class Vectors { kNone, kAvx2, kAvx512, kBFloat16 };

std::string_view wanted() {
  const char* text = std::getenv("PIPETRAIN_VECTORS");
  return text ? text : "";
}

Vectors of_processor() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl")) {
    return __builtin_cpu_supports("avx512bf16") ? Vectors::kBFloat16 : Vectors::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Vectors::kAvx2;
#endif
  return Vectors::kNone;
}

Vectors choose() {
  const Vectors vectors = of_processor();
  if (wanted() != "AVX2" || vectors == Vectors::kNone) return vectors;
  setenv("DNNL_MAX_CPU_ISA", "AVX2", /*overwrite=*/1);  // oneDNN looks when it is first used
  return Vectors::kAvx2;
}

const Vectors kVectors = choose();

}  // namespace

bool has_avx512() { return kVectors >= Vectors::kAvx512; }
bool has_avx512_bfloat16() { return kVectors == Vectors::kBFloat16; }

std::string vector_instructions() {
  static constexpr const char* kNames[] = {"none", "AVX2", "AVX-512", "AVX-512 with bfloat16"};
  return kNames[static_cast<int>(kVectors)];
}

void check_vectors_wanted() {
  PT_CHECK(
      wanted().empty() || wanted() == "AVX2", kUsage,
      "PIPETRAIN_VECTORS is \"{}\"; it may be AVX2, for kernels with vectors of 8 floats where "
      "the processor has wider ones, or absent",
      printable(std::string(wanted())));
}

}  // namespace pipetrain
