// The order of communication on each device: the sends, receives and reduces of a program's lists
// as groups in an order that all devices agree on. It depends on the program alone.
//
//   list of a device:  F0  send 0>1  receive 1>0  B0  send …
//   its groups:           (send 0>1, receive 1>0)     (send …)
//
// A group contains the operations between two computations, so that none of them waits for a
// computation that depends on another one of the group. Groups are numbered: numbers rise along
// each device's list, and an operation has the same number at both ends. So the open group with the
// lowest number can always proceed, even where a send waits for its receive.
#pragma once

#include <vector>

#include "pipeline/program/program.h"

namespace pipetrain {

/// A communication operation between several devices.
struct CommunicationOperation {
  int transfer = -1;     // index into Program::transfers; -1: a reduce
  int stage = -1;        // of a reduce: whose replicas
  int micro_batch = -1;  // of a reduce: as in its instruction
  int group = 0;         // number of its group
  /// Devices of the program: sender and receiver, or the replicas in order.
  std::vector<int> devices;
};

struct CommunicationPlan {
  std::vector<CommunicationOperation> operations;
  /// [devices][instructions]: the operation that an instruction takes part in; -1: none.
  std::vector<std::vector<int>> operation_at;
  /// [program edges × micro-batches]: the operation that moves it; -1: none.
  std::vector<int> operation_of_micro_batch;
  /// [ranks][groups]: operations to be issued together, in this order.
  std::vector<std::vector<std::vector<int>>> groups;
};

/// Plans the exchanges of a lowered program; `rank_of_device`: the physical device of each program
/// device. Transfers within a rank are no operations, nor are reduces with two replicas on one
/// rank. Throws Error(kInternal) if the lists do not agree on an order.
CommunicationPlan plan_communication(const Program& program,
                                     const std::vector<int>& rank_of_device);

/// Whether the replicas of a stage are all on different ranks.
bool replicas_are_apart(const Program& program, int stage, const std::vector<int>& rank_of_device);

}  // namespace pipetrain
