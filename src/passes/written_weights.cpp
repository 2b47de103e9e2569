#include "passes/written_weights.h"

#include "base/error.h"
#include "base/setting.h"

namespace pipetrain {

void check_weights_are_written(const TrainingGraph& training) {
  for (const Parameter& parameter : training.parameters) {
    PT_CHECK(
        static_cast<bool>(training.graph[parameter.value].data), kModel,
        "tensor \"{}\" has no values: the model's data file was never written, which is enough "
        "for plan and inspect only; make a model with weights: pipetrain new {} random",
        printable(parameter.name), setting("weights"));
  }
}

}  // namespace pipetrain
