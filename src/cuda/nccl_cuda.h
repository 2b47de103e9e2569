// NCCL, loaded on first use: the plugin works without it.
#pragma once

#include "device/communicator.h"

namespace pipetrain {

/// Returns the same instance at every call. Error (kResource) saying how to get NCCL when it is
/// missing or too old.
Collectives& nccl_collectives();

}  // namespace pipetrain
