// The exact cut of a chain into a given number of stages of one device each, by dynamic programming
// over (stages left, first element).
#pragma once

#include <optional>
#include <vector>

#include "partition/stage_cost.h"

namespace pipetrain {

/// The first elements of stages 1, 2, …, best_cuts() of exactly `stages` stages (at most
/// model.count()), stage i on device i; empty when no cut fits into memory. The bottleneck is at
/// least `lower_bound`, which speeds up the search.
std::optional<std::vector<int>> best_cuts(const StageCostModel& model, int stages,
                                          double lower_bound);

/// The cuts whose largest stage needs the least memory, whatever the limit and the time. With
/// `recompute`, each stage recomputes where that needs less.
std::vector<int> smallest_cuts(const StageCostModel& model, int stages, bool recompute);

/// The mode of one stage under the request: nullopt when it does not fit. Recompute is used only
/// where it is asked for or, with kAuto, where the stage would not fit without.
std::optional<bool> decide_recompute(const StageCostModel& model, const RangeCost& range, int first,
                                     const StagePlace& place, Recompute mode);

}  // namespace pipetrain
