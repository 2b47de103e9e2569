#include "support/onnx_parts.h"

#include <utility>

#include "onnx_io/encode.h"
#include "onnx_io/wire.h"

namespace pipetrain {

using namespace onnx_wire;

std::string field(std::uint32_t number, std::string_view bytes) {
  std::string out;
  append_bytes(out, number, bytes);
  return out;
}

std::string field(std::uint32_t number, std::int64_t value) {
  std::string out;
  append_int(out, number, static_cast<std::uint64_t>(value));
  return out;
}

std::string ModelParts::graph() const {
  std::string out;
  for (const std::string& part : nodes) append_bytes(out, 1, part);
  append_bytes(out, 2, "g");
  for (const std::string& part : initializers) append_bytes(out, 5, part);
  for (const std::string& part : inputs) append_bytes(out, 11, part);
  for (const std::string& part : outputs) append_bytes(out, 12, part);
  return out + graph_tail;
}

std::string ModelParts::bytes() const {
  std::string out = field(1, ir_version) + field(7, graph());
  for (const std::string& part : functions) append_bytes(out, 25, part);
  out += model_tail;
  for (const std::string& part : opsets) append_bytes(out, 8, part);
  return out;
}

ModelParts small_model() {
  ModelParts parts;
  parts.opsets = {encode_opset("", 17)};
  parts.nodes = {node_part("MatMul", {"x", "W"}, {"y"}, {}, "mm")};
  parts.initializers = {tensor_part("W", {4, 4}, 1, raw_data(std::string(64, '\0')))};
  parts.inputs = {value_part("x", DType::kFloat32, {{"", 1}, {"", 4}})};
  parts.outputs = {value_part("y", DType::kFloat32, {{"", 1}, {"", 4}})};
  return parts;
}

std::string node_part(std::string op_type, std::vector<std::string> inputs,
                      std::vector<std::string> outputs, std::vector<OnnxAttribute> attributes,
                      std::string name, std::string domain) {
  OnnxNode node;
  node.name = std::move(name);
  node.op_type = std::move(op_type);
  node.domain = std::move(domain);
  node.inputs = std::move(inputs);
  node.outputs = std::move(outputs);
  node.attributes = std::move(attributes);
  return encode_node(node);
}

std::string value_part(std::string name, DType dtype, std::vector<OnnxDim> dims) {
  return encode_value({std::move(name), dtype, /*has_shape=*/true, std::move(dims)});
}

std::string tensor_part(std::string_view name, const std::vector<std::int64_t>& dims,
                        std::int64_t data_type, std::string_view rest) {
  std::string out;
  for (const std::int64_t extent : dims) out += field(1, extent);
  out += field(2, data_type) + field(8, name);
  out += rest;
  return out;
}

std::string raw_data(std::string_view bytes) { return field(9, bytes); }

std::string external_data(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string out;
  for (const auto& [key, value] : entries) out += field(13, encode_pair(key, value));
  return out + field(14, std::int64_t{1});
}

std::string function_part(std::string domain, std::string name, std::vector<std::string> inputs,
                          std::vector<std::string> outputs, const std::vector<std::string>& nodes,
                          const std::vector<std::string>& attributes) {
  std::string out = field(1, name);
  for (const std::string& input : inputs) out += field(4, input);
  for (const std::string& output : outputs) out += field(5, output);
  for (const std::string& attribute : attributes) out += field(6, attribute);
  for (const std::string& node : nodes) out += field(7, node);
  return out + field(9, encode_opset("", 17)) + field(10, domain);
}

}  // namespace pipetrain
