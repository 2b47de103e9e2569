// Adds sends and receives to a compute-only program, free of deadlocks.
#pragma once

#include <vector>

#include "pipeline/program/program.h"

namespace pipetrain {

/// Returns the program with a send and a receive for every micro-batch on every edge between two
/// devices, annotated. All devices execute their transfers in one global order, by when the data is
/// produced in a run of unit costs. So the earliest open transfer can always proceed, even where a
/// send waits for its receive. Gradient edges are dropped where nothing runs backward. Throws
/// Error(kInternal) if an edge is not between two stages, goes the wrong way or is given twice.
Program lower(const Program& program, const std::vector<Edge>& edges);

}  // namespace pipetrain
