// ONNX files put together from raw parts, valid or not, where the builder would be too
// well-behaved.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "onnx_io/model.h"

namespace pipetrain {

/// Encoded messages of a model. As made by `small_model` it is valid: y = x (1, 4) @ W (4, 4).
struct ModelParts {
  std::int64_t ir_version = 8;
  std::vector<std::string> opsets;
  std::vector<std::string> nodes;
  std::vector<std::string> initializers;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::vector<std::string> functions;
  std::string graph_tail;  // more fields of the graph
  std::string model_tail;  // more fields of the model

  std::string graph() const;
  std::string bytes() const;
};

ModelParts small_model();

std::string node_part(std::string op_type, std::vector<std::string> inputs,
                      std::vector<std::string> outputs, std::vector<OnnxAttribute> attributes = {},
                      std::string name = {}, std::string domain = {});
std::string value_part(std::string name, DType dtype, std::vector<OnnxDim> dims);
/// TensorProto with these dims and type, and `rest` for its payload.
std::string tensor_part(std::string_view name, const std::vector<std::int64_t>& dims,
                        std::int64_t data_type, std::string_view rest);
std::string raw_data(std::string_view bytes);
/// external_data entries in turn, and data_location.
std::string external_data(const std::vector<std::pair<std::string, std::string>>& entries);
/// One field that holds a byte string or message.
std::string field(std::uint32_t number, std::string_view bytes);
/// One field that holds a number.
std::string field(std::uint32_t number, std::int64_t value);
std::string function_part(std::string domain, std::string name, std::vector<std::string> inputs,
                          std::vector<std::string> outputs, const std::vector<std::string>& nodes,
                          const std::vector<std::string>& attributes = {});

}  // namespace pipetrain
