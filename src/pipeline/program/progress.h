// Runs a program without timing, to find deadlocks.
#pragma once

#include <string>

#include "pipeline/program/program.h"

namespace pipetrain {

/// How many in-order lanes a device has.
enum class Lanes {
  kOne,    // everything in list order
  kThree,  // compute, sends, receives
};

/// Runs a program whose transfers are complete, with sends that wait for their receives; before
/// lower() an edge is an order between two instructions. Replicas wait for each other at a reduce,
/// all devices at a gradient sync. O(instructions). Returns an empty text if the program ends, else
/// which device waits for which.
std::string find_deadlock(const Program& program, Lanes lanes);

}  // namespace pipetrain
