// How many plans cuDNN has for a graph, and what they may do.
#pragma once

#include <cstdint>
#include <set>

namespace pipetrain {

/// Offered, and of those kept: with the numbers that were asked for, the same bits every time, and
/// no more memory than allowed.
struct PlanCount {
  int offered = 0, kept = 0;
  std::set<int> notes = {};          // cudnnBackendNumericalNote_t of those kept
  std::int64_t workspace_bytes = 0;  // the most that one of those kept needs
};

}  // namespace pipetrain
