#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>

#include "support/op_check.h"

namespace pipetrain::test {
namespace {

const HostTensor& logits() {
  static const HostTensor x = floats({3, 3}, {1, 2, 3, 0, 0, 0, 5, 1, -2});
  return x;
}
const HostTensor& labels() {
  static const HostTensor x = int64s({3}, {2, 0, 1});
  return x;
}
Attributes ignoring(std::int64_t index) { return {{"ignore_index", index}}; }

InputSpec label_spec(std::vector<double> values) {
  InputSpec spec{{static_cast<std::int64_t>(values.size())}};
  spec.dtype = DType::kInt64;
  spec.values = std::move(values);
  return spec;
}

TEST(SoftmaxCrossEntropy, GoldenNumbers) {
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const auto out = run_op("SoftmaxCrossEntropy", ignoring(-100), {logits(), labels()}, backend);
    expect_values(out[0], {}, {5.525263260991747});
    expect_values(out[1], {}, {2});  // the middle row's first of three equal logits is its label
    expect_values(out[2], {3}, {3.4076059644, 1.0986122887, 5.0190450079});
    const auto gradient = run_op("SoftmaxCrossEntropyGrad", ignoring(-100),
                                 {logits(), labels(), out[2], HostTensor::scalar(0.5f)}, backend);
    expect_values(gradient[0], {3, 3},
                  {0.0450152866, 0.1223642355, -0.1673795221, -0.3333333333, 0.1666666667,
                   0.1666666667, 0.4905676012, -0.491014941, 0.0004473397});
  }
}

TEST(SoftmaxCrossEntropy, IgnoredRowsCountForNothing) {
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const HostTensor some = int64s({3}, {2, -1, 1});
    const auto out = run_op("SoftmaxCrossEntropy", ignoring(-1), {logits(), some}, backend);
    expect_values(out[0], {}, {4.426650972323637});
    expect_values(out[1], {}, {1});
    const auto gradient = run_op("SoftmaxCrossEntropyGrad", ignoring(-1),
                                 {logits(), some, out[2], HostTensor::scalar(1.0f)}, backend);
    const std::vector<double> values = gradient[0].to_doubles();
    EXPECT_EQ((std::vector<double>{values[3], values[4], values[5]}),
              (std::vector<double>{0, 0, 0}));
    EXPECT_NE(values[0], 0);
  }
}

TEST(SoftmaxCrossEntropy, SmoothedLabels) {
  const Attributes attributes = {{"label_smoothing", 0.1}};
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    expect_values(run_op("SoftmaxCrossEntropy", attributes, {logits(), labels()}, backend)[0], {},
                  {5.591929927658414});
  }
}

// torch.nn.functional.cross_entropy(x, y, weight=w, label_smoothing=s, reduction="sum") in float64.
TEST(SoftmaxCrossEntropy, WeightedClasses) {
  struct Case {
    double smoothing, loss;
    std::vector<double> gradient;  // of half the loss
  };
  const Case cases[] = {
      {0,
       9.19880510675914,
       {0.06752292987778533, 0.18354635329109822, -0.25106928316888366, -0.16666666666666669,
        0.08333333333333333, 0.08333333333333333, 0.9811352024343174, -0.9820298819311879,
        0.0008946794968705335}},
      {0.1,
       9.198959697548794,
       {0.05843934176803216, 0.14817361603230825, -0.20661295780034056, -0.13611111111111113,
        0.06388888888888888, 0.07222222222222222, 0.9400973623531735, -0.9159622192001483,
        -0.024135143153025153}},
  };
  for (const Case& one : cases) {
    const Attributes attributes = {{"label_smoothing", one.smoothing},
                                   {"class_weights", Reals{0.5, 2, 1.5}}};
    for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
      const auto out = run_op("SoftmaxCrossEntropy", attributes, {logits(), labels()}, backend);
      expect_values(out[0], {}, {one.loss});
      const auto gradient = run_op("SoftmaxCrossEntropyGrad", attributes,
                                   {logits(), labels(), out[2], HostTensor::scalar(0.5f)}, backend);
      expect_values(gradient[0], {3, 3}, one.gradient);
    }
  }
}

