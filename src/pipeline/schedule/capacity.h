// The buffers that a stage needs for the programs that it will run: activation slots, weight copies
// and output buffers.
#pragma once

#include <vector>

#include "pipeline/program/program.h"

namespace pipetrain {

struct StageCapacity {
  int slots = 1;             // activations of micro-batches in flight
  int versions = 1;          // weights
  int forward_entries = 1;   // output buffers for later stages
  int gradient_entries = 1;  // gradient buffers for earlier stages
  int batched_sets = 1;      // sets of values for batched weight gradients
  int accumulator_sets = 1;  // leaves of the tree of sums (transport/sum_tree.h) on one replica
  bool recompute = false;
  bool split_backward = false;  // I and W are separate instructions
  /// A step has one micro-batch on one device, and no other is under way: gradients may lie where
  /// its activations and prepared weights were.
  bool one_micro_batch = false;
  /// An evaluation has one micro-batch under way: its prepared weights may lie in the slot.
  bool evaluates_in_one_slot = false;
};

/// Returns the capacity of each stage (on each of its replicas) that is enough for all programs. A
/// sender waits until the entry that it is about to write has been read for the last time. There
/// are enough entries that this adds no waiting to the program's own order, whatever the
/// instruction times, and no deadlock. Where only forwards run, senders are throttled instead, so
/// that few entries suffice.
std::vector<StageCapacity> stage_capacities(const std::vector<const Program*>& programs);

/// Adds the accumulators for a tree of sums with this many leaves; 0: no tree. Error (kUsage) if
/// the replicas of a stage do not divide `leaves`, or for asynchronous schedules.
void add_accumulators(const std::vector<const Program*>& programs, int leaves,
                      std::vector<StageCapacity>& capacity);

}  // namespace pipetrain
