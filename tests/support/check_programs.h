// What the tests of the checker share.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "pipeline/program/check.h"
#include "support/example_programs.h"

namespace pipetrain {

/// The rule that a program breaks, by its number; 0 if it is accepted.
inline int broken_rule(const Program& program) {
  try {
    check(program);
    return 0;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    const std::string text = error.message();
    const std::size_t number = text.find("breaks rule ");
    if (number == std::string::npos) {
      ADD_FAILURE() << "names no rule: " << text;
      return -1;
    }
    return std::stoi(text.substr(number + 12));
  }
}

/// Two stages of two replicas that stand in opposite directions (Li and Hoefler, Chimera, 2021):
/// micro-batch 0 goes from device 0 to 1, micro-batch 1 from 1 to 0.
inline Program two_directions() {
  Program program = program_of_words({"F0.0 F1.1 B1.1 B0.0", "F0.1 F1.0 B1.0 B0.1"}, 2, 2, {0, 1});
  program.placement = {{0, 1}, {1, 0}};
  program.route = {0, 1};
  for (auto& list : program.device) {
    std::erase_if(list, [](const Instruction& i) { return i.kind == Kind::kUpdate; });
    for (const int stage : {0, 1}) list.push_back({Kind::kReduce, stage});
    for (const int stage : {0, 1}) list.push_back({Kind::kUpdate, stage});
  }
  return lower(program, chain_edges(2, 1));
}

}  // namespace pipetrain
