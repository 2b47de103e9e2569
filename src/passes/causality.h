// Whether a language model predicts each token from earlier ones alone.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// Whether earlier logits do not see the last token. `output` is (N, T, V), `tokens` an integer
/// input (N, T). A network of moderate size is run with changed tokens; for a large one the
/// attention masks are checked. Error (kUsage) when a large one has none that can be read.
bool is_causal(const TrainingGraph& training, ValueId output, const GraphInput& tokens);

}  // namespace pipetrain
