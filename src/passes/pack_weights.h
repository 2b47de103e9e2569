// Packs weights for the inner loops of matmul/conv once per weight version instead of once per
// micro-batch.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// Replaces MatMul(a, w) by MatMulPacked(a, PackMatrix(w)), forward and input gradient, where w
/// depends on parameters alone and packing_pays(), and Conv and ConvInputGrad by ConvPacked and
/// ConvInputGradPacked with PackConvolution(w) where convolution_packing_pays(). The packed copies
/// are Part::kPrepare: as much memory again as the weight, once for each direction, or for both
/// where takes_packed_transpose(). A weight read in bfloat16 is rounded while packing, and an
/// otherwise unused rounded copy is removed. Depends on shapes only, and on whether the processor
/// multiplies bfloat16 numbers. Returns how many copies there are.
int pack_weights(TrainingGraph& training);

}  // namespace pipetrain
