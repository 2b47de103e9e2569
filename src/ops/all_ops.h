// One declaration per operator family; ops/FAMILY.cpp defines it.
#pragma once

namespace pipetrain {

struct OpFamily;

const OpFamily& batch_norm_family();
const OpFamily& conv_family();
const OpFamily& pool_family();
const OpFamily& reorder_family();

}  // namespace pipetrain
