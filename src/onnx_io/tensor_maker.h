#pragma once

#include <functional>

#include "tensor/tensor.h"

namespace pipetrain {

/// Makes a tensor when it is written, so that large ones are in memory one at a time.
using TensorMaker = std::function<HostTensor()>;

}  // namespace pipetrain
