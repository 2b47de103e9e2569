// Puts back the biases that an exporter removed because they were all zeros: PyTorch trains them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "onnx_io/model.h"

namespace pipetrain {

/// A bias of zeros that is not in the file.
struct RestoredBias {
  std::string name;    // PyTorch's
  std::string weight;  // of the same layer; the bias is stored like it
  /// Indices into OnnxModel::nodes, of all calls of the layer; the bias is their last input.
  std::vector<std::size_t> nodes;
};

/// Adds to the model the biases that onnxscript's optimizer removed from convolutions and linear
/// layers, where the metadata of their nodes say so. Left out are layers in local functions, to
/// which export could not write, and those whose weight is no initializer.
std::vector<RestoredBias> restore_biases(OnnxModel& model);

}  // namespace pipetrain
