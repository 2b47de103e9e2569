#include "passes/loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "base/error.h"
#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/build.h"
#include "passes/execute.h"
#include "support/op_check.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kRows = 3, kClasses = 4;

/// logits = x w, for two inputs and four classes.
OnnxModel linear_classifier() {
  OnnxBuilder builder("linear");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 2}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", kClasses}});
  HostTensor w(TensorType{DType::kFloat32, Shape{2, kClasses}});
  int next = 0;
  for (float& value : w.span<float>()) value = 0.3F * static_cast<float>((++next * 5) % 7 - 3);
  builder.initializer("w", w);
  builder.node("MatMul", {"x", "w"}, {"logits"}, {}, "product");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

TrainingGraph with_loss(const OnnxModel& model, const LossOptions& loss) {
  BuildOptions options;
  options.lower.micro_batch = kRows;
  options.loss = loss;
  return build_training_graph(model, classify_tensors(model, {}), options);
}

// Against the definition, -sum p log softmax(x w), and its derivative, in double.
TEST(Loss, OfMixedLabelsIsTheCrossEntropyWithProbabilities) {
  const OnnxModel model = linear_classifier();
  const TrainingGraph training = with_loss(model, {.mixed_labels = true});
  EXPECT_TRUE(training.loss.mixed);
  EXPECT_EQ(training.loss.classes, kClasses);
  EXPECT_EQ(training.loss.elements_per_sample, 1);
  HostTensor x(TensorType{DType::kFloat32, Shape{kRows, 2}}),
      target(TensorType{DType::kFloat32, Shape{kRows, kClasses}}),
      scale(TensorType{DType::kFloat32, Shape{}});
  const float inputs[] = {1, -2, 0.5F, 3, -1, 0.25F};
  const float shares[] = {0.7F, 0.3F, 0, 0, 0.05F, 0.05F, 0.85F, 0.05F, 0, 0, 0, 1};
  std::copy(std::begin(inputs), std::end(inputs), x.span<float>().begin());
  std::copy(std::begin(shares), std::end(shares), target.span<float>().begin());
  scale.span<float>()[0] = 0.5F;
  const auto w = training.graph[training.parameters[0].value].data.span<const float>();
  double loss = 0, gradient[2 * kClasses] = {};
  for (int r = 0; r < kRows; ++r) {
    double logits[kClasses], sum = 0;
    for (int c = 0; c < kClasses; ++c) {
      logits[c] = static_cast<double>(inputs[2 * r]) * w[c] +
                  static_cast<double>(inputs[2 * r + 1]) * w[kClasses + c];
      sum += std::exp(logits[c]);
    }
    for (int c = 0; c < kClasses; ++c) {
      loss -= shares[r * kClasses + c] * (logits[c] - std::log(sum));
      const double slope = std::exp(logits[c]) / sum - shares[r * kClasses + c];
      for (int i = 0; i < 2; ++i) gradient[i * kClasses + c] += 0.5 * slope * inputs[2 * r + i];
    }
  }
  const auto got = execute(training.graph, Backend::kReference,
                           {{training.inputs[0].value, x},
                            {training.loss.label, target},
                            {training.loss.loss_scale, scale}},
                           {training.loss.loss_sum, training.accumulations[0].contribution});
  EXPECT_NEAR(got[0].span<const float>()[0], loss, 1e-5);
  for (std::size_t i = 0; i < 2 * kClasses; ++i)
    EXPECT_NEAR(got[1].span<const float>()[i], gradient[i], 1e-5);
}

/// The rows of two inputs below each other, and their mean.
TEST(Loss, NeedsARowForEachSample) {
  for (const bool twice : {true, false}) {
    OnnxBuilder builder("rows");
    builder.input("x", DType::kFloat32, {{"batch", -1}, {"", kClasses}});
    builder.output("y", DType::kFloat32, {{"rows", -1}, {"", kClasses}});
    builder.initializer("w", HostTensor(TensorType{DType::kFloat32, {kClasses, kClasses}}));
    builder.node("MatMul", {"x", "w"}, {"h"}, {}, "product");
    if (twice)
      builder.node("Concat", {"h", "h"}, {"y"}, {OnnxAttribute::of_int("axis", 0)}, "both");
    else
      builder.node("ReduceMean", {"h"}, {"y"}, {OnnxAttribute::of_ints("axes", {0})}, "mean");
    const std::string bytes = builder.bytes();
    const OnnxModel model =
        read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
    for (const char* kind : {"cross-entropy", "mse"}) {
      LossOptions loss;
      loss.loss = kind;
      try {
        with_loss(model, loss);
        ADD_FAILURE() << kind;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
        EXPECT_NE(std::string(error.what()).find("one row for each sample"), std::string::npos)
            << error.what();
      }
    }
  }
}

