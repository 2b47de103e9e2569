#include "onnx_io/model.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "tensor/finite.h"

namespace pipetrain {

using Kind = OnnxAttribute::Kind;

namespace {

OnnxAttribute make(std::string name, Kind kind) {
  OnnxAttribute out;
  out.name = std::move(name);
  out.kind = kind;
  return out;
}

}  // namespace

OnnxAttribute OnnxAttribute::of_float(std::string name, float value) {
  OnnxAttribute out = make(std::move(name), Kind::kFloat);
  out.f = value;
  return out;
}

OnnxAttribute OnnxAttribute::of_int(std::string name, std::int64_t value) {
  OnnxAttribute out = make(std::move(name), Kind::kInt);
  out.i = value;
  return out;
}

OnnxAttribute OnnxAttribute::of_string(std::string name, std::string value) {
  OnnxAttribute out = make(std::move(name), Kind::kString);
  out.s = std::move(value);
  return out;
}

OnnxAttribute OnnxAttribute::of_tensor(std::string name, HostTensor value) {
  OnnxAttribute out = make(std::move(name), Kind::kTensor);
  out.tensor = std::move(value);
  return out;
}

OnnxAttribute OnnxAttribute::of_floats(std::string name, std::vector<float> values) {
  OnnxAttribute out = make(std::move(name), Kind::kFloats);
  out.floats = std::move(values);
  return out;
}

OnnxAttribute OnnxAttribute::of_ints(std::string name, std::vector<std::int64_t> values) {
  OnnxAttribute out = make(std::move(name), Kind::kInts);
  out.ints = std::move(values);
  return out;
}

OnnxAttribute OnnxAttribute::of_strings(std::string name, std::vector<std::string> values) {
  OnnxAttribute out = make(std::move(name), Kind::kStrings);
  out.strings = std::move(values);
  return out;
}

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::kFloat:
      return "a float";
    case Kind::kInt:
      return "an int";
    case Kind::kString:
      return "a string";
    case Kind::kTensor:
      return "a tensor";
    case Kind::kFloats:
      return "a list of floats";
    case Kind::kInts:
      return "a list of ints";
    case Kind::kStrings:
      return "a list of strings";
    case Kind::kGraph:
      return "a sub-graph";
    case Kind::kOther:
      break;
  }
  return "of an unsupported kind";
}

std::string OnnxNode::label() const {
  std::string where = function.empty()
                          ? fmt::format("#{}", file_index)
                          : fmt::format("#{} of function {}", file_index, printable(function));
  const std::string type =
      domain.empty() ? printable(op_type) : printable(domain) + "::" + printable(op_type);
  if (name.empty()) return fmt::format("node {} ({})", where, type);
  return fmt::format("node '{}' ({}, {})", printable(name), type, where);
}

const OnnxAttribute* OnnxNode::find_attribute(std::string_view wanted) const {
  for (const OnnxAttribute& attribute : attributes) {
    if (attribute.name == wanted) return &attribute;
  }
  return nullptr;
}

const OnnxAttribute* OnnxNode::find_attribute(std::string_view wanted, Kind kind,
                                              bool required) const {
  const OnnxAttribute* found = find_attribute(wanted);
  PT_CHECK(found || !required, kModel, "{}: attribute '{}' is missing", label(), printable(wanted));
  PT_CHECK(!found || found->kind == kind, kModel, "{}: attribute '{}' must be {} but is {}",
           label(), printable(wanted), name_of(kind), name_of(found->kind));
  return found;
}

float OnnxNode::float_attribute(std::string_view wanted, std::optional<float> otherwise) const {
  const OnnxAttribute* found = find_attribute(wanted, Kind::kFloat, !otherwise);
  return found ? found->f : *otherwise;
}

std::int64_t OnnxNode::int_attribute(std::string_view wanted,
                                     std::optional<std::int64_t> otherwise) const {
  const OnnxAttribute* found = find_attribute(wanted, Kind::kInt, !otherwise);
  return found ? found->i : *otherwise;
}

