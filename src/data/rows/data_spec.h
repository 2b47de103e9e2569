// What a model needs from its data: the caller fills this in from the graph's inputs and its loss.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace pipetrain {

/// One input of the model, without the batch axis.
struct ModelInput {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape sample_shape;
  /// Rows of the embedding: token ids must be 0 … upper_bound - 1. -1: no bound.
  std::int64_t upper_bound = -1;
};

/// What the loss compares the output with, without the batch axis.
struct LabelSpec {
  std::string name = "labels";
  /// The model's output that they are compared with; an array of its name is the labels.
  std::string output = {};
  DType dtype = DType::kInt64;
  Shape sample_shape;
  /// Allowed are 0 … classes - 1 and ignore_index. -1: not classes but numbers (regression).
  std::int64_t classes = -1;
  /// Causal language model: the labels are the inputs moved by one token.
  bool shifted_input = false;
  /// Numbers in 0 … 1 (binary cross-entropy).
  bool probability = false;
  std::int64_t ignore_index = -100;
};

struct DataSpec {
  std::vector<ModelInput> inputs;
  /// Absent when the graph computes its loss from its inputs alone, and for predictions.
  std::optional<LabelSpec> label;
  /// Only outputs are wanted: an input that can be filled in takes no labels.
  bool is_prediction = false;
};

}  // namespace pipetrain
