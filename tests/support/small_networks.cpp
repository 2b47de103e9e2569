#include "support/small_networks.h"

#include <array>
#include <cmath>

#include "base/random.h"
#include "onnx_io/builder.h"
#include "onnx_io/reader.h"

namespace pipetrain::test {
namespace {

constexpr std::int64_t kImage = 2 * 6 * 6;

/// Deterministic numbers in [-1, 1).
float number(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed * 0x9e3779b97f4a7c15ULL + index + 1;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<float>(static_cast<double>(z >> 40) / 8388608.0 - 1.0);
}

HostTensor random_weight(Shape shape, std::uint64_t seed, float scale) {
  HostTensor out(TensorType{DType::kFloat32, shape});
  for (std::int64_t i = 0; i < shape.count(); ++i)
    out.view().as<float>()[i] = scale * number(seed, static_cast<std::uint64_t>(i));
  return out;
}

HostTensor filled(std::int64_t count, float value) {
  HostTensor out(TensorType{DType::kFloat32, Shape{count}});
  for (std::int64_t i = 0; i < count; ++i)
    out.view().as<float>()[i] = value + 0.01F * static_cast<float>(i);
  return out;
}

}  // namespace

OnnxModel difficult_network(bool tied) {
  OnnxBuilder builder("difficult", {.opset = 14, .ir_version = 8});
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 2}, {"", 6}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 5}});
  const auto conv = [&](const std::string& name, const std::string& in, const std::string& out,
                        std::int64_t from, std::int64_t to) {
    builder.initializer(
        name + ".weight",
        random_weight({to, from, 3, 3}, static_cast<std::uint64_t>(name.back()), 0.4F));
    builder.node("Conv", {in, name + ".weight"}, {out},
                 {OnnxAttribute::of_ints("pads", {1, 1, 1, 1})}, name);
  };
  const auto norm = [&](const std::string& name, const std::string& in, const std::string& out,
                        std::int64_t channels) {
    builder.initializer(name + ".weight", filled(channels, 1));
    builder.initializer(name + ".bias", filled(channels, 0.1F));
    builder.initializer(name + ".running_mean", filled(channels, 0));
    builder.initializer(name + ".running_var", filled(channels, 1));
    builder.node(
        "BatchNormalization",
        {in, name + ".weight", name + ".bias", name + ".running_mean", name + ".running_var"},
        {out}, {}, name);
  };
  conv("conv1", "x", "c1", 2, 8);
  norm("norm1", "c1", "n1", 8);
  builder.node("Relu", {"n1"}, {"r1"}, {}, "relu1");
  conv("conv2", "r1", "c2", 8, 8);
  norm("norm2", "c2", "n2", 8);
  builder.node("Relu", {"n2"}, {"r2"}, {}, "relu2");
  builder.initializer("ratio", HostTensor::scalar<float>(0.3F));
  builder.initializer("yes", [] {
    HostTensor flag(TensorType{DType::kBool, Shape{}});
    *flag.view().as<std::uint8_t>() = 1;
    return flag;
  }());
  builder.node("Dropout", {"r2", "ratio", "yes"}, {"d2"}, {}, "dropout");
  conv("conv3", "d2", "c3", 8, 8);
  builder.node("Tanh", {"c3"}, {"t3"}, {}, "tanh3");
  builder.node("Add", {"t3", "r1"}, {"s3"}, {}, "skip");
  builder.node("GlobalAveragePool", {"s3"}, {"g"}, {}, "pool");
  builder.node("Flatten", {"g"}, {"f"}, {}, "flatten");
  builder.initializer("square.weight", random_weight({8, 8}, 11, 0.5F));
  if (!tied) builder.initializer("square2.weight", random_weight({8, 8}, 12, 0.5F));
  builder.node("MatMul", {"f", "square.weight"}, {"m1"}, {}, "matmul1");
  builder.node("Tanh", {"m1"}, {"t4"}, {}, "tanh4");
  builder.node("MatMul", {"t4", tied ? "square.weight" : "square2.weight"}, {"m2"}, {}, "matmul2");
  builder.initializer("head.weight", random_weight({5, 8}, 13, 0.5F));
  builder.initializer("head.bias", filled(5, 0.05F));
  builder.node("Gemm", {"m2", "head.weight", "head.bias"}, {"logits"},
               {OnnxAttribute::of_int("transB", 1)}, "head");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