/// Logits (N, T, V) of tokens (N, T), or (T, N, V).
TEST(Loss, OfNextTokensNeedsARowForEachSampleToo) {
  for (const bool turned : {true, false}) {
    OnnxBuilder builder("tokens");
    builder.input("ids", DType::kInt64, {{"batch", -1}, {"", kRows}});
    builder.output("logits", DType::kFloat32, {{"first", -1}, {"second", -1}, {"", kClasses}});
    builder.initializer("table", test::random_tensor({DType::kFloat32, {kClasses, 2}}, 1, -1, 1));
    builder.initializer("head", test::random_tensor({DType::kFloat32, {2, kClasses}}, 2, -1, 1));
    builder.node("Gather", {"table", "ids"}, {"rows"}, {}, "embed");
    builder.node("Transpose", {"rows"}, {"turned"}, {OnnxAttribute::of_ints("perm", {1, 0, 2})});
    builder.node("MatMul", {turned ? "turned" : "rows", "head"}, {"logits"}, {}, "head");
    const std::string bytes = builder.bytes();
    const OnnxModel model =
        read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
    const LossOptions loss = {.loss = "causal-lm"};
    if (!turned) {
      EXPECT_EQ(with_loss(model, loss).loss.classes, kClasses);
      continue;
    }
    test::expect_error(ErrorKind::kUsage, "one row for each sample",
                       [&] { with_loss(model, loss); });
  }
}

// --- models of one sample, whose axis a Squeeze without axes has removed ---

/// x (1, 2), or any number of samples (`batch` -1), times 0.5 in `width` columns, squeezed; `mean`:
/// the mean of these; `sigmoid`: of the squeezed ones.
TrainingGraph of_one_sample(std::int64_t width, const LossOptions& loss, bool mean = false,
                            std::int64_t batch = 1, bool sigmoid = false) {
  OnnxBuilder builder("squeezed");
  builder.input("x", DType::kFloat32, {{batch < 0 ? "batch" : "", batch}, {"", 2}});
  builder.output("y", DType::kFloat32, {});
  HostTensor w(TensorType{DType::kFloat32, Shape{2, width}});
  for (float& value : w.span<float>()) value = 0.5F;
  builder.initializer("w", w);
  builder.node("MatMul", {"x", "w"}, {"h"}, {}, "product");
  if (mean) builder.node("ReduceMean", {"h"}, {"m"}, {OnnxAttribute::of_int("keepdims", 1)});
  builder.node("Squeeze", {mean ? "m" : "h"}, {sigmoid ? "s" : "y"}, {}, "squeeze");
  if (sigmoid) builder.node("Sigmoid", {"s"}, {"y"});
  const std::string bytes = builder.bytes();
  const OnnxModel model = read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
  BuildOptions options;
  options.lower.micro_batch = 1;
  options.loss = loss;
  options.with_gradients = false;
  return build_training_graph(model, classify_tensors(model, {}), options);
}

TEST(Loss, OfOneSampleComparesItsPrediction) {
  const TrainingGraph asked = of_one_sample(1, {.loss = "mse"});
  EXPECT_EQ(asked.graph[asked.loss.label].type.shape, Shape{1});
  const HostTensor x = test::floats({1, 2}, {1, 3});
  const HostTensor label = test::floats({1}, {5});
  // 0.5 · 1 + 0.5 · 3 = 2, and (2 - 5)² = 9.
  const auto loss =
      execute(asked.graph, Backend::kReference,
              {{asked.inputs[0].value, x}, {asked.loss.label, label}}, {asked.loss.loss_sum});
  EXPECT_FLOAT_EQ(loss[0].span<const float>()[0], 9);
  const LossOptions real = {.labels = LabelHint::kFloat, .label_elements = 1};
  const LossOptions binary = {.labels = LabelHint::kBinary, .label_elements = 1};
  EXPECT_EQ(of_one_sample(1, real).loss.kind, LossKind::kSquaredError);
  EXPECT_EQ(of_one_sample(1, binary).loss.kind, LossKind::kBinaryCrossEntropy);
  EXPECT_NE(of_one_sample(1, binary, false, 1, /*sigmoid=*/true).loss.kind, LossKind::kOutput);
  const TrainingGraph classes = of_one_sample(kClasses, {.loss = "cross-entropy"});
  EXPECT_EQ(classes.loss.classes, kClasses);
  EXPECT_EQ(classes.graph[classes.loss.label].type.shape, Shape{1});
}

