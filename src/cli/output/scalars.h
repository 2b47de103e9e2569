// The numbers of a step and of a validation by tag, for programs that draw curves.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "train/trainer.h"

namespace pipetrain {

using Scalars = std::vector<std::pair<std::string, double>>;

/// "train/loss", "perf/step_ms", …
Scalars scalars_of(const StepReport& report);
/// "val/loss", "val/accuracy", …
Scalars scalars_of(const EvaluationReport& report);

}  // namespace pipetrain
