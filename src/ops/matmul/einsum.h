// Import of Einsum as transposes, sums and matrix products.
#pragma once

#include "graph/op.h"

namespace pipetrain {

void import_einsum(ImportContext& context);

}  // namespace pipetrain
