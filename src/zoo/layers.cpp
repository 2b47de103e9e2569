#include "zoo/layers.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/random.h"

namespace pipetrain {
namespace {

// Far beyond any real network, and far below the range of 64 bits.
constexpr double kLargestNetwork = 1e14;
// Separates the random streams of weights from those of training with the same seed: "zoo".
constexpr std::uint64_t kStreams = std::uint64_t{0x7a6f6f} << 32;

std::vector<OnnxDim> with_batch(const std::vector<std::int64_t>& dims) {
  std::vector<OnnxDim> out = {{"batch", -1}};
  for (const std::int64_t dim : dims) out.push_back({"", dim});
  return out;
}

std::string signature_of(const std::string& name, const std::vector<std::int64_t>& dims) {
  return fmt::format("{} (batch, {})", name, fmt::join(dims, ", "));
}

HostTensor filled(Shape shape, float value) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  for (float& element : out.span<float>()) element = value;
  return out;
}

HostTensor drawn(Shape shape, InitialValues initial, RandomStream random) {
  const auto scale = static_cast<float>(initial.value);
  HostTensor value = filled(std::move(shape), scale);
  if (initial.kind == InitialValues::Kind::kUniform) {
    for (float& element : value.span<float>()) element = scale * (2 * random.uniform() - 1);
  }
  if (initial.kind == InitialValues::Kind::kNormal) {
    for (float& element : value.span<float>()) element = scale * random.normal();
  }
  return value;
}

OnnxAttribute pair(const char* name, std::int64_t size) {
  return OnnxAttribute::of_ints(name, {size, size});
}

}  // namespace

Layers::Layers(std::string network, std::uint64_t seed) : onnx_(std::move(network)), seed_(seed) {}

std::string Layers::input(const std::string& name, DType dtype, std::vector<std::int64_t> dims) {
  signature_ = signature_of(name, dims);
  onnx_.input(name, dtype, with_batch(dims));
  return name;
}

ZooModel Layers::finish(const std::string& output, std::vector<std::int64_t> dims) && {
  onnx_.output(output, DType::kFloat32, with_batch(dims));
  return {std::move(onnx_), trained_numbers_, signature_ + " -> " + signature_of(output, dims)};
}

std::string Layers::parameter(const std::string& name, Shape shape, InitialValues initial) {
  double count = 1;
  for (const std::int64_t dim : shape) count *= static_cast<double>(dim);
  PT_CHECK(static_cast<double>(trained_numbers_) + count <= kLargestNetwork, kUsage,
           "the network would have more than {:.0f} trillion parameters; choose smaller sizes",
           kLargestNetwork / 1e12);
  trained_numbers_ += shape.count();
  const RandomStream random(seed_, kStreams + drawn_parameters_++);
  onnx_.initializer(name, {DType::kFloat32, shape},
                    [shape, initial, random] { return drawn(shape, initial, random); });
  return name;
}

std::string Layers::constant(const std::string& name, HostTensor value) {
  onnx_.initializer(name, std::move(value));
  return name;
}

std::string Layers::integers(const std::string& name, const std::vector<std::int64_t>& values) {
  const Shape shape{static_cast<std::int64_t>(values.size())};
  return constant(name, HostTensor::of<std::int64_t>(shape, values));
}

std::string Layers::node(std::string_view op, const std::string& name,
                         std::vector<std::string> inputs, std::vector<OnnxAttribute> attributes) {
  onnx_.node(std::string(op), std::move(inputs), {name}, std::move(attributes), name);
  return name;
}

std::string Layers::conv(const std::string& name, const std::string& x, const ConvSpec& spec) {
  const std::int64_t area = spec.kernel * spec.kernel;
  const std::int64_t from = spec.from / spec.groups;  // input channels per output channel
  const auto by_fan_in = InitialValues::uniform(1 / std::sqrt(static_cast<double>(from * area)));
  const auto by_fan_out =
      InitialValues::normal(std::sqrt(2.0 / static_cast<double>(spec.to * area)));
  std::vector<std::string> inputs = {
      x, parameter(name + ".weight", {spec.to, from, spec.kernel, spec.kernel},
                   spec.normal ? by_fan_out : by_fan_in)};
  if (spec.bias) {
    inputs.push_back(
        parameter(name + ".bias", {spec.to}, spec.normal ? InitialValues::filled(0) : by_fan_in));
  }
  const std::int64_t pad = spec.padding;
  std::vector<OnnxAttribute> attributes = {pair("kernel_shape", spec.kernel),
                                           pair("strides", spec.stride),
                                           OnnxAttribute::of_ints("pads", {pad, pad, pad, pad})};
  if (spec.groups > 1) attributes.push_back(OnnxAttribute::of_int("group", spec.groups));
  return node("Conv", name, std::move(inputs), std::move(attributes));
}

