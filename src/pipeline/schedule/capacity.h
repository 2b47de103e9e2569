// How many copies of everything a stage needs, from the programs that it will run: activation
// slots, weight copies, and entries for what it hands on.
#pragma once

#include <vector>

#include "pipeline/program/program.h"

namespace pipetrain {

struct StageCapacity {
  int slots = 1;             // activations of micro-batches in flight
  int versions = 1;          // weights
  int forward_entries = 1;   // values handed to later stages
  int gradient_entries = 1;  // gradients handed to earlier stages
  int batched_sets = 1;      // of values that weight gradients over several micro-batches read
  bool recompute = false;
  bool split_backward = false;  // I and W are separate instructions
};

/// Returns the capacity of each stage (on each of its replicas) that is enough for all programs. A
/// sender waits until the entry that it is about to write has been read for the last time; there
/// are so many that this never makes it wait longer than the program's own order does, whatever the
/// instructions take, and that it cannot wait for ever. Where only forwards run, a sender is held
/// back instead, so that entries stay few.
std::vector<StageCapacity> stage_capacities(const std::vector<const Program*>& programs);

}  // namespace pipetrain