TEST(Loss, OfOneSampleMayBeItsOutput) {
  LossOptions real = {.labels = LabelHint::kFloat, .label_elements = 1};
  EXPECT_EQ(of_one_sample(1, {}).loss.kind, LossKind::kOutput);
  EXPECT_EQ(of_one_sample(1, {.loss = "output"}).loss.kind, LossKind::kOutput);
  EXPECT_EQ(of_one_sample(3, real, /*mean=*/true).loss.kind, LossKind::kOutput);
  real.labels_are_input = true;
  EXPECT_EQ(of_one_sample(1, real).loss.kind, LossKind::kOutput);
  // What sums up any number of samples is no prediction of one.
  test::expect_error(ErrorKind::kUsage, "one row for each sample",
                     [] { of_one_sample(3, {.loss = "mse"}, /*mean=*/true, /*batch=*/-1); });
}

TEST(Loss, OfMixedLabelsHasNoClassWeights) {
  const OnnxModel model = linear_classifier();
  test::expect_error(ErrorKind::kUsage, "class-weights", [&] {
    with_loss(model, {.class_weights = {1, 1, 2, 1}, .mixed_labels = true});
  });
}

TEST(Loss, OfNumbersIgnoresNoLabel) {
  const OnnxModel model = linear_classifier();
  for (const char* kind : {"bce", "mse", "l1"}) {
    test::expect_error(ErrorKind::kUsage, "belongs to cross-entropy, not to",
                       [&] { with_loss(model, {.loss = kind, .ignore_index = 255}); });
  }
  EXPECT_EQ(with_loss(model, {.ignore_index = 255}).loss.ignore_index, 255);
}

// --- networks whose last nodes make probabilities ---

std::vector<OnnxDim> dims_of(const Shape& shape) {
  std::vector<OnnxDim> dims = {{"batch", -1}};
  for (std::size_t axis = 1; axis < shape.rank(); ++axis) dims.push_back({"", shape[axis]});
  return dims;
}

/// The network from x to y that `add_nodes` adds, of kRows samples; it has no weights.
TrainingGraph ending_in(std::int64_t opset, const Shape& x, const Shape& y,
                        const std::function<void(OnnxBuilder&)>& add_nodes,
                        const LossOptions& loss) {
  OnnxBuilder builder("head", {.opset = opset});
  builder.input("x", DType::kFloat32, dims_of(x));
  builder.output("y", DType::kFloat32, dims_of(y));
  add_nodes(builder);
  const std::string bytes = builder.bytes();
  const OnnxModel model = read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
  BuildOptions options;
  options.lower.micro_batch = kRows;
  options.loss = loss;
  options.with_gradients = false;
  return build_training_graph(model, classify_tensors(model, {}), options);
}

float loss_of(const TrainingGraph& training, const HostTensor& x, const HostTensor& labels) {
  return execute(training.graph, Backend::kReference,
                 {{training.inputs[0].value, x}, {training.loss.label, labels}},
                 {training.loss.loss_sum})[0]
      .span<const float>()[0];
}

bool computes(const TrainingGraph& training, std::string_view op) {
  return std::ranges::any_of(training.graph.nodes,
                             [&](const Node& node) { return node.op->name == op; });
}

