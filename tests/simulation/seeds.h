// Runs a scenario under many seeds. The environment says which:
//   PIPETRAIN_SEEDS=N   as many of each scenario instead of what a test run takes
//   PIPETRAIN_SEED=N    the first one, or, without PIPETRAIN_SEEDS, the only one
#pragma once

#include <cstdint>
#include <functional>

#include "simulation/scheduler.h"

namespace pipetrain::simulation {

/// Calls `scenario` with each seed: it prepares what the threads need, calls simulate() with the
/// seed, and compares. The first seed that fails is named with the command that repeats it.
void under_seeds(int count, const std::function<Outcome(std::uint64_t seed)>& scenario);

}  // namespace pipetrain::simulation
