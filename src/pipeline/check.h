// Proves a program before the first kernel runs: nothing missing, nothing twice, no deadlock,
// memory as planned, the right weights, gradients added in order.
#pragma once

#include "base/error.h"
#include "pipeline/program.h"

namespace pipetrain {

/// The rules, in the order in which they are checked. An error names the rule that is broken.
enum class CheckRule {
  kForm = 1,    // every number in range, tables of the right size, only kinds the update rule knows
  kCoverage,    // each stage runs each unit once: forward, backward (whole or split), recompute
  kPlacement,   // every instruction stands on the device of its stage
  kLocalOrder,  // forward, recompute, backward (input, weight) of a unit in this order
  kTransfers,   // one transfer, one send and one receive for every unit on every edge
  kTransferPlace,   // send after what makes its data, receive before what reads it
  kChannelOrder,    // both ends of a channel meet its transfers in the same order
  kLanes,           // no deadlock where compute, sends and receives have a lane each
  kRendezvous,      // no deadlock where every send waits for its receive, all in one lane
  kActivations,     // activation slots: never two units in one, never more than declared
  kReceiveBuffers,  // the same for the receive buffers of each edge
  kVersions,        // every unit reads the weights the update rule says, copies as declared
  kUpdates,         // one update per stage and round (or unit), after its gradients are complete
  kGradientSync,    // where declared: once on each device, between its gradients and its updates
  kUnitOrder,       // forwards and gradient additions of a stage in the order of the units
};

/// Returns the rule's name as errors print it.
const char* to_text(CheckRule rule);

/// Checks a program, lowered or not, in O(instructions). Throws Error with kind `blame` (kUsage for
/// a schedule from a user's file) that names rule, device, instruction and what to compare it with.
/// Progress is proved by one run: lists are fixed and transfers are matched by name, so whether a
/// run ends does not depend on timing; a program that ends with one lane and blocking sends ends as
/// well with more lanes or buffers.
void check(const Program& program, ErrorKind blame = ErrorKind::kInternal);

}  // namespace pipetrain
