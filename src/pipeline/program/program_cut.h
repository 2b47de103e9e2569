// Where an asynchronous program can be left and taken up again without a drain: behind the updates
// that a micro-batch completes.
//
//   stage 0   F0 F1 F2 B0 U0 F3 B1 U1 | F4 B2 U2 …      rest:  F2 F3 | F4 B2 U2 …
//   stage 1   F0 F1 B0 U0 F2 B1 U1 | F3 B2 U2 …                F2 | F3 B2 U2 …
//
// Micro-batches that a stage has run forward but not yet backward at its cut are in flight. Their
// activations are not kept: the rest of the program runs these forwards again, on the weights that
// they read the first time.
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

/// Cuts behind `micro_batches_done`, one of cut_points(). Error (kInternal) for other numbers.
ProgramCut cut_program(const Program& program, int micro_batches_done);

}  // namespace pipetrain