// torch.sigmoid(fc(x)).squeeze(1)
TEST(Loss, OfASigmoidBehindASqueezeIsThatOfItsInput) {
  for (const LabelHint labels : {LabelHint::kBinary, LabelHint::kFloat}) {
    const TrainingGraph training =
        ending_in(11, {kRows, 1}, {kRows},
                  [](OnnxBuilder& builder) {
                    builder.node("Sigmoid", {"x"}, {"s"});
                    builder.node("Squeeze", {"s"}, {"y"}, {OnnxAttribute::of_ints("axes", {1})});
                  },
                  {.labels = labels, .label_elements = 1});
    EXPECT_EQ(training.loss.kind, LossKind::kBinaryCrossEntropy);
    EXPECT_FALSE(computes(training, "Sigmoid"));
    const float loss = loss_of(training, test::floats({kRows, 1}, {2, -1, 0.5F}),
                               test::floats({kRows}, {1, 1, 0}));
    EXPECT_NEAR(loss,
                std::log1p(std::exp(-2.0)) + std::log1p(std::exp(1.0)) + std::log1p(std::exp(0.5)),
                1e-6);
  }
}

/// The cross-entropy of logits, of which the classes are `step` apart.
double cross_entropy(const HostTensor& logits, const HostTensor& labels, std::size_t step) {
  const auto x = logits.span<const float>();
  const auto y = labels.span<const std::int64_t>();
  double out = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t first = i / step * step * kClasses + i % step;
    double sum = 0;
    for (std::size_t c = 0; c < kClasses; ++c)
      sum += std::exp(static_cast<double>(x[first + c * step]));
    out += std::log(sum) - x[first + static_cast<std::size_t>(y[i]) * step];
  }
  return out;
}

// Before opset 13 a Softmax becomes one of two axes between Reshapes.
TEST(Loss, OfASoftmaxOfOldOpsetsIsThatOfItsInput) {
  const Shape shape = {kRows, 2, kClasses};
  for (const char* op : {"Softmax", "LogSoftmax"}) {
    const TrainingGraph training =
        ending_in(11, shape, shape,
                  [&](OnnxBuilder& builder) {
                    builder.node(op, {"x"}, {"y"}, {OnnxAttribute::of_int("axis", 2)});
                  },
                  {.labels = LabelHint::kInteger});
    EXPECT_FALSE(computes(training, op));
    const HostTensor x = test::random_tensor({DType::kFloat32, shape}, 1, -3, 3);
    const HostTensor labels = test::int64s({kRows, 2}, {0, 3, 1, 2, 2, 0});
    EXPECT_NEAR(loss_of(training, x, labels), cross_entropy(x, labels, 1), 1e-5);
  }
}

// The classes of pixels are last for the Softmax alone.
TEST(Loss, OfASoftmaxBetweenTransposesIsThatOfItsInput) {
  const Shape shape = {kRows, kClasses, 1, 2};
  const TrainingGraph training = ending_in(
      13, shape, shape,
      [](OnnxBuilder& builder) {
        builder.node("Transpose", {"x"}, {"last"}, {OnnxAttribute::of_ints("perm", {0, 2, 3, 1})});
        builder.node("Softmax", {"last"}, {"p"}, {OnnxAttribute::of_int("axis", 3)});
        builder.node("Transpose", {"p"}, {"y"}, {OnnxAttribute::of_ints("perm", {0, 3, 1, 2})});
      },
      {.labels = LabelHint::kInteger});
  EXPECT_FALSE(computes(training, "Softmax"));
  const HostTensor x = test::random_tensor({DType::kFloat32, shape}, 1, -3, 3);
  const HostTensor labels = test::int64s({kRows, 1, 2}, {0, 3, 1, 2, 2, 0});
  EXPECT_NEAR(loss_of(training, x, labels), cross_entropy(x, labels, 2), 1e-5);
}

// As Keras has images: the last nodes tell that the classes are last.
TEST(Loss, OfPixelsWhoseClassesAreLastIsTheCrossEntropyOverThem) {
  const LossOptions automatic = {.labels = LabelHint::kInteger};
  const HostTensor labels = test::int64s({kRows, 1, 2}, {0, 3, 1, 2, 2, 0});
  const Shape last = {kRows, 1, 2, kClasses}, first = {kRows, kClasses, 1, 2};
  for (const std::int64_t opset : {11, 13}) {
    const TrainingGraph training = ending_in(
        opset, last, last,
        [](OnnxBuilder& builder) {
          builder.node("Softmax", {"x"}, {"y"}, {OnnxAttribute::of_int("axis", 3)});
        },
        automatic);
    EXPECT_EQ(training.loss.task, "pixel classifier (cross-entropy, 4 classes)");
    EXPECT_FALSE(computes(training, "Softmax"));
    const HostTensor x = test::random_tensor({DType::kFloat32, last}, 1, -3, 3);
    EXPECT_NEAR(loss_of(training, x, labels), cross_entropy(x, labels, 1), 1e-5) << opset;
  }
  const auto moved = [](const std::vector<std::int64_t>& perm) {
    return [perm](OnnxBuilder& builder) {
      builder.node("Transpose", {"x"}, {"y"}, {OnnxAttribute::of_ints("perm", perm)});
    };
  };
  const TrainingGraph training = ending_in(13, first, last, moved({0, 2, 3, 1}), automatic);
  EXPECT_EQ(training.loss.classes, kClasses);
  const HostTensor x = test::random_tensor({DType::kFloat32, first}, 1, -3, 3);
  EXPECT_NEAR(loss_of(training, x, labels), cross_entropy(x, labels, 2), 1e-5);
  // From channels-last scores, they are second again.
  EXPECT_EQ(ending_in(13, last, first, moved({0, 3, 1, 2}), automatic).loss.classes, kClasses);
}