// Masked logits: log(e^1 + e^2) - 1.
TEST(SoftmaxCrossEntropy, LogitsOfOtherClassesMayBeMinusInfinity) {
  const HostTensor masked = floats({1, 3}, {1, -std::numeric_limits<float>::infinity(), 2});
  for (const Attributes& attributes :
       {Attributes{}, Attributes{{"class_weights", Reals{1, 2, 3}}}}) {
    for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
      const auto out =
          run_op("SoftmaxCrossEntropy", attributes, {masked, int64s({1}, {0})}, backend);
      expect_values(out[0], {}, {1.3132616875182228});
      const auto gradient =
          run_op("SoftmaxCrossEntropyGrad", attributes,
                 {masked, int64s({1}, {0}), out[2], HostTensor::scalar(1.0f)}, backend);
      expect_values(gradient[0], {1, 3}, {-0.7310585786300049, 0, 0.7310585786300049});
    }
  }
}

// Logits that all grow by the same number have the same loss and gradient.
TEST(SoftmaxCrossEntropy, HugeLogitsKeepTheirDifferences) {
  const auto shifted = [](float offset) {  // exact: the offsets are multiples of 64
    return floats({2, 3}, {offset + 64, offset, offset + 64, offset, offset, offset});
  };
  const HostTensor classes = int64s({2}, {0, 2}), gy = HostTensor::scalar(1.0f);
  for (const Attributes& attributes :
       {Attributes{}, Attributes{{"label_smoothing", 0.1}},
        Attributes{{"label_smoothing", 0.1}, {"class_weights", Reals{1, 2, 3}}}}) {
    const auto expected =
        run_op("SoftmaxCrossEntropy", attributes, {shifted(0), classes}, Backend::kReference);
    const auto slopes = run_op("SoftmaxCrossEntropyGrad", attributes,
                               {shifted(0), classes, expected[2], gy}, Backend::kReference);
    for (const float offset : {64000.0F, 16777216.0F, -536870912.0F}) {
      for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
        const HostTensor x = shifted(offset);
        const auto out = run_op("SoftmaxCrossEntropy", attributes, {x, classes}, backend);
        expect_values(out[0], {}, expected[0].to_doubles());
        expect_values(out[1], {}, expected[1].to_doubles());
        const auto gradient =
            run_op("SoftmaxCrossEntropyGrad", attributes, {x, classes, out[2], gy}, backend);
        expect_values(gradient[0], {2, 3}, slopes[0].to_doubles());
      }
    }
  }
}

TEST(SoftmaxCrossEntropy, Gradients) {
  const InputSpec some = label_spec({1, -100, 4, 0});
  check_gradients("SoftmaxCrossEntropy", ignoring(-100), {{{4, 5}, -3, 3}, some});
  check_gradients("SoftmaxCrossEntropy", {{"label_smoothing", 0.2}}, {{{4, 5}, -3, 3}, some});
  check_gradients("SoftmaxCrossEntropy",
                  {{"label_smoothing", 0.2}, {"class_weights", Reals{1, 0.5, 3, 0, 2}}},
                  {{{4, 5}, -3, 3}, some});
}

TEST(SoftmaxCrossEntropy, CpuAgreesWithReference) {
  std::vector<double> many;
  for (int i = 0; i < 333; ++i) many.push_back(i % 7 == 3 ? -100 : i * 37 % 101);
  const InputSpec targets = label_spec(many);
  for (const double smoothing : {0.0, 0.1}) {
    const Attributes attributes = {{"label_smoothing", smoothing}};
    check_cpu("SoftmaxCrossEntropy", attributes, {{{333, 101}, -8, 8}, targets}, 2e-6);
    InputSpec scale{{}};
    scale.values = {0.25};
    check_cpu("SoftmaxCrossEntropyGrad", attributes,
              {{{333, 101}, -8, 8}, targets, {{333}, 5, 9}, scale}, 2e-6);
  }
}

TEST(SoftmaxCrossEntropy, ThreadsDoNotChangeTheSum) {
  const HostTensor x = random_tensor({DType::kFloat32, Shape{500, 64}}, 3, -5, 5);
  const HostTensor y = random_tensor({DType::kInt64, Shape{500}}, 4, 0, 64);
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const auto one = run_op("SoftmaxCrossEntropy", {}, {x, y}, Backend::kCpu);
  omp_set_num_threads(3);
  const auto three = run_op("SoftmaxCrossEntropy", {}, {x, y}, Backend::kCpu);
  omp_set_num_threads(before);
  for (std::size_t i = 0; i < one.size(); ++i) expect_same_bits(three[i], one[i]);
}

