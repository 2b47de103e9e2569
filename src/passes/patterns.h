// Recognises what older opsets spell out in primitives.
#pragma once

#include "graph/graph.h"

namespace pipetrain {

/// x · ½ · (1 + erf(x / √2)) → Gelu, in the forms that exporters write. Returns how many were
/// found.
int fuse_gelu(Graph& graph);

}  // namespace pipetrain
