// The losses that training attaches, and their gradients.
#include "ops/loss/loss.h"

#include <fmt/format.h>

#include <limits>

#include "base/error.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {

CrossEntropy cross_entropy_of(const Attributes& attributes, const Shape& logits) {
  PT_CHECK(logits.rank() == 2 && logits[1] > 0, kModel,
           "SoftmaxCrossEntropy logits must be (rows, classes), got {}", logits.text());
  CrossEntropy out{logits[0],
                   logits[1],
                   attributes.integer("ignore_index", -100),
                   {},
                   attributes.real("label_smoothing", 0.0)};
  for (const double weight : attributes.reals("class_weights", {})) {
    PT_CHECK(weight >= 0, kModel, "a class weight must not be negative, got {}", weight);
    out.weights.push_back(static_cast<float>(weight));
  }
  PT_CHECK(out.weights.empty() || static_cast<std::int64_t>(out.weights.size()) == out.classes,
           kModel, "{} class weights for {} classes", out.weights.size(), out.classes);
  PT_CHECK(out.smoothing >= 0.0 && out.smoothing < 1.0, kModel,
           "label smoothing must be at least 0 and below 1, got {}", out.smoothing);
  return out;
}

void check_labels(const CrossEntropy& loss, const std::int64_t* labels) {
  for (std::int64_t row = 0; row < loss.rows; ++row) {
    const std::int64_t label = labels[row];
    const bool ignores = loss.ignore_index != std::numeric_limits<std::int64_t>::min();
    PT_CHECK((label >= 0 && label < loss.classes) || label == loss.ignore_index, kData,
             "label {} at position {} of the micro-batch is out of range: the model has classes 0 "
             "to {}{}",
             label, row, loss.classes - 1,
             ignores ? fmt::format(" (ignored label: {})", loss.ignore_index) : "");
  }
}