std::string Layers::double_size(const std::string& name, const std::string& x, std::int64_t from,
                                std::int64_t to) {
  // PyTorch computes fan-in from the second axis here too, although it is the output axis.
  const auto initial = InitialValues::uniform(1 / std::sqrt(static_cast<double>(to * 4)));
  std::vector<std::string> inputs = {x, parameter(name + ".weight", {from, to, 2, 2}, initial),
                                     parameter(name + ".bias", {to}, initial)};
  return node("ConvTranspose", name, std::move(inputs),
              {pair("kernel_shape", 2), pair("strides", 2)});
}

std::string Layers::batch_norm(const std::string& name, const std::string& x,
                               std::int64_t channels) {
  std::vector<std::string> inputs = {
      x, parameter(name + ".weight", {channels}, InitialValues::filled(1)),
      parameter(name + ".bias", {channels}, InitialValues::filled(0)),
      constant(name + ".running_mean", filled({channels}, 0)),
      constant(name + ".running_var", filled({channels}, 1))};
  return node(
      "BatchNormalization", name, std::move(inputs),
      {OnnxAttribute::of_float("epsilon", 1e-5F), OnnxAttribute::of_float("momentum", 0.9F)});
}

std::string Layers::layer_norm(const std::string& name, const std::string& x, std::int64_t width,
                               float epsilon) {
  std::vector<std::string> inputs = {x,
                                     parameter(name + ".weight", {width}, InitialValues::filled(1)),
                                     parameter(name + ".bias", {width}, InitialValues::filled(0))};
  return node("LayerNormalization", name, std::move(inputs),
              {OnnxAttribute::of_int("axis", -1), OnnxAttribute::of_float("epsilon", epsilon)});
}

std::string Layers::linear(const std::string& name, const std::string& x, const LinearSpec& spec) {
  const auto by_fan_in = InitialValues::uniform(1 / std::sqrt(static_cast<double>(spec.from)));
  const bool normal = spec.deviation.has_value();
  std::vector<std::string> inputs = {
      x, parameter(name + ".weight", {spec.to, spec.from},
                   normal ? InitialValues::normal(*spec.deviation) : by_fan_in)};
  if (spec.bias) {
    inputs.push_back(
        parameter(name + ".bias", {spec.to}, normal ? InitialValues::filled(0) : by_fan_in));
  }
  const std::string result = spec.output.empty() ? name : spec.output;
  onnx_.node("Gemm", std::move(inputs), {result}, {OnnxAttribute::of_int("transB", 1)}, name);
  return result;
}

std::string Layers::relu(const std::string& name, const std::string& x) {
  return node("Relu", name, {x});
}

std::string Layers::gelu(const std::string& name, const std::string& x) {
  if (!has_gelu_constants_) {
    constant("sqrt2", HostTensor::scalar<float>(std::numbers::sqrt2_v<float>));
    constant("one", HostTensor::scalar<float>(1));
    constant("half", HostTensor::scalar<float>(0.5F));
    has_gelu_constants_ = true;
  }
  std::string y = node("Div", name + ".div", {x, "sqrt2"});
  y = node("Add", name + ".add", {node("Erf", name + ".erf", {y}), "one"});
  y = node("Mul", name + ".mul", {x, y});
  return node("Mul", name, {y, "half"});
}

std::string Layers::max_pool(const std::string& name, const std::string& x) {
  return node("MaxPool", name, {x}, {pair("kernel_shape", 2), pair("strides", 2)});
}

std::vector<std::string> Layers::split_columns(const std::string& x, std::vector<std::string> parts,
                                               const std::string& sizes) {
  onnx_.node("Split", {x, sizes}, parts, {OnnxAttribute::of_int("axis", 1)}, x + ".split");
  return parts;
}

}  // namespace pipetrain
