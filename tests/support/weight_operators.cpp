#include "support/weight_operators.h"

#include "support/op_check.h"

namespace pipetrain::test {
namespace {

using Kind = WeightOperand::Kind;
using enum WeightResult;

/// Parameters of different seeds, so that no two are alike.
WeightOperand p(Shape shape, double low = -0.9, double high = 0.9) {
  static std::uint64_t seed = 100;
  return {Kind::kParameter, random_tensor({DType::kFloat32, std::move(shape)}, ++seed, low, high)};
}
WeightOperand running(std::int64_t channels, float value) {
  HostTensor tensor(TensorType{DType::kFloat32, Shape{channels}});
  for (float& x : tensor.span<float>()) x = value;
  return {Kind::kStatistic, tensor};
}
WeightOperand ints(Shape shape, std::vector<std::int64_t> values) {
  return {Kind::kConstant, int64s(std::move(shape), std::move(values))};
}
WeightOperand ints(std::vector<std::int64_t> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  return ints(Shape{count}, std::move(values));
}
WeightOperand whole(std::int64_t value) { return ints(Shape{}, {value}); }
WeightOperand real(float value) { return {Kind::kConstant, HostTensor::scalar<float>(value)}; }
WeightOperand reals(Shape shape, std::vector<float> values) {
  return {Kind::kConstant, floats(std::move(shape), std::move(values))};
}
WeightOperand flags(Shape shape, std::vector<int> values) {
  return {Kind::kConstant, bools(std::move(shape), std::move(values))};
}
WeightOperand none() { return {}; }

OnnxAttribute i(std::string name, std::int64_t value) {
  return OnnxAttribute::of_int(std::move(name), value);
}
OnnxAttribute f(std::string name, float value) {
  return OnnxAttribute::of_float(std::move(name), value);
}
OnnxAttribute is(std::string name, std::vector<std::int64_t> values) {
  return OnnxAttribute::of_ints(std::move(name), std::move(values));
}
OnnxAttribute s(std::string name, std::string value) {
  return OnnxAttribute::of_string(std::move(name), std::move(value));
}

using List = std::vector<WeightOperator>;

void add_elementwise(List& list) {
  for (const char* op :
       {"Abs",       "Acos",  "Asin", "Asinh",       "Atan",       "Atanh",
        "Celu",      "Ceil",  "Cos",  "Cosh",        "Elu",        "Erf",
        "Exp",       "Floor", "Gelu", "HardSigmoid", "HardSwish",  "Identity",
        "LeakyRelu", "Mish",  "Neg",  "Relu",        "Round",      "Selu",
        "Sigmoid",   "Sign",  "Sin",  "Sinh",        "Softplus",   "Softsign",
        "Swish",     "Tan",   "Tanh", "Softmax",     "LogSoftmax", "LpNormalization",
        "Trilu"})
    list.push_back({op, {p({4, 6})}});
  for (const char* op : {"Log", "Reciprocal", "Sqrt"}) list.push_back({op, {p({4, 6}, 0.3, 1.5)}});
  list.push_back({"Acosh", {p({4, 6}, 1.2, 2)}});
  list.push_back({"Shrink", {p({4, 6})}, {f("lambd", 0.2F), f("bias", 0.1F)}});
  list.push_back({"ThresholdedRelu", {p({4, 6})}, {f("alpha", 0.2F)}});
  list.push_back({"Hardmax", {p({4, 6})}});
  for (const char* op : {"Add", "Sub", "Mul", "Max", "Min", "Mean", "Sum"}) {
    list.push_back({op, {p({4, 6}), p({4, 6})}});
    list.push_back({op, {p({4, 1}), p({6})}});
  }
  list.push_back({"Div", {p({4, 6}), p({6}, 0.5, 1.5)}});
  list.push_back({"Pow", {p({4, 6}, 0.4, 1.4), p({4, 1})}});
  list.push_back({"Pow", {p({4, 6}), real(2)}});
  list.push_back({"Mod", {p({4, 6}), real(0.4F)}, {i("fmod", 1)}});
  list.push_back({"PRelu", {p({4, 6}), p({6})}});
  list.push_back({"Clip", {p({4, 6}), real(-0.5F), real(0.5F)}});
  list.push_back({"Where", {flags({6}, {1, 0, 1, 1, 0, 0}), p({4, 6}), p({4, 1})}});
  list.push_back({"Cast", {p({4, 6})}, {i("to", 1)}});
  list.push_back({"Cast", {p({4, 6}, -3, 3)}, {i("to", 7)}, kIntegers});
  list.push_back({"CastLike", {p({4, 6}), real(1)}});
  for (const char* op : {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
    list.push_back({op, {p({4, 6}), real(0.1F)}, {}, kIntegers});
  for (const char* op : {"IsInf", "IsNaN"}) list.push_back({op, {p({4, 6})}, {}, kIntegers});
  for (const char* op : {"Shape", "Size"}) list.push_back({op, {p({4, 6})}, {}, kIntegers});
}

void add_reductions(List& list) {
  for (const char* op : {"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
                         "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"})
    list.push_back({op, {p({4, 6}, 0.3, 1.5), ints({1})}, {}, kFactor});
  for (const char* op : {"ArgMax", "ArgMin"})
    list.push_back({op, {p({4, 6})}, {i("axis", 1)}, kIntegers});
  list.push_back({"CumSum", {p({4, 6}), whole(1)}});
  list.push_back({"CumProd", {p({4, 6}), whole(1)}, {}, kWeights, 1, 26});
  list.push_back({"TopK", {p({4, 8}), ints({6})}});
  list.push_back({"MeanVarianceNormalization", {p({1, 4, 2, 3})}});
}

void add_movement(List& list) {
  list.push_back({"Concat", {p({2, 6}), p({2, 6})}, {i("axis", 0)}});
  list.push_back({"Split", {p({8, 6})}, {i("axis", 0), i("num_outputs", 2)}, kWeights, 2});
  list.push_back({"Slice", {p({5, 6}), ints({1}), ints({5}), ints({0})}});
  list.push_back({"Gather", {p({5, 6}), ints({0, 2, 4, 4})}});
  list.push_back({"GatherElements", {p({3, 6}), ints({4, 6}, std::vector<std::int64_t>(24, 2))}});
  list.push_back({"GatherND", {p({5, 6}), ints({4, 1}, {0, 2, 4, 4})}});
  list.push_back({"Pad", {p({4, 5}), ints({0, 0, 0, 1})}});
  list.push_back({"Pad", {p({4, 5}), ints({0, 0, 0, 1})}, {s("mode", "reflect")}});
  list.push_back({"Expand", {p({4, 1}), ints({4, 6})}});
  list.push_back({"Tile", {p({2, 6}), ints({2, 1})}});
  list.push_back({"Transpose", {p({6, 4})}, {is("perm", {1, 0})}});
  list.push_back({"Reshape", {p({24}), ints({4, 6})}});
  list.push_back({"Flatten", {p({4, 2, 3})}});
  list.push_back({"Squeeze", {p({1, 4, 6}), ints({0})}});
  list.push_back({"Unsqueeze", {p({4, 6}), ints({0})}});
  list.push_back({"DepthToSpace", {p({1, 4, 2, 3})}, {i("blocksize", 2)}});
  list.push_back({"SpaceToDepth", {p({1, 1, 4, 6})}, {i("blocksize", 2)}});
  list.push_back({"ScatterND", {p({4, 6}), ints({2, 1}, {1, 3}), p({2, 6})}});
  list.push_back({"ScatterElements", {p({4, 6}), ints({1, 6}, {0, 1, 2, 3, 0, 1}), p({1, 6})}});
  list.push_back(
      {"Scatter", {p({4, 6}), ints({1, 6}, {0, 1, 2, 3, 0, 1}), p({1, 6})}, {}, kWeights, 1, 10});
  list.push_back({"Compress", {p({6, 6}), flags({6}, {1, 0, 1, 1, 0, 1})}, {i("axis", 0)}});
  list.push_back({"OneHot", {ints({0, 2, 5, 5}), whole(6), p({2})}});
  list.push_back({"ReverseSequence", {p({4, 6}), ints({1, 2, 3, 4, 4, 1})}});
  list.push_back({"CenterCropPad", {p({5, 7}), ints({4, 6})}});
  list.push_back({"Col2Im", {p({1, 8, 6}), ints({3, 4}), ints({2, 2})}});
  list.push_back({"EyeLike", {p({4, 6})}});
  list.push_back(
      {"Resize", {p({1, 1, 2, 3}), none(), reals({4}, {1, 1, 2, 2})}, {s("mode", "linear")}});
  list.push_back({"Upsample", {p({1, 1, 2, 3}), reals({4}, {1, 1, 2, 2})}, {}, kWeights, 1, 9});
  list.push_back({"AffineGrid", {p({1, 2, 3}), ints({1, 1, 3, 4})}});
  list.push_back({"GridSample", {p({1, 2, 4, 5}), p({1, 3, 4, 2})}});
  // Their shapes depend on the content of a trained tensor.
  for (const char* op : {"NonZero", "Unique"}) list.push_back({op, {p({4, 6})}, {}, kRefused});
  list.push_back({"BitCast", {p({4, 6})}, {i("to", 6)}, kIntegers, 1, 26});
}

void add_products(List& list) {
  list.push_back({"MatMul", {p({4, 3}), p({3, 6})}});
  list.push_back({"Gemm", {p({4, 3}), p({3, 6}), p({6})}});
  list.push_back({"Einsum", {p({4, 3}), p({3, 6})}, {s("equation", "ij,jk->ik")}});
  list.push_back({"Conv", {p({1, 2, 3, 4}), p({2, 2, 1, 1}), p({2})}});
  list.push_back({"Conv", {p({1, 2, 5, 6}), p({2, 2, 3, 3})}});
  list.push_back({"ConvTranspose", {p({1, 2, 3, 4}), p({2, 2, 1, 1}), p({2})}});
  list.push_back({"DeformConv", {p({1, 2, 3, 4}), p({2, 2, 1, 1}), p({1, 2, 3, 4}, 0.1, 0.4)}});
  list.push_back(
      {"CausalConvWithState", {p({1, 4, 6}), p({4, 1, 3}), p({4})}, {}, kWeights, 1, 27});
  list.push_back({"Attention",
                  {p({1, 4, 6}), p({1, 4, 6}), p({1, 4, 6})},
                  {i("q_num_heads", 2), i("kv_num_heads", 2)}});
  list.push_back({"LinearAttention",
                  {p({1, 4, 6}), p({1, 4, 6}), p({1, 4, 6})},
                  {i("q_num_heads", 2), i("kv_num_heads", 2), s("update_rule", "linear")},
                  kWeights,
                  1,
                  27});
  const WeightOperand sines = reals({1, 4, 3}, std::vector<float>(12, 0.6F));
  const WeightOperand cosines = reals({1, 4, 3}, std::vector<float>(12, 0.8F));
  list.push_back({"RotaryEmbedding", {p({1, 4, 6}), cosines, sines}, {i("num_heads", 1)}});
  // Its angles have no gradient.
  list.push_back({"RotaryEmbedding",
                  {p({1, 4, 6}), p({1, 4, 3}), p({1, 4, 3})},
                  {i("num_heads", 1)},
                  kRefused});
  const auto recurrent = [&](const char* op, std::int64_t gates) {
    list.push_back({op,
                    {p({6, 1, 3}), p({1, 4 * gates, 3}), p({1, 4 * gates, 4})},
                    {i("hidden_size", 4)},
                    kWeights,
                    2});
  };
  recurrent("LSTM", 4);
  recurrent("GRU", 3);
  recurrent("RNN", 1);
  list.push_back({"DFT", {p({1, 12, 1}), none(), whole(1)}});
  list.push_back({"STFT", {p({1, 16, 1}), whole(4), none(), whole(8)}, {}, kFactor});
}

void add_norms(List& list) {
  const auto batch_norm = [&](WeightOperand mean, WeightOperand variance) {
    list.push_back({"BatchNormalization",
                    {p({1, 4, 6}), p({4}), p({4}), std::move(mean), std::move(variance)},
                    {i("training_mode", 1)}});
  };
  batch_norm(running(4, 0), running(4, 1));
  batch_norm(p({4}), p({4}, 0.5, 1.5));
  list.push_back({"LayerNormalization", {p({4, 6}), p({6}), p({6})}, {}, kWeights, 1});
  list.push_back({"LayerNormalization", {p({4, 6}), p({6})}, {}, kWeights, 1});
  list.push_back({"GroupNormalization", {p({1, 4, 6}), p({4}), p({4})}, {i("num_groups", 2)}});
  list.push_back({"InstanceNormalization", {p({1, 4, 6}), p({4}), p({4})}});
  list.push_back({"RMSNormalization", {p({4, 6}), p({6})}});
  list.push_back({"SimplifiedLayerNormalization", {p({4, 6}), p({6})}});
  list.push_back({"LRN", {p({1, 4, 2, 3})}, {i("size", 3)}});
  list.push_back({"Dropout", {p({4, 6}), real(0.3F), flags({}, {1})}});
  for (const char* op : {"AveragePool", "LpPool", "MaxPool"})
    list.push_back({op, {p({1, 2, 4, 5})}, {is("kernel_shape", {2, 2})}});
  for (const char* op : {"GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"})
    list.push_back({op, {p({1, 24, 2, 2})}});
  list.push_back({"MaxUnpool",
                  {p({1, 1, 2, 3}), ints({1, 1, 2, 3}, {0, 2, 5, 12, 14, 23})},
                  {is("kernel_shape", {2, 2}), is("strides", {2, 2})}});
  list.push_back({"NegativeLogLikelihoodLoss", {p({4, 6}), ints({0, 2, 5, 1})}, {}, kFactor});
  list.push_back({"SoftmaxCrossEntropyLoss", {p({4, 6}), ints({0, 2, 5, 1})}, {}, kFactor});
  for (const char* op : {"RandomNormalLike", "RandomUniformLike"})
    list.push_back({op, {p({4, 6})}});
  list.push_back({"Bernoulli", {p({4, 6}, 0.1, 0.9)}});
}

}  // namespace

const std::vector<WeightOperator>& weight_operators() {
  static const List all = [] {
    List list;
    add_elementwise(list);
    add_reductions(list);
    add_movement(list);
    add_products(list);
    add_norms(list);
    return list;
  }();
  return all;
}

const std::map<std::string, std::string>& operators_without_weights() {
  const std::string booleans = "takes booleans", integers = "takes integers",
                    constant = "made of attributes and shapes alone";
  static const std::map<std::string, std::string> all = {
      {"And", booleans},
      {"Not", booleans},
      {"Or", booleans},
      {"Xor", booleans},
      {"BitShift", integers},
      {"BitwiseAnd", integers},
      {"BitwiseNot", integers},
      {"BitwiseOr", integers},
      {"BitwiseXor", integers},
      {"BlackmanWindow", integers},
      {"HammingWindow", integers},
      {"HannWindow", integers},
      {"ConstantOfShape", integers},
      {"Constant", constant},
      {"RandomNormal", constant},
      {"RandomUniform", constant},
      {"Range", "its limits must be known before training"},
  };
  return all;
}

}  // namespace pipetrain::test