namespace {

void check_same(const TensorType& x, const TensorType& target, std::string_view op) {
  PT_CHECK(is_float(x.dtype) && x.dtype == target.dtype && x.shape == target.shape, kModel,
           "{} needs a prediction and a target of one floating-point type, got {} and {}", op,
           x.text(), target.text());
}

void check_scalar(const TensorType& gradient, const TensorType& x) {
  PT_CHECK(gradient == (TensorType{x.dtype, Shape{}}), kModel,
           "the gradient of a loss must be a {} scalar, got {}", name_of(x.dtype), gradient.text());
}

// --- softmax cross-entropy ---

void check_cross_entropy(const InferContext& context) {
  const CrossEntropy loss = cross_entropy_of(context.attributes, context.inputs[0].shape);
  PT_CHECK(is_float(context.inputs[0].dtype), kModel,
           "SoftmaxCrossEntropy logits must be floating-point, got {}", context.inputs[0].text());
  const TensorType labels{DType::kInt64, Shape{loss.rows}};
  PT_CHECK(context.inputs[1] == labels, kModel, "SoftmaxCrossEntropy labels must be {}, got {}",
           labels.text(), context.inputs[1].text());
}

void infer_cross_entropy(InferContext& context) {
  check_cross_entropy(context);
  const DType dtype = context.inputs[0].dtype;
  context.outputs = {{dtype, Shape{}}, {dtype, Shape{}}, {dtype, context.inputs[1].shape}};
}

// (logits, labels, log_sum_exp, gy) -> dlogits
void infer_cross_entropy_gradient(InferContext& context) {
  check_cross_entropy(context);
  check_scalar(context.inputs[3], context.inputs[0]);
  context.outputs = {context.inputs[0]};
}

void differentiate_cross_entropy(GradientContext& context) {
  PT_CHECK(!context.output_gradient(1) && !context.output_gradient(2), kModel,
           "only the loss of SoftmaxCrossEntropy can be trained");
  const Attributes attributes = context.attributes();
  context.set_input_gradient(
      0, context.builder().add(
             "SoftmaxCrossEntropyGrad",
             {context.input(0), context.input(1), context.output(2), context.output_gradient()},
             attributes));
}

Cost cross_entropy_cost(const Attributes&, std::span<const TensorType> inputs,
                        std::span<const TensorType>) {
  constexpr double kFlopsPerElement = 5;
  return {kFlopsPerElement * static_cast<double>(inputs[0].count())};
}

// --- losses of equal shapes ---

void infer_binary_cross_entropy(InferContext& context) {
  const TensorType& x = context.inputs[0];
  check_same(x, context.inputs[1], "BinaryCrossEntropy");
  context.outputs = {{x.dtype, Shape{}}, {x.dtype, Shape{}}};
}

void infer_distance(InferContext& context) {
  const TensorType& x = context.inputs[0];
  check_same(x, context.inputs[1], "a regression loss");
  context.outputs = {{x.dtype, Shape{}}};
}

// (x, target, gy) -> dx
void infer_pointwise_gradient(InferContext& context) {
  check_same(context.inputs[0], context.inputs[1], "the gradient of a loss");
  check_scalar(context.inputs[2], context.inputs[0]);
  context.outputs = {context.inputs[0]};
}

ValueId pointwise_gradient(GradientContext& context, std::string_view op) {
  return context.builder().add(op, {context.input(0), context.input(1), context.output_gradient()});
}

void differentiate_binary_cross_entropy(GradientContext& context) {
  PT_CHECK(!context.wants(1), kModel,
           "the target of a binary cross-entropy must not depend on trainable parameters");
  context.set_input_gradient(0, pointwise_gradient(context, "BinaryCrossEntropyGrad"));
}

// Both losses depend on x - target only, so the target's gradient is the negative of x's.
void differentiate_distance(GradientContext& context, std::string_view op) {
  const ValueId dx = pointwise_gradient(context, op);
  if (context.wants(0)) context.set_input_gradient(0, dx);
  if (context.wants(1)) context.set_input_gradient(1, context.builder().add("Neg", {dx}));
}

void differentiate_squared_error(GradientContext& context) {
  differentiate_distance(context, "SquaredErrorGrad");
}

void differentiate_absolute_error(GradientContext& context) {
  differentiate_distance(context, "AbsoluteErrorGrad");
}

Cost pointwise_cost(const Attributes&, std::span<const TensorType> inputs,
                    std::span<const TensorType>) {
  constexpr double kFlopsPerElement = 3;
  return {kFlopsPerElement * static_cast<double>(inputs[0].count())};
}

constexpr OpTraits kDistanceTraits = {KernelKind::kElementwise,
                                      {PrecisionRule::kFloat},
                                      LayoutRule::kRowMajor,
                                      {ChunkRule::kWhole},
                                      Fusion::kNever};
constexpr OpTraits kCrossEntropyTraits = {KernelKind::kRows,
                                          {PrecisionRule::kFloat},
                                          LayoutRule::kRowMajor,
                                          {ChunkRule::kWhole},
                                          Fusion::kNever};
constexpr OpTraits kCrossEntropyGradTraits = {KernelKind::kRows,
                                              {PrecisionRule::kFloat},
                                              LayoutRule::kRowMajor,
                                              {ChunkRule::kSamples},
                                              Fusion::kNever};

constexpr OpDef kLossOps[] = {
    {"AbsoluteError", kPlain, kDistanceTraits, infer_distance, differentiate_absolute_error,
     pointwise_cost},
    {"AbsoluteErrorGrad", kPlain, kDistanceTraits, infer_pointwise_gradient, nullptr,
     pointwise_cost},
    {"BinaryCrossEntropy", kPlain, kDistanceTraits, infer_binary_cross_entropy,
     differentiate_binary_cross_entropy, cross_entropy_cost},
    {"BinaryCrossEntropyGrad", kPlain, kDistanceTraits, infer_pointwise_gradient, nullptr,
     cross_entropy_cost},
    {"SoftmaxCrossEntropy", kPlain, kCrossEntropyTraits, infer_cross_entropy,
     differentiate_cross_entropy, cross_entropy_cost},
    {"SoftmaxCrossEntropyGrad", kPlain, kCrossEntropyGradTraits, infer_cross_entropy_gradient,
     nullptr, cross_entropy_cost},
    {"SquaredError", kPlain, kDistanceTraits, infer_distance, differentiate_squared_error,
     pointwise_cost},
    {"SquaredErrorGrad", kPlain, kDistanceTraits, infer_pointwise_gradient, nullptr,
     pointwise_cost},
};

}  // namespace

const OpFamily& loss_family() {
  static const OpFamily family = {"loss", kLossOps, loss_imports(), loss_reference_kernels(),
                                  loss_cpu_kernels()};
  return family;
}

}  // namespace pipetrain