TEST(SoftmaxCrossEntropy, NamesTheWrongLabel) {
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    expect_error(ErrorKind::kData, "label 3 at position 1", [&] {
      run_op("SoftmaxCrossEntropy", {}, {logits(), int64s({3}, {0, 3, 1})}, backend);
    });
    expect_error(ErrorKind::kData, "label -1 at position 0", [&] {
      run_op("SoftmaxCrossEntropy", {}, {logits(), int64s({3}, {-1, 0, 1})}, backend);
    });
  }
  expect_error(ErrorKind::kModel, "(rows, classes)", [] {
    infer_op("SoftmaxCrossEntropy", {},
             {{DType::kFloat32, Shape{2, 3, 4}}, {DType::kInt64, Shape{2}}});
  });
  expect_error(ErrorKind::kModel, "labels must be int64 (2)", [] {
    infer_op("SoftmaxCrossEntropy", {},
             {{DType::kFloat32, Shape{2, 3}}, {DType::kInt64, Shape{3}}});
  });
}

TEST(BinaryCrossEntropy, GoldenNumbersAndNoOverflow) {
  const HostTensor x = floats({5}, {-2, 0.5, 3, -100, 100});
  const HostTensor target = floats({5}, {0, 1, 0.25, 1, 1});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const auto out = run_op("BinaryCrossEntropy", {}, {x, target}, backend);
    expect_values(out[0], {}, {102.89959234679682});
    expect_values(out[1], {}, {3});
    expect_values(
        run_op("BinaryCrossEntropyGrad", {}, {x, target, HostTensor::scalar(2.0f)}, backend)[0],
        {5}, {0.238405844, -0.7550813376, 1.4051482536, -2.0, 0.0});
  }
}

TEST(DistanceLosses, GoldenNumbers) {
  const HostTensor x = floats({2, 2}, {1, 2, 3, 4});
  const HostTensor target = floats({2, 2}, {0, 2, 5, 1});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    expect_values(run_op("SquaredError", {}, {x, target}, backend)[0], {}, {14});
    expect_values(run_op("AbsoluteError", {}, {x, target}, backend)[0], {}, {6});
    const HostTensor gy = HostTensor::scalar(0.5f);
    expect_values(run_op("SquaredErrorGrad", {}, {x, target, gy}, backend)[0], {2, 2},
                  {1, 0, -2, 3});
    expect_values(run_op("AbsoluteErrorGrad", {}, {x, target, gy}, backend)[0], {2, 2},
                  {0.5, 0, -0.5, 0.5});
  }
}

TEST(PointwiseLosses, Gradients) {
  InputSpec target{{3, 4}, 0, 1};
  target.differentiate = false;
  check_gradients("BinaryCrossEntropy", {}, {{{3, 4}, -3, 3}, target});
  check_gradients("SquaredError", {}, {{{3, 4}}, {{3, 4}}});
  check_gradients("AbsoluteError", {}, {{{3, 4}, 2, 3}, {{3, 4}, -1, 1}});
}

TEST(PointwiseLosses, CpuAgreesWithReference) {
  const Shape shape{67, 513};
  InputSpec scale{{}};
  scale.values = {0.25};
  for (const std::string op : {"BinaryCrossEntropy", "SquaredError", "AbsoluteError"}) {
    check_cpu(op, {}, {{shape, -4, 4}, {shape, 0, 1}}, 2e-6);
    check_cpu(op + "Grad", {}, {{shape, -4, 4}, {shape, 0, 1}, scale}, 2e-6);
  }
  expect_error(ErrorKind::kModel, "one floating-point type", [] {
    infer_op("SquaredError", {}, {{DType::kFloat32, Shape{2}}, {DType::kFloat32, Shape{3}}});
  });
}

// --- ONNX's loss nodes; expected values from PyTorch ---

HostTensor scores() { return floats({2, 3, 2}, {1, 2, 0, 1, 3, -1, 0.5, 0, 0.25, 1, -1, 2}); }

double imported_loss(const char* op, std::string reduction, std::vector<std::int64_t> targets,
                     bool weighted, bool ignore_one) {
  Attributes attributes = {{"reduction", std::move(reduction)}};
  if (ignore_one) attributes.set("ignore_index", std::int64_t{1});
  std::vector<ImportInput> inputs = {data(scores()), data(int64s({2, 2}, std::move(targets)))};
  if (weighted) inputs.push_back(data(floats({3}, {1, 2, 0.5})));
  return import_node(op, 13, attributes, inputs).run()[0].to_doubles()[0];
}

