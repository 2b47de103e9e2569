// A libFuzzer target for every kind of input: the environment says which (PIPETRAIN_FUZZ_INPUT). It
// begins with the kind's own seeds: bytes that libFuzzer has no corpus for are replaced by one.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fuzz/inputs.h"

namespace {

const pipetrain::fuzz::Input& input() {
  static const pipetrain::fuzz::Input& chosen = []() -> const pipetrain::fuzz::Input& {
    const char* const name = std::getenv("PIPETRAIN_FUZZ_INPUT");
    if (name) return pipetrain::fuzz::input_named(name);
    std::fputs("PIPETRAIN_FUZZ_INPUT names the kind of input:\n", stderr);
    for (const pipetrain::fuzz::Input& one : pipetrain::fuzz::inputs())
      std::fprintf(stderr, "%s\n", one.name);
    std::exit(2);
  }();
  return chosen;
}

}  // namespace

/// Undefined behavior ends the program, as all that AddressSanitizer finds.
extern "C" const char* __ubsan_default_options() { return "halt_on_error=1:print_stacktrace=1"; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  input().read({reinterpret_cast<const char*>(data), size});
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  static const std::vector<std::string> seeds = input().seeds();
  pipetrain::fuzz::Random random(seed);
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size < 2 || random.below(64) == 0) bytes = seeds[random.below(seeds.size())];
  input().mutate(bytes, random);
  const std::size_t length = std::min(bytes.size(), most);
  std::memcpy(data, bytes.data(), length);
  return length;
}
