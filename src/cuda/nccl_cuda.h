// NCCL, which is loaded when it is asked for: the plugin works without it.
#pragma once

#include "device/communicator.h"

namespace pipetrain {

/// The same at every call. Error (kResource) saying how to get NCCL when it is not there or is
/// older than this build.
Collectives& nccl_collectives();

}  // namespace pipetrain
