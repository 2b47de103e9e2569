// Puts back the parameters that an exporter replaced by their expansion over a fixed batch, as it
// does with class tokens: PyTorch trains one for all samples.
#pragma once

#include <string>
#include <vector>

#include "onnx_io/model.h"

namespace pipetrain {

/// A parameter (1, …) that the file holds once per sample.
struct ExpandedParameter {
  std::string name;    // PyTorch's
  std::string tensor;  // of the file: (batch, …), all samples equal
};

/// Replaces such tensors by the parameter and an Expand node, where the metadata name a single
/// parameter that the tensor was folded from, its first extent is the batch size of the model's
/// inputs, and all samples are equal.
std::vector<ExpandedParameter> restore_expanded_parameters(OnnxModel& model);

/// The file's tensor for a value of the parameter.
HostTensor expanded(const HostTensor& parameter, std::int64_t batch);

}  // namespace pipetrain