OnnxModel wide_network() {
  OnnxBuilder builder("wide");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 2}, {"", 6}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 5}});
  builder.node("Flatten", {"x"}, {"rows"}, {}, "flatten");
  const auto layer = [&](const std::string& name, const std::string& from, std::int64_t inputs,
                         std::int64_t outputs, const std::string& to) {
    builder.initializer(
        name + ".weight",
        random_weight({outputs, inputs}, static_cast<std::uint64_t>(name.back()), 0.1F));
    builder.initializer(name + ".bias", filled(outputs, 0.01F));
    builder.node("Gemm", {from, name + ".weight", name + ".bias"}, {to},
                 {OnnxAttribute::of_int("transB", 1)}, name);
  };
  layer("layer1", "rows", kImage, 512, "h1");
  builder.node("Tanh", {"h1"}, {"t1"}, {}, "tanh1");
  layer("layer2", "t1", 512, 512, "h2");
  builder.node("Tanh", {"h2"}, {"t2"}, {}, "tanh2");
  layer("layer3", "t2", 512, 5, "logits");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

OnnxModel strided_network() {
  OnnxBuilder builder("strided");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 2}, {"", 6}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 5}});
  const auto layer = [&](const std::string& name, const std::string& from, std::int64_t inputs,
                         std::int64_t outputs, std::int64_t stride, const std::string& to) {
    builder.initializer(
        name + ".weight",
        random_weight({outputs, inputs, 3, 3}, static_cast<std::uint64_t>(name.back()), 0.03F));
    builder.node("Conv", {from, name + ".weight"}, {name + ".shifted"},
                 {OnnxAttribute::of_ints("pads", {1, 1, 1, 1}),
                  OnnxAttribute::of_ints("strides", {stride, 1})},
                 name);
    builder.node("Sigmoid", {name + ".shifted"}, {name + ".gate"}, {}, name + ".sigmoid");
    builder.node("Mul", {name + ".shifted", name + ".gate"}, {to}, {}, name + ".mul");
  };
  layer("conv1", "x", 2, 128, 1, "c1");
  layer("conv2", "c1", 128, 256, 2, "c2");
  layer("conv3", "c2", 256, 256, 2, "c3");
  builder.node("GlobalAveragePool", {"c3"}, {"g"}, {}, "pool");
  builder.node("Flatten", {"g"}, {"f"}, {}, "flatten");
  builder.initializer("head.weight", random_weight({5, 256}, 13, 0.1F));
  builder.initializer("head.bias", filled(5, 0.05F));
  builder.node("Gemm", {"f", "head.weight", "head.bias"}, {"logits"},
               {OnnxAttribute::of_int("transB", 1)}, "head");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

OnnxModel table_network() {
  OnnxBuilder builder("table");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 2}, {"", 6}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 5}});
  builder.initializer("scale", HostTensor::scalar<float>(4999));
  builder.node("Mul", {"x", "scale"}, {"scaled"}, {}, "mul");
  builder.node("Abs", {"scaled"}, {"positive"}, {}, "abs");
  builder.node("Cast", {"positive"}, {"places"}, {OnnxAttribute::of_int("to", 7)}, "cast");
  builder.initializer("table", random_weight({5000, 12}, 3, 0.5F));
  builder.node("Gather", {"table", "places"}, {"found"}, {}, "gather");
  builder.node("Flatten", {"found"}, {"rows"}, {}, "flatten");
  builder.initializer("head.weight", random_weight({5, 12 * kImage}, 4, 0.05F));
  builder.initializer("head.bias", filled(5, 0.01F));
  builder.node("Gemm", {"rows", "head.weight", "head.bias"}, {"logits"},
               {OnnxAttribute::of_int("transB", 1)}, "head");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

OnnxModel codebook_network() {
  OnnxBuilder builder("codebook");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 2}, {"", 6}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 5}});
  builder.node("Flatten", {"x"}, {"rows"}, {}, "flatten");
  builder.initializer("layer1.weight", random_weight({kImage, 8}, 1, 0.2F));
  builder.node("MatMul", {"rows", "layer1.weight"}, {"h1"}, {}, "layer1");
  builder.initializer("codebook.weight", random_weight({4, 8}, 2, 0.5F));
  builder.node("Transpose", {"codebook.weight"}, {"columns"},
               {OnnxAttribute::of_ints("perm", {1, 0})}, "transpose");
  builder.node("MatMul", {"h1", "columns"}, {"products"}, {}, "compare");
  builder.node("ArgMin", {"products"}, {"place"},
               {OnnxAttribute::of_int("axis", 1), OnnxAttribute::of_int("keepdims", 0)}, "choose");
  builder.node("Gather", {"codebook.weight", "place"}, {"found"}, {}, "gather");
  builder.node("Add", {"h1", "found"}, {"sum"}, {}, "add");
  builder.node("Tanh", {"sum"}, {"t1"}, {}, "tanh1");
  builder.initializer("head.weight", random_weight({5, 8}, 3, 0.5F));
  builder.initializer("head.bias", filled(5, 0.01F));
  builder.node("Gemm", {"t1", "head.weight", "head.bias"}, {"logits"},
               {OnnxAttribute::of_int("transB", 1)}, "head");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

