// Closed-form bubbles from the literature, for equal stages and free transfers, to compare
// predictions and measurements with.
#pragma once

#include <optional>

#include "pipeline/program/program.h"
#include "pipeline/simulate/timeline.h"

namespace pipetrain {

/// Mean seconds of one micro-batch on one device, over all its stages.
struct MicroBatchSeconds {
  double forward = 0;
  double input_gradient = 0;   // including recompute
  double weight_gradient = 0;  // half of a whole backward where it is not split

  double total() const { return forward + input_gradient + weight_gradient; }
};

/// Means over all micro-batches and devices of the events.
MicroBatchSeconds mean_micro_batch_seconds(const Program& program, const Events& events);

/// Returns the idle share of a round that starts and ends empty, by the closed form of the named
/// schedule: (p-1)/(m+p-1) for gpipe, 1f1b and a round of the asynchronous schedules; less for
/// interleaved ones (Narayanan et al., 2021) and for those that split the backward (Qi et al.,
/// 2023). nullopt where no form is known: lists that are not those of the named schedule,
/// replicated stages, sizes and costs outside the form's conditions.
std::optional<double> theoretical_bubble(const Program& program,
                                         const MicroBatchSeconds& micro_batch);

}  // namespace pipetrain