std::string OnnxNode::string_attribute(std::string_view wanted,
                                       std::optional<std::string> otherwise) const {
  const OnnxAttribute* found = find_attribute(wanted, Kind::kString, !otherwise);
  return found ? found->s : *otherwise;
}

std::vector<float> OnnxNode::floats_attribute(std::string_view wanted,
                                              std::optional<std::vector<float>> otherwise) const {
  const OnnxAttribute* found = find_attribute(wanted, Kind::kFloats, !otherwise);
  return found ? found->floats : *otherwise;
}

std::vector<std::int64_t> OnnxNode::ints_attribute(
    std::string_view wanted, std::optional<std::vector<std::int64_t>> otherwise) const {
  const OnnxAttribute* found = find_attribute(wanted, Kind::kInts, !otherwise);
  return found ? found->ints : *otherwise;
}

std::vector<std::string> OnnxNode::strings_attribute(
    std::string_view wanted, std::optional<std::vector<std::string>> otherwise) const {
  const OnnxAttribute* found = find_attribute(wanted, Kind::kStrings, !otherwise);
  return found ? found->strings : *otherwise;
}

HostTensor OnnxNode::tensor_attribute(std::string_view wanted) const {
  const OnnxAttribute* found = find_attribute(wanted, Kind::kTensor, /*required=*/true);
  PT_CHECK(found->tensor, kModel, "{}: attribute '{}' cannot be used: {}", label(),
           printable(wanted), found->s);
  return found->tensor;
}

HostTensor constant_value(const OnnxNode& node) {
  const auto count = [](const auto& values) {
    return Shape{static_cast<std::int64_t>(values.size())};
  };
  PT_CHECK(node.attributes.size() == 1, kModel,
           "{}: a Constant needs exactly one value, this has {}", node.label(),
           node.attributes.size());
  const std::string& name = node.attributes[0].name;
  if (name == "value") return node.tensor_attribute(name);
  if (name == "value_float") return HostTensor::scalar(node.float_attribute(name));
  if (name == "value_int") return HostTensor::scalar(node.int_attribute(name));
  if (name == "value_floats") {
    const std::vector<float> values = node.floats_attribute(name);
    return HostTensor::of<float>(count(values), values);
  }
  if (name == "value_ints") {
    const std::vector<std::int64_t> values = node.ints_attribute(name);
    return HostTensor::of<std::int64_t>(count(values), values);
  }
  PT_FAIL(kModel, "{}: attribute '{}' has an unsupported type (numbers only)", node.label(),
          printable(name));
}

HostTensor to_float32(const HostTensor& value) {
  PT_CHECK(is_float(value.dtype()), kModel, "a tensor of {} is not a floating-point tensor",
           value.type().text());
  if (value.dtype() == DType::kFloat32) return value;
  HostTensor out(TensorType{DType::kFloat32, value.shape()});
  const std::span<float> to = out.span<float>();
  switch (value.dtype()) {
    case DType::kFloat16:
      std::ranges::transform(value.span<std::uint16_t>(), to.begin(), half_to_float);
      break;
    case DType::kBFloat16:
      std::ranges::transform(value.span<std::uint16_t>(), to.begin(), bfloat16_to_float);
      break;
    default:
      std::ranges::transform(value.span<double>(), to.begin(), double_to_float);
  }
  return out;
}

HostTensor OnnxInitializer::to_float32() const {
  PT_CHECK(value, kModel, "tensor '{}' cannot be used: {}", printable(name), unusable);
  return pipetrain::to_float32(value);
}

const OnnxInitializer* OnnxModel::find_initializer(std::string_view name) const {
  for (const OnnxInitializer& initializer : initializers) {
    if (initializer.name == name) return &initializer;
  }
  return nullptr;
}

}  // namespace pipetrain
