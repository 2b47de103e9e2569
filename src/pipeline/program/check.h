// Verifies a program before the first kernel runs: complete, no duplicates, no deadlock, memory as
// planned, correct weight versions, gradients accumulated in order.
//
// The properties of a correct schedule, and the rule that proves each:
//
//  | structure
//  |  1 each stage runs each micro-batch once, both directions  coverage
//  |  2 on the device of the replica that the route names       placement
//  |  3 forward, recompute, input gradient, weight gradient     local order
//  | data flow
//  |  4 one send and one receive per micro-batch on each edge   transfers, place of transfers
//  |    (both ends read the bytes of one Edge; a skip edge is a transfer of its own)
//  |  5 no receive into a buffer in use, all free at the end    receive buffers, coverage
//  |  6 inputs and labels are available                         no rule: the first and the last
//  |                                  stage get every micro-batch before the round starts
//  | progress
//  |  7 lists and data together have no cycle                   progress
//  |  8 no deadlock with blocking sends in one lane             progress with blocking sends
//  |  9 no deadlock with buffers either                         follows from 8 (see check())
//  | 10 one order at both ends of a channel, of collectives     order on channels, collectives
//  | 11 groups of transfers are bounded                         no rule: there are no groups
//  | memory
//  | 12 bytes held stay under a cap                             no rule: plans keep within the
//  |                                                            memory of a device
//  | 13 receives that wait have a buffer                        receive buffers
//  | weights
//  | 14 sync: version 0, one update, after all gradients        weight versions, updates,
//  |    and after the gradient sync                             gradient sync
//  | 15 stash: backward reads what forward read, enough copies  weight versions
//  | 16 double buffer: max(0, g - 1) everywhere, two copies     weight versions
//  | 17 vertical sync: one version along a micro-batch's path   weight versions
//  | 18 tied weights: gradients are summed before the update    gradient sync, if the program
//  |                                                            sets Program::gradient_sync
//  | 19 a group adds each of its micro-batches once             coverage, updates
//  | 20 a recompute repeats the forward's bits                  weight versions; masks depend on
//  |                                       (operator, micro-batch), not on the schedule
//  | semantics
//  | 21 forward and backward of a micro-batch on one replica    form (the route), placement
//  | 22 sums are made in one order                              micro-batch order, reduces
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "pipeline/program/program.h"

namespace pipetrain {

/// The rules, in the order in which they are checked. An error names the violated rule.
enum class CheckRule {
  kForm = 1,    // every number in range, tables of the right size, only kinds the update rule knows
  kCoverage,    // each stage runs each micro-batch once: forward, backward (whole or split),
                // recompute
  kPlacement,   // every instruction stands on a device of its stage, a micro-batch's on one replica
  kLocalOrder,  // forward, recompute, backward (input, weight) of a micro-batch in this order
  kMicroBatchOrder,  // forwards, input gradients and gradient additions of a replica in the order
                     // of the micro-batches: sums, and output buffers that are taken in turn
  kReduces,          // one per group on each replica of a replicated stage, none elsewhere
  kUpdates,  // one for each group on each replica, after its gradients and before the next ones
  kGradientSync,    // where declared: once on each device, between its gradients and its updates
  kCollectives,     // reduces and syncs can be met in one order on all devices
  kTransfers,       // one transfer, one send and one receive for every micro-batch on every edge
  kTransferPlace,   // send after what makes its data, receive before what reads it
  kChannelOrder,    // both ends of a channel meet its transfers in the same order
  kLanes,           // no deadlock where compute, sends and receives have a lane each
  kRendezvous,      // no deadlock where every send waits for its receive, all in one lane
  kActivations,     // activation slots: never two micro-batches in one, never more than declared
  kReceiveBuffers,  // the same for the receive buffers of each edge
  kVersions,        // every micro-batch reads the weights the update rule says, copies as declared
};

/// Returns the rule's name as errors print it.
const char* to_text(CheckRule rule);

/// Checks a program, lowered or not, in O(instructions). Throws Error with kind `blame` (kUsage for
/// a schedule from a user's file) that names rule, device, instruction and what to compare it with.
/// One run proves progress: lists are fixed and transfers are matched by name, so whether a run
/// ends does not depend on timing. A program that ends with one lane and blocking sends also ends
/// with more lanes or buffers.
void check(const Program& program, ErrorKind blame = ErrorKind::kInternal);

}  // namespace pipetrain
