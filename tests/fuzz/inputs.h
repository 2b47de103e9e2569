// The kinds of input that are fuzzed. Of any bytes at all, a reader makes what it promises or an
// Error that says whose fault it is; anything else is a finding.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fuzz/mutate.h"

namespace pipetrain::fuzz {

struct Input {
  const char* name;
  /// Good ones to begin with.
  std::vector<std::string> (*seeds)();
  void (*mutate)(std::string& input, Random& random);
  void (*read)(std::string_view input);
};

/// Of documents and schedules, of data, and of tokenizers.
std::vector<Input> document_inputs();
std::vector<Input> data_inputs();
std::vector<Input> tokenizer_inputs();
/// Of what needs most of the program to be read.
std::vector<Input> program_inputs();

/// Those that a program has been built with.
const std::vector<Input>& inputs();
const Input& input_named(std::string_view name);

}  // namespace pipetrain::fuzz
