// Biases of layers with one output. They have one element, as constants have.
#pragma once

#include <string>

#include "base/name_table.h"
#include "onnx_io/model.h"

namespace pipetrain {

/// The tensors of one element that are added to the result of a MatMul, Gemm, Conv or ConvTranspose
/// with one output, directly or after a change of its shape or type. The names are the model's.
NameSet single_biases(const OnnxModel& model);

}  // namespace pipetrain