// As nn.NLLLoss has (N, C, L): a LogSoftmax over the second axis tells that the classes are there.
TEST(Loss, OfPositionsWhoseClassesAreSecondIsTheCrossEntropyOverThem) {
  const LossOptions automatic = {.labels = LabelHint::kInteger};
  const HostTensor labels = test::int64s({kRows, 2}, {0, 3, 1, 2, 2, 0});
  const Shape second = {kRows, kClasses, 2}, last = {kRows, 2, kClasses};
  const auto over = [](std::int64_t axis) {
    return [axis](OnnxBuilder& builder) {
      builder.node("LogSoftmax", {"x"}, {"y"}, {OnnxAttribute::of_int("axis", axis)});
    };
  };
  const auto moved = [](std::int64_t axis) {
    return [axis](OnnxBuilder& builder) {
      builder.node("LogSoftmax", {"x"}, {"l"}, {OnnxAttribute::of_int("axis", axis)});
      builder.node("Transpose", {"l"}, {"y"}, {OnnxAttribute::of_ints("perm", {0, 2, 1})});
    };
  };
  struct Case {
    Shape x, y;
    std::function<void(OnnxBuilder&)> add_nodes;
  };
  for (const Case& each :
       {Case{second, second, over(1)}, Case{second, second, over(-2)}, Case{last, last, over(2)},
        Case{last, second, moved(2)}, Case{second, last, moved(1)}}) {
    const TrainingGraph training = ending_in(13, each.x, each.y, each.add_nodes, automatic);
    EXPECT_EQ(training.loss.task, "token classifier (cross-entropy, 4 classes)");
    EXPECT_EQ(training.graph[training.loss.label].type.shape, (Shape{kRows, 2}));
    EXPECT_FALSE(computes(training, "LogSoftmax"));
    const HostTensor x = test::random_tensor({DType::kFloat32, each.x}, 1, -3, 3);
    EXPECT_NEAR(loss_of(training, x, labels), cross_entropy(x, labels, each.x == second ? 2 : 1),
                1e-5);
  }
}

// Over positions in place of classes, over all axes behind the samples, and over classes that a
// Reshape then merges with positions.
TEST(Loss, ASoftmaxThatIsNotOverTheClassesStays) {
  const Shape shape = {kRows, 2, kClasses};
  const auto over = [](std::int64_t axis) {
    return [axis](OnnxBuilder& builder) {
      builder.node("Softmax", {"x"}, {"y"}, {OnnxAttribute::of_int("axis", axis)});
    };
  };
  const LossOptions classes = {.loss = "cross-entropy"};
  EXPECT_TRUE(computes(ending_in(13, shape, shape, over(1), classes), "Softmax"));
  EXPECT_TRUE(computes(ending_in(11, shape, shape, over(1), classes), "Softmax"));
  EXPECT_FALSE(computes(ending_in(13, shape, shape, over(-1), classes), "Softmax"));
  const auto merged = [](OnnxBuilder& builder) {
    builder.node("Softmax", {"x"}, {"p"}, {OnnxAttribute::of_int("axis", 2)});
    builder.node("Flatten", {"p"}, {"y"});
  };
  EXPECT_TRUE(computes(ending_in(13, shape, {kRows, 2 * kClasses}, merged, classes), "Softmax"));
}

