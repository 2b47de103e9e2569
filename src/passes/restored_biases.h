// Puts back the biases that an exporter removed because they were all zeros: PyTorch trains them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "onnx_io/model.h"
#include "tensor/dtype.h"

namespace pipetrain {

/// A bias of zeros that is not in the file.
struct RemovedBias {
  std::string name;    // PyTorch's
  std::string weight;  // of the same layer; the bias is stored like it
  DType dtype = DType::kFloat32;
  std::int64_t size = 0;  // number of elements
  /// Indices into OnnxModel::nodes, of all calls of the layer; the bias becomes their last input.
  std::vector<std::size_t> nodes;
};

/// The biases that onnxscript's optimizer removed from convolutions and linear layers, where the
/// metadata of their nodes say so. Left out are layers in local functions, to which export could
/// not write, and those whose weight is no initializer.
std::vector<RemovedBias> removed_biases(const OnnxModel& model);

/// Adds these biases to the model that they were found in.
void restore_biases(OnnxModel& model, const std::vector<RemovedBias>& biases);

/// One sentence on removed biases that are not restored, and the option that restores them; empty
/// if there are none.
std::string note_on_missing_biases(const std::vector<RemovedBias>& biases);

}  // namespace pipetrain
