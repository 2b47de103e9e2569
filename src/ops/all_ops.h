// One declaration per operator family; ops/FAMILY.cpp defines it.
#pragma once

namespace pipetrain {

struct OpFamily;

const OpFamily& dropout_family();
const OpFamily& gather_family();
const OpFamily& layer_norm_family();
const OpFamily& loss_family();
const OpFamily& matmul_family();
const OpFamily& softmax_family();

}  // namespace pipetrain
