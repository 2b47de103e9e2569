// What a user should know about the predictions of a plan.
#pragma once

#include "partition/plan.h"
#include "train/profiled_network.h"

namespace pipetrain {

/// Adds notes on the accuracy of a plan's predictions.
void add_prediction_notes(const ProfiledNetwork& network, Plan& plan);

}  // namespace pipetrain