OnnxModel position_network() {
  OnnxBuilder builder("position");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 2}, {"", 6}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 5}});
  builder.initializer("shape",
                      HostTensor::of<std::int64_t>({3}, std::array<std::int64_t, 3>{0, 2, 36}));
  builder.node("Reshape", {"x", "shape"}, {"tokens"}, {}, "reshape");
  builder.initializer("layer1.weight", random_weight({36, 128}, 1, 0.1F));
  builder.node("MatMul", {"tokens", "layer1.weight"}, {"h1"}, {}, "layer1");
  builder.initializer("position.weight", random_weight({1, 2, 128}, 2, 0.1F));
  builder.node("Add", {"h1", "position.weight"}, {"p1"}, {}, "position");
  builder.node("Tanh", {"p1"}, {"t1"}, {}, "tanh1");
  builder.node("Flatten", {"t1"}, {"rows"}, {}, "flatten");
  builder.initializer("layer2.weight", random_weight({256, 64}, 3, 0.1F));
  builder.node("MatMul", {"rows", "layer2.weight"}, {"h2"}, {}, "layer2");
  builder.node("Tanh", {"h2"}, {"t2"}, {}, "tanh2");
  builder.initializer("head.weight", random_weight({5, 64}, 4, 0.1F));
  builder.initializer("head.bias", filled(5, 0.01F));
  builder.node("Gemm", {"t2", "head.weight", "head.bias"}, {"logits"},
               {OnnxAttribute::of_int("transB", 1)}, "head");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

std::unique_ptr<TrainingGraph> training_graph(const OnnxModel& model, std::int64_t samples,
                                              bool training, DType precision,
                                              const ParameterOptions& parameters) {
  BuildOptions options;
  options.precision = precision;
  options.lower.micro_batch = samples;
  options.lower.mode.training = training;
  options.with_gradients = training;
  options.fusion = FusionTarget::kCpu;
  std::map<std::string, TensorRule> rules = classify_tensors(model, parameters);
  freeze_tensors(rules, parameters);
  return std::make_unique<TrainingGraph>(build_training_graph(model, rules, options));
}

std::unique_ptr<TrainingGraph> graph_for_gpus(const OnnxModel& model, std::int64_t samples,
                                              DType precision) {
  BuildOptions options;
  options.lower.micro_batch = samples;
  options.precision = precision;
  if (precision != DType::kFloat32) options.feature_map_layout = Layout::kChannelsLast;
  options.expand_for_gpus = true;
  options.fusion = FusionTarget::kGpu;
  return std::make_unique<TrainingGraph>(
      build_training_graph(model, classify_tensors(model, {}), options));
}

FixedData::FixedData(std::int64_t samples, std::uint64_t seed) {
  for (std::int64_t i = 0; i < samples * kImage; ++i)
    x_.push_back(number(seed, static_cast<std::uint64_t>(i)));
  for (std::int64_t i = 0; i < samples; ++i)
    y_.push_back(
        static_cast<std::int64_t>((number(seed + 1, static_cast<std::uint64_t>(i)) + 1) * 2.5));
}

MicroBatch FixedData::make(std::int64_t first, std::int64_t offset, int variant,
                           std::int64_t counted, std::int64_t step) const {
  MicroBatch micro_batch;
  micro_batch.variant = variant;
  micro_batch.step = static_cast<std::uint64_t>(step);
  micro_batch.first_sample = offset;
  micro_batch.loss_scale = 1.0 / static_cast<double>(counted);
  micro_batch.columns = {reinterpret_cast<const std::byte*>(x_.data() + (first + offset) * kImage),
                         reinterpret_cast<const std::byte*>(y_.data() + first + offset)};
  return micro_batch;
}

void FixedData::set_mini_batch(std::int64_t first, std::int64_t samples, std::int64_t micro_batch,
                               std::int64_t step, const std::vector<std::int64_t>& variant_sizes) {
  micro_batches_.clear();
  stream_ = false;
  first_step_ = step;
  for (std::int64_t offset = 0; offset < samples; offset += micro_batch) {
    const std::int64_t size = std::min(micro_batch, samples - offset);
    int variant = 0;
    while (variant_sizes[static_cast<std::size_t>(variant)] != size) ++variant;
    micro_batches_.push_back(make(first, offset, variant, samples, step));
  }
}

void FixedData::set_stream(int micro_batches, std::int64_t batch, std::int64_t first_step) {
  micro_batches_.clear();
  stream_ = true;
  first_step_ = first_step;
  for (int k = 0; k < micro_batches; ++k)
    micro_batches_.push_back(make((first_step + k) * batch, 0, 0, batch, first_step + k));
}

}  // namespace pipetrain::test
