#include "fuzz/inputs.h"

#include <cstdio>
#include <cstdlib>

namespace pipetrain::fuzz {

const std::vector<Input>& inputs() {
  static const std::vector<Input> all = [] {
    std::vector<Input> out = document_inputs();
    for (const Input& input : data_inputs()) out.push_back(input);
    for (const Input& input : tokenizer_inputs()) out.push_back(input);
#ifdef PIPETRAIN_FUZZ_PROGRAM
    for (const Input& input : program_inputs()) out.push_back(input);
#endif
    return out;
  }();
  return all;
}

const Input& input_named(std::string_view name) {
  for (const Input& input : inputs()) {
    if (input.name == name) return input;
  }
  std::fprintf(stderr, "there is no input \"%s\"\n", std::string(name).c_str());
  std::exit(2);
}

}  // namespace pipetrain::fuzz
