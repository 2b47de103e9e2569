// Splits an asynchronous program where training can stop and resume without a drain: after the
// updates that a micro-batch completes.
//
//   stage 0   F0 F1 F2 B0 U0 F3 B1 U1 | F4 B2 U2 …      rest:  F2 F3 | F4 B2 U2 …
//   stage 1   F0 F1 B0 U0 F2 B1 U1 | F3 B2 U2 …                F2 | F3 B2 U2 …
//
// Micro-batches whose forward has run but not their backward are in flight at the cut. Their
// activations are not saved: the rest of the program runs these forwards again, on the same weight
// versions.
#pragma once

#include <optional>
#include <vector>

#include "pipeline/program/program.h"

namespace pipetrain {

struct ProgramCut {
  Program rest;  // micro-batches and versions have their numbers in the whole program
  int micro_batches_done = 0;
  std::vector<std::vector<bool>> replayed;  // [stage][micro-batch]: its forward is run again
  /// [stage]: numbers of the weight versions made before the cut that the rest reads, the newest
  /// included, rising.
  std::vector<std::vector<int>> versions;
};

/// Returns the numbers of micro-batches after which a program can be cut, rising: every stage makes
/// an update with that micro-batch as the last one, and has run no later micro-batch backward
/// before. The end of the program is not among them.
std::vector<int> cut_points(const Program& program);

/// Cuts after micro-batch number `micro_batches_done`, one of cut_points(). Error (kInternal) for
/// other numbers.
ProgramCut cut_program(const Program& program, int micro_batches_done);

}  // namespace pipetrain
