// The layers of a model as a table: inspect --layers.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "passes/linearise.h"
#include "profile/chain_cost.h"

namespace pipetrain {

/// A layer: a node of the chain.
struct LayerRow {
  std::string name, op, output;  // the output's shape, N for the samples
  std::int64_t parameters = 0;   // trained here first
  double flops = 0;              // of a sample, forward
  double share = -1;             // of the time of a step; negative: unknown
};

/// `elements`: measured costs of the chain; null: none.
std::vector<LayerRow> layers_of(const TrainingGraph& graph, const Chain& chain,
                                const std::vector<ChainCost>* elements);

std::string layers_table(const std::vector<LayerRow>& rows);

}  // namespace pipetrain
