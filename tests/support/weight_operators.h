// Every ONNX operator that pipetrain imports, over parameters alone: what a network may make its
// weights of.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx_io/model.h"

namespace pipetrain::test {

/// An operand of the node: a trained tensor, running statistics, a constant or nothing.
struct WeightOperand {
  enum class Kind : std::uint8_t { kParameter, kStatistic, kConstant, kAbsent };
  Kind kind = Kind::kAbsent;
  HostTensor value;
};

/// What becomes of a network with such a node.
enum class WeightResult : std::uint8_t {
  kWeights,   // 24 numbers
  kFactor,    // other floats: their mean is a factor of 24 weights
  kIntegers,  // the same of integers or booleans: no gradient goes through them
  kRefused,   // the network cannot be read or trained
};

struct WeightOperator {
  std::string op_type;
  std::vector<WeightOperand> operands;
  std::vector<OnnxAttribute> attributes = {};
  WeightResult result = WeightResult::kWeights;
  int outputs = 1;  // each further one is the bias of another layer
  std::int64_t opset = 23;
};

const std::vector<WeightOperator>& weight_operators();

/// Operators that no parameter can go into, each with the reason.
const std::map<std::string, std::string>& operators_without_weights();

}  // namespace pipetrain::test
