// One declaration per operator family; ops/FAMILY.cpp defines it.
#pragma once

namespace pipetrain {

struct OpFamily;

const OpFamily& matmul_family();

}  // namespace pipetrain
