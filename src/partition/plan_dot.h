// The cut chain as a Graphviz graph.
#pragma once

#include <string>

#include "partition/plan.h"

namespace pipetrain {

/// Returns a `digraph` for `dot -Tsvg`: the elements of the chain in order, coloured by stage and
/// framed with the stage's time and memory; the edges over a cut carry the bytes that one
/// micro-batch sends there and, of the gradients, back. Long stages show their first and last
/// elements and how many lie between.
std::string plan_dot(const Plan& plan, const ChainCosts& chain, const std::string& title);

}  // namespace pipetrain
