// How many plans cuDNN has for a graph.
#pragma once

namespace pipetrain {

/// Offered, and of those kept: with the numbers that were asked for, and the same bits every time.
struct PlanCount {
  int offered = 0, kept = 0;
};

}  // namespace pipetrain
