// Layers of the networks: each call appends nodes and initial weights to a model and returns the
// name of its result.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zoo/zoo.h"

namespace pipetrain {

/// The distribution of the initial values of a parameter.
struct InitialValues {
  enum class Kind { kFilled, kUniform, kNormal };
  Kind kind = Kind::kFilled;
  double value = 0;  // the value; the bound of a uniform; the standard deviation of a normal

  static InitialValues filled(double value) { return {Kind::kFilled, value}; }
  static InitialValues uniform(double bound) { return {Kind::kUniform, bound}; }
  static InitialValues normal(double deviation) { return {Kind::kNormal, deviation}; }
};

struct ConvSpec {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t kernel = 3;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t groups = 1;
  bool bias = false;
  /// Weights from a normal distribution of variance 2 / (output channels x kernel area) and biases
  /// 0, as torchvision initialises its networks (He et al. 2015, fan-out); otherwise PyTorch's
  /// default.
  bool normal = false;
};

struct LinearSpec {
  std::int64_t from = 0;
  std::int64_t to = 0;
  bool bias = true;
  /// Weights from a normal distribution of this deviation and biases 0; absent: PyTorch's default.
  std::optional<double> deviation = {};
  std::string output = {};  // name of the result; default: that of the layer
};

/// Convolutions and linear layers are initialised as in PyTorch by default: kaiming_uniform with a
/// = sqrt(5) for weights, which is uniform in +-1/sqrt(fan_in), and the same for biases. Each
/// parameter has its own random stream.
class Layers {
 public:
  Layers(std::string network, std::uint64_t seed);

  /// `dims` exclude the batch axis, which is symbolic.
  std::string input(const std::string& name, DType dtype, std::vector<std::int64_t> dims);
  /// Declares a result as the model's output and returns the model.
  ZooModel finish(const std::string& output, std::vector<std::int64_t> dims) &&;

  /// A trainable tensor. Error (kUsage) when the network becomes too large.
  std::string parameter(const std::string& name, Shape shape, InitialValues initial);
  std::string constant(const std::string& name, HostTensor value);
  std::string integers(const std::string& name, const std::vector<std::int64_t>& values);

  /// A node with one result, which has the node's name.
  std::string node(std::string_view op, const std::string& name, std::vector<std::string> inputs,
                   std::vector<OnnxAttribute> attributes = {});
  /// x (N, from, H, W) -> (N, to, H', W')
  std::string conv(const std::string& name, const std::string& x, const ConvSpec& spec);
  /// x (N, from, H, W) -> (N, to, 2 H, 2 W): a transposed convolution with kernel and stride 2 and
  /// a bias.
  std::string double_size(const std::string& name, const std::string& x, std::int64_t from,
                          std::int64_t to);
  /// In inference mode: mean 0 and variance 1.
  std::string batch_norm(const std::string& name, const std::string& x, std::int64_t channels);
  std::string layer_norm(const std::string& name, const std::string& x, std::int64_t width,
                         float epsilon = 1e-5F);
  /// x (rows, from) -> (rows, to); the weight is (to, from).
  std::string linear(const std::string& name, const std::string& x, const LinearSpec& spec);
  std::string relu(const std::string& name, const std::string& x);
  /// x (1 + erf(x / sqrt 2)) / 2, composed: Gelu is an operator only since opset 20.
  std::string gelu(const std::string& name, const std::string& x);
  /// Kernel and stride 2.
  std::string max_pool(const std::string& name, const std::string& x);
  /// Splits a matrix into groups of columns of the given `sizes`.
  std::vector<std::string> split_columns(const std::string& x, std::vector<std::string> parts,
                                         const std::string& sizes);

 private:
  OnnxBuilder onnx_;
  std::uint64_t seed_;
  std::uint64_t drawn_parameters_ = 0;
  std::int64_t trained_numbers_ = 0;
  std::string signature_;
  bool has_gelu_constants_ = false;
};

}  // namespace pipetrain
