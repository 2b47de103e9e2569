// Runs a program without time, only to see whether it ends.
#pragma once

#include <string>

#include "pipeline/program.h"

namespace pipetrain {

/// How many in-order lanes a device has.
enum class Lanes {
  kOne,    // everything in list order
  kThree,  // compute, sends, receives
};

/// Runs a lowered program whose transfers are complete, with sends that wait for their receives.
/// Returns an empty text if it ends, else who waits for whom.
std::string find_deadlock(const Program& program, Lanes lanes);

}  // namespace pipetrain
