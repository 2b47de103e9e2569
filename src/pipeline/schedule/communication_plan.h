// In which order each device exchanges what with the others: the sends, receives and reduces of a
// program's lists, as groups that come in one order on all of them. It follows from the program
// alone.
//
//   list of a device:  F0  send 0>1  receive 1>0  B0  send …
//   its groups:           (send 0>1, receive 1>0)     (send …)
//
// A group holds what lies between two computations, so that nothing in it waits for a computation
// that waits for another part of it. Every group has a number; the numbers rise along each device's
// list, and what is exchanged has the same number at both ends. So of all groups that are not done
// the one with the lowest number can always go on, even where a send waits for its receive.
#pragma once

#include <vector>

#include "pipeline/program/program.h"

namespace pipetrain {

/// Something that several devices do together.
struct CommunicationOperation {
  int transfer = -1;     // index into Program::transfers; -1: a reduce
  int stage = -1;        // of a reduce: whose replicas
  int micro_batch = -1;  // of a reduce: as in its instruction
  int group = 0;         // number of its group
  /// Of the program: sender and receiver, or the replicas in their order.
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

/// Plans the exchanges of a lowered program; `rank_of_device`: which of the machine's devices each
/// of the program's is. What stays within a rank is no operation, nor is a reduce with two replicas
/// on one rank. Throws Error(kInternal) if the lists do not agree on an order.
CommunicationPlan plan_communication(const Program& program,
                                     const std::vector<int>& rank_of_device);

/// Whether the replicas of a stage all lie on ranks of their own.
bool replicas_are_apart(const Program& program, int stage, const std::vector<int>& rank_of_device);

}  // namespace pipetrain
