// ONNX's own loss nodes, for files whose output is the loss. Common forms become the fused
// SoftmaxCrossEntropy; class weights and unreduced losses are composed of simple operators.
#include <limits>
#include <optional>

#include "base/error.h"
#include "graph/builder.h"
#include "ops/loss/loss.h"

namespace pipetrain {
namespace {

/// scores: (N, C, d…)     labels: (N, d…)
class LossImport {
 public:
  explicit LossImport(ImportContext& context)
      : context_(context), builder_(context.builder()), shape_(context.type(0).shape) {
    PT_CHECK(shape_.rank() >= 2, kModel, "{} scores must be (N, C, …), got {}", context.op_type(),
             shape_.text());
    std::vector<std::int64_t> dims = shape_.dims();
    dims.erase(dims.begin() + 1);
    PT_CHECK(context.type(1).shape == Shape(dims), kModel, "{} labels must be {}, got {}",
             context.op_type(), Shape(dims).text(), context.type(1).shape.text());
    reduction_ = context.attributes().text("reduction", "mean");
    PT_CHECK(reduction_ == "mean" || reduction_ == "sum" || reduction_ == "none", kModel,
             "{} reduction must be none, sum or mean, got \"{}\"", context.op_type(),
             printable(reduction_));
    if (context.attributes().has("ignore_index")) {
      ignore_index_ = context.attributes().integer("ignore_index");
    }
    labels_ = cast(context.input(1), DType::kInt64);
  }

  ValueId log_probabilities() {
    return builder_.add("LogSoftmax", {context_.input(0)}, {{"axis", std::int64_t{1}}});
  }

  bool is_fusible() const { return reduction_ != "none" && !context_.has_input(2); }

  /// The loss of scores, through the fused operator.
  ValueId fused() {
    ValueId rows = context_.input(0);
    if (shape_.rank() > 2) {
      Ints perm = {0};
      for (std::size_t i = 2; i < shape_.rank(); ++i) perm.push_back(static_cast<std::int64_t>(i));
      perm.push_back(1);
      rows = builder_.add("Transpose", {rows}, {{"perm", perm}});
    }
    const std::int64_t count = builder_.shape(labels_).count();
    rows = builder_.reshape(rows, Shape{count, shape_[1]});
    const ValueId labels = builder_.reshape(labels_, Shape{count});
    const std::int64_t ignored = ignore_index_.value_or(std::numeric_limits<std::int64_t>::min());
    const ValueId sum =
        builder_.add("SoftmaxCrossEntropy", {rows, labels}, {{"ignore_index", ignored}});
    return reduction_ == "sum" ? sum : builder_.add("Div", {sum, total_weight(is_counted())});
  }

  /// The loss of log-probabilities, element by element.
  ValueId composed(ValueId log_probabilities) {
    const ValueId counted = is_counted();
    const ValueId zero = builder_.constant(HostTensor::scalar<std::int64_t>(0));
    const ValueId safe =
        ignore_index_ ? builder_.add("Where", {not_ignored(), labels_, zero}) : labels_;
    // GatherElements counts negative indices from the last class. One too large is an error on
    // CPUs; GPUs read the last class, so the loss is NaN there, as that of the fused operator.
    const ValueId classes = builder_.constant(HostTensor::scalar<std::int64_t>(shape_[1]));
    const ValueId index =
        builder_.add("Where", {builder_.add("Less", {safe, zero}), classes, safe});
    std::vector<std::int64_t> dims = shape_.dims();
    dims[1] = 1;
    const ValueId picked =
        builder_.add("GatherElements", {log_probabilities, builder_.reshape(index, Shape(dims))},
                     {{"axis", std::int64_t{1}}});
    ValueId weight = counted;
    ValueId loss = builder_.add("Neg", {builder_.reshape(picked, builder_.shape(labels_))});
    const ValueId none = builder_.scalar(std::numeric_limits<double>::quiet_NaN(), dtype());
    loss = builder_.add("Where", {builder_.add("Less", {index, classes}), loss, none});
    // Not a factor: what an ignored label reads may be infinite.
    if (counted) loss = builder_.add("Where", {not_ignored(), loss, builder_.scalar(0, dtype())});
    if (context_.has_input(2)) {
      const ValueId own =
          builder_.add("Gather", {context_.input(2), safe}, {{"axis", std::int64_t{0}}});
      weight = weight ? builder_.add("Mul", {own, weight}) : own;
      loss = builder_.add("Mul", {loss, own});
    }
    if (reduction_ == "none") return loss;
    const ValueId sum = total(loss);
    return reduction_ == "sum" ? sum : builder_.add("Div", {sum, total_weight(weight)});
  }

 private:
  DType dtype() const { return builder_.type(context_.input(0)).dtype; }

  ValueId cast(ValueId x, DType to) {
    if (builder_.type(x).dtype == to) return x;
    return builder_.add("Cast", {x}, {{"to", static_cast<std::int64_t>(to)}});
  }

  ValueId not_ignored() {
    const ValueId ignored =
        builder_.constant(HostTensor::scalar<std::int64_t>(ignore_index_.value()));
    return builder_.add("Not", {builder_.add("Equal", {labels_, ignored})});
  }

  /// 1 for labels that count and 0 for ignored ones; absent when all count.
  ValueId is_counted() { return ignore_index_ ? cast(not_ignored(), dtype()) : ValueId{}; }

  ValueId total(ValueId x) {
    Ints axes;
    for (std::size_t i = 0; i < builder_.shape(x).rank(); ++i) {
      axes.push_back(static_cast<std::int64_t>(i));
    }
    return builder_.add("ReduceSum", {x}, {{"axes", axes}, {"keepdims", std::int64_t{0}}});
  }

  /// The sum of the weights; without any, the number of labels. 1 in place of 0: a micro-batch
  /// whose labels are all ignored has no loss, which must not end the run.
  ValueId total_weight(ValueId weight) {
    if (!weight)
      return builder_.scalar(static_cast<double>(builder_.shape(labels_).count()), dtype());
    const ValueId sum = total(weight);
    const ValueId is_nothing = builder_.add("Equal", {sum, builder_.scalar(0, dtype())});
    return builder_.add("Where", {is_nothing, builder_.scalar(1, dtype()), sum});
  }

  ImportContext& context_;
  GraphBuilder& builder_;
  Shape shape_;
  std::string reduction_;
  std::optional<std::int64_t> ignore_index_;
  ValueId labels_;
};

void import_softmax_cross_entropy(ImportContext& context) {
  LossImport loss(context);
  if (context.output_count() > 1 || !loss.is_fusible()) {
    const ValueId log_probabilities = loss.log_probabilities();
    context.set_output(1, log_probabilities);
    if (!loss.is_fusible()) {
      context.set_output(0, loss.composed(log_probabilities));
      return;
    }
  }
  context.set_output(0, loss.fused());
}

void import_negative_log_likelihood(ImportContext& context) {
  context.set_output(0, LossImport(context).composed(context.input(0)));
}

constexpr ImportRule kLossImports[] = {
    {"NegativeLogLikelihoodLoss", import_negative_log_likelihood},
    {"SoftmaxCrossEntropyLoss", import_softmax_cross_entropy},
};

}  // namespace

std::span<const ImportRule> loss_imports() { return kLossImports; }

}  // namespace pipetrain