TEST(LossImport, ReductionsWeightsAndIgnoredLabels) {
  const char* op = "SoftmaxCrossEntropyLoss";
  const std::vector<std::int64_t> y = {2, 0, 1, 2};
  const std::vector<std::int64_t> some = {2, 1, 1, 0};
  EXPECT_NEAR(imported_loss(op, "mean", y, false, false), 0.4676441, 1e-6);
  EXPECT_NEAR(imported_loss(op, "sum", y, false, false), 1.87057638, 1e-6);
  EXPECT_NEAR(imported_loss(op, "mean", y, true, false), 0.63149065, 1e-6);
  EXPECT_NEAR(imported_loss(op, "sum", y, true, false), 2.52596259, 1e-6);
  EXPECT_NEAR(imported_loss(op, "mean", some, false, true), 1.28872597, 1e-6);
  EXPECT_NEAR(imported_loss(op, "sum", some, false, true), 2.57745194, 1e-6);
  EXPECT_NEAR(imported_loss(op, "mean", some, true, true), 1.66168594, 1e-6);
  EXPECT_NEAR(imported_loss(op, "sum", some, true, true), 2.49252892, 1e-6);
}

TEST(LossImport, NothingIsLostWhereAllLabelsAreIgnored) {
  const std::vector<std::int64_t> none = {1, 1, 1, 1};
  for (const bool weighted : {false, true})
    EXPECT_EQ(imported_loss("SoftmaxCrossEntropyLoss", "mean", none, weighted, true), 0);
}

TEST(LossImport, CommonFormsAreFused) {
  const Imported mean =
      import_node("SoftmaxCrossEntropyLoss", 13, {}, {data(logits()), data(labels())});
  EXPECT_EQ(mean.ops(), "SoftmaxCrossEntropy Div");
  expect_values(mean.run()[0], {}, {5.525263260991747 / 3});
  const Imported both =
      import_node("SoftmaxCrossEntropyLoss", 13, {}, {data(logits()), data(labels())}, 2);
  expect_values(both.run()[0], {}, {5.525263260991747 / 3});
  EXPECT_NEAR(both.run()[1].to_doubles()[0], 1 - 3.4076059644, 1e-6);
  const Imported none =
      import_node("SoftmaxCrossEntropyLoss", 13, {{"reduction", std::string("none")}},
                  {data(logits()), data(labels())});
  expect_values(none.run()[0], {3}, {0.4076059644, 1.0986122887, 4.0190450079});
}

TEST(LossImport, NegativeLogLikelihood) {
  const HostTensor log_probabilities = floats({2, 2}, {-1, -2, -3, -4});
  const Imported mean = import_node("NegativeLogLikelihoodLoss", 13, {},
                                    {data(log_probabilities), data(int32s({2}, {1, 0}))});
  expect_values(mean.run()[0], {}, {2.5});
  // What an ignored label reads does not count.
  const HostTensor masked = floats({2, 2}, {-std::numeric_limits<float>::infinity(), -2, -3, -4});
  const Imported ignored =
      import_node("NegativeLogLikelihoodLoss", 13, {{"ignore_index", std::int64_t{-100}}},
                  {data(masked), data(int32s({2}, {-100, 0}))});
  expect_values(ignored.run()[0], {}, {3});
}

// Label -1 is not the last class.
TEST(LossImport, NegativeLabelsAreNoClasses) {
  const Attributes each = {{"reduction", std::string("none")}};
  const Attributes ignoring_others = {{"ignore_index", std::int64_t{-100}}};
  const HostTensor weights = floats({3}, {1, 2, 0.5});
  const HostTensor negative = int64s({3}, {2, -1, 1});
  const Imported refused[] = {
      import_node("SoftmaxCrossEntropyLoss", 13, each, {data(logits()), data(negative)}),
      import_node("SoftmaxCrossEntropyLoss", 13, {},
                  {data(logits()), data(negative), data(weights)}),
      import_node("NegativeLogLikelihoodLoss", 13, {}, {data(logits()), data(negative)}),
      import_node("NegativeLogLikelihoodLoss", 13, ignoring_others,
                  {data(logits()), data(int32s({3}, {-100, -1, 1}))}),
  };
  for (const Imported& loss : refused) {
    for (const Backend backend : {Backend::kReference, Backend::kCpu})
      expect_error(ErrorKind::kData, "at position 1", [&] { loss.run(backend); });
  }
}

TEST(LossImport, RefusesWhatDoesNotFit) {
  expect_error(ErrorKind::kModel, "labels must be (2, 2)", [] {
    import_node("SoftmaxCrossEntropyLoss", 13, {}, {data(scores()), data(int64s({2}, {0, 1}))});
  });
  expect_error(ErrorKind::kModel, "reduction", [] {
    import_node("SoftmaxCrossEntropyLoss", 13, {{"reduction", std::string("max")}},
                {data(logits()), data(labels())});
  });
}

}  // namespace
}  // namespace pipetrain::test