/// Networks from x to y whose last nodes are no bare Softmax or Sigmoid, as other frameworks'
/// converters write them.
struct Probabilities {
  const char* name;
  Shape x, y;
  std::function<void(OnnxBuilder&)> add_nodes;
};

std::vector<Probabilities> networks_of_probabilities() {
  const auto number = [](OnnxBuilder& builder, const char* name, float value) {
    builder.initializer(name, HostTensor::scalar(value));
  };
  const auto softmax = [](OnnxBuilder& builder) {
    builder.node("Softmax", {"x"}, {"p"}, {OnnxAttribute::of_int("axis", 1)});
  };
  return {
      {"1 - p and p",
       {kRows, 1},
       {kRows, 2},
       [=](OnnxBuilder& builder) {
         number(builder, "one", 1);
         builder.node("Sigmoid", {"x"}, {"p"});
         builder.node("Sub", {"one", "p"}, {"q"});
         builder.node("Concat", {"q", "p"}, {"y"}, {OnnxAttribute::of_int("axis", 1)});
       }},
      {"a column of a Softmax",
       {kRows, kClasses},
       {kRows, 1},
       [=](OnnxBuilder& builder) {
         softmax(builder);
         builder.initializer("index",
                             HostTensor::of<std::int64_t>({1}, std::vector<std::int64_t>{1}));
         builder.node("Gather", {"p", "index"}, {"y"}, {OnnxAttribute::of_int("axis", 1)});
       }},
      {"a Softmax within limits",
       {kRows, kClasses},
       {kRows, kClasses},
       [=](OnnxBuilder& builder) {
         softmax(builder);
         number(builder, "low", 1e-6F);
         builder.node("Clip", {"p", "low"}, {"y"});
       }},
      {"a HardSigmoid",
       {kRows, 1},
       {kRows, 1},
       [](OnnxBuilder& builder) { builder.node("HardSigmoid", {"x"}, {"y"}); }},
      {"a LogSoftmax undone",
       {kRows, kClasses},
       {kRows, kClasses},
       [](OnnxBuilder& builder) {
         builder.node("LogSoftmax", {"x"}, {"l"}, {OnnxAttribute::of_int("axis", 1)});
         builder.node("Exp", {"l"}, {"y"});
       }},
  };
}

TEST(Loss, ProbabilitiesGetNoSecondSoftmaxUnasked) {
  const LossOptions automatic = {.labels = LabelHint::kInteger, .has_data = true};
  for (const Probabilities& each : networks_of_probabilities()) {
    SCOPED_TRACE(each.name);
    LossOptions masks = automatic;  // of which nothing is known
    masks.labels = LabelHint::kUnknown;
    for (const LossOptions& refused : {automatic, masks})
      test::expect_error(ErrorKind::kUsage, "is made of probabilities",
                         [&] { ending_in(13, each.x, each.y, each.add_nodes, refused); });
    LossOptions given = automatic;
    given.loss = each.y[1] == 1 ? "bce" : "cross-entropy";
    // Without data, labels may be numbers from 0 to 1 as well.
    for (const LossOptions& noted : {given, LossOptions{.labels = LabelHint::kGenerated},
                                     LossOptions{.labels = LabelHint::kUnknown}}) {
      const TrainingGraph training = ending_in(13, each.x, each.y, each.add_nodes, noted);
      EXPECT_EQ(std::ranges::count_if(training.notes,
                                      [](const std::string& note) {
                                        return note.find("made of probabilities") != note.npos;
                                      }),
                1);
    }
  }
  // What is no probability is a logit beside it.
  const auto beside = [](OnnxBuilder& builder) {
    builder.node("Sigmoid", {"x"}, {"p"});
    builder.node("Concat", {"x", "p"}, {"y"}, {OnnxAttribute::of_int("axis", 1)});
  };
  EXPECT_NO_THROW(ending_in(13, {kRows, 1}, {kRows, 2}, beside, automatic));
  // A Softmax of probabilities is computed by the loss.
  const auto twice = [](OnnxBuilder& builder) {
    builder.node("Softmax", {"x"}, {"p"}, {OnnxAttribute::of_int("axis", 1)});
    builder.node("Softmax", {"p"}, {"y"}, {OnnxAttribute::of_int("axis", 1)});
  };
  EXPECT_NO_THROW(ending_in(13, {kRows, kClasses}, {kRows, kClasses}, twice, automatic));
}

}  // namespace
}  // namespace pipetrain
