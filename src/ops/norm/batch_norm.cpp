// BatchNorm (statistics of the batch), BatchNormInference (given statistics), their gradients, and
// the import of BatchNormalization, which chooses between the two.
//
//   BatchNorm{epsilon, …}(x, scale, bias, residual?) -> y, mean, variance      (Ioffe and Szegedy
//   2015; the variance is biased) BatchNormGrad{epsilon}(dy, x, scale, mean, variance) -> dx,
//   dscale, dbias BatchNormInference{epsilon}(x, scale, bias, mean, variance) -> y
//   BatchNormInferenceGrad{epsilon}(dy, x, scale, mean, variance) -> dx, dscale, dbias
//
// If y is clipped or has an activation (batch_norm.h), the gradients also take the bias, to compute
// it again.
//
// The attributes momentum, running_mean and running_variance (value indices) of a BatchNorm node
// name the running statistics; the operator itself does not update them.
#include "ops/norm/batch_norm.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "ops/norm/batch_norm_bfloat16_cpu.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {

double batch_norm_epsilon(const Attributes& attributes) { return attributes.real("epsilon", 1e-5); }

BatchNormLimits::BatchNormLimits(const Attributes& attributes)
    : low(attributes.real("clip_min", -std::numeric_limits<double>::infinity())),
      high(attributes.real("clip_max", std::numeric_limits<double>::infinity())),
      passes_from(attributes.flag("clip_open")
                      ? static_cast<double>(std::nextafter(static_cast<float>(low),
                                                           std::numeric_limits<float>::max()))
                      : low) {}

bool BatchNormLimits::any() const { return std::isfinite(low) || std::isfinite(high); }

std::string batch_norm_activation(const Attributes& attributes) {
  return attributes.text("activation", "");
}

namespace {

/// Checks x and the per-channel inputs [first, last).
void check_inputs(const InferContext& context, std::size_t x_index, std::size_t first,
                  std::size_t last = SIZE_MAX) {
  const TensorType& x = context.inputs[x_index];
  PT_CHECK(x.shape.rank() >= 2 && is_float(x.dtype), kModel,
           "BatchNormalization needs a float input (N, C, ...), got {}", x.text());
  PT_CHECK(x.shape.count() > 0, kModel, "BatchNormalization needs a non-empty input, got {}",
           x.text());
  for (std::size_t i = first; i < std::min(last, context.inputs.size()); ++i) {
    const TensorType expected{x.dtype, Shape{x.shape[1]}};
    PT_CHECK(context.inputs[i].shape == expected.shape && context.inputs[i].dtype == x.dtype,
             kModel,
             "BatchNormalization over {} needs scale, bias, mean and variance of type {}, got {}",
             x.text(), expected.text(), context.inputs[i].text());
  }
}

void infer_training(InferContext& context) {
  const TensorType& x = context.inputs[0];
  if (context.inputs.size() > 3) {
    PT_CHECK(context.inputs[3].shape == x.shape, kModel,
             "BatchNormalization over {} cannot add {} to its result", x.text(),
             context.inputs[3].text());
  }
  check_inputs(context, 0, 1, 3);
  const TensorType channel{x.dtype, Shape{x.shape[1]}};
  context.outputs = {{x.dtype, x.shape}, channel, channel};
}

void infer_inference(InferContext& context) {
  check_inputs(context, 0, 1);
  context.outputs = {{context.inputs[0].dtype, context.inputs[0].shape}};
}

void infer_gradient(InferContext& context) {
  check_inputs(context, 1, 2);
  const TensorType& dy = context.inputs[0];
  const TensorType& x = context.inputs[1];
  PT_CHECK(dy.shape == x.shape && dy.dtype == x.dtype, kModel,
           "the gradient of BatchNormalization needs dy of type {}, got {}", x.text(), dy.text());
  const TensorType channel{x.dtype, Shape{x.shape[1]}};
  context.outputs = {{x.dtype, x.shape}, channel, channel};
}

void set_gradients(GradientContext& context, std::string_view op, ValueId mean, ValueId variance) {
  const std::vector<ValueId> gradients = context.builder().add_all(
      op, {context.output_gradient(), context.input(0), context.input(1), mean, variance},
      {{"epsilon", batch_norm_epsilon(context.attributes())}});
  for (std::size_t i = 0; i < 3; ++i) {
    if (context.wants(i)) context.set_input_gradient(i, gradients[i]);
  }
}

void differentiate_training(GradientContext& context) {
  PT_CHECK(!context.output_gradient(1) && !context.output_gradient(2), kModel,
           "no gradient passes through the saved mean and variance (outputs 3 and 4) of "
           "BatchNormalization, which nothing but its own gradient may read");
  set_gradients(context, "BatchNormGrad", context.output(1), context.output(2));
}

// The running statistics are states: they have no gradient.
void differentiate_inference(GradientContext& context) {
  set_gradients(context, "BatchNormInferenceGrad", context.input(3), context.input(4));
}

Cost cost(const Attributes&, std::span<const TensorType> in, std::span<const TensorType>) {
  return {8.0 * static_cast<double>(in[0].count())};
}

/// Whether the file says that the node normalizes with the statistics of the batch. Exporters also
/// say it of norms without running statistics, to which they give computed ones of the batch.
bool trains_in_file(const ImportContext& context) {
  if (context.opset() >= 14) return context.attributes().flag("training_mode");
  return context.output_count() > 1;
}

/// Whether the node normalizes with the statistics of the batch. Other statistics that nodes
/// compute are read in every mode, as they are when the network predicts.
bool trains(const ImportContext& context, bool computed) {
  if (!context.mode().training) return false;
  switch (context.mode().batch_norm) {
    case BatchNormMode::kTrain:
      return !computed || trains_in_file(context);
    case BatchNormMode::kFrozen:
      return false;
    case BatchNormMode::kAsFile:
      break;
  }
  return trains_in_file(context);
}

/// (x - mean) / sqrt(variance + epsilon) * scale + bias of single operators.
ValueId normalized_by_computed(ImportContext& context, double epsilon) {
  GraphBuilder& builder = context.builder();
  const Shape shape = context.type(0).shape;
  PT_CHECK(shape.rank() >= 2, kModel, "BatchNormalization needs (N, C, ...), got {}", shape.text());
  std::vector<std::int64_t> dims(shape.rank(), 1);
  dims[1] = shape[1];
  const auto of_channels = [&](std::size_t input) {
    return builder.reshape(context.input(input), Shape(dims));
  };
  const ValueId centered = builder.add("Sub", {context.input(0), of_channels(3)});
  const ValueId safe =
      builder.add("Add", {of_channels(4), builder.scalar(epsilon, context.type(4).dtype)});
  const ValueId normal = builder.add("Div", {centered, builder.add("Sqrt", {safe})});
  return builder.add("Add", {builder.add("Mul", {normal, of_channels(1)}), of_channels(2)});
}

void import_batch_normalization(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  PT_CHECK(context.attributes().integer("spatial", 1) == 1, kModel,
           "BatchNormalization with spatial=0 is not supported; export with opset 9 or later");
  const double epsilon = context.attributes().real("epsilon", 1e-5);
  const ValueId mean = context.input(3);
  const ValueId variance = context.input(4);
  // Outputs 1 and 2 are the running statistics, which are updated once per mini-batch outside the
  // graph. Outputs 3 and 4 of old opsets are saved statistics that must not be used.
  context.set_output(1, mean);
  context.set_output(2, variance);
  // Those have gradients, unlike running ones and constants.
  const auto is_computed = [&](ValueId statistic) {
    return builder.graph()[statistic].role == Role::kActivation;
  };
  const bool computed = is_computed(mean) || is_computed(variance);
  if (trains(context, computed)) {
    Attributes attributes{{"epsilon", epsilon},
                          {"momentum", context.attributes().real("momentum", 0.9)},
                          {"running_mean", std::int64_t{mean.index}},
                          {"running_variance", std::int64_t{variance.index}}};
    const std::vector<ValueId> outputs = builder.add_all(
        "BatchNorm", {context.input(0), context.input(1), context.input(2)}, std::move(attributes));
    context.set_output(0, outputs[0]);
    context.set_output(3, outputs[1]);
    context.set_output(4, outputs[2]);
    return;
  }
  context.set_output(3, mean);
  context.set_output(4, variance);
  if (context.mode().training && computed)
    return context.set_output(0, normalized_by_computed(context, epsilon));
  context.set_output(
      0, builder.add("BatchNormInference",
                     {context.input(0), context.input(1), context.input(2), mean, variance},
                     {{"epsilon", epsilon}}));
}

constexpr OpTraits kBatchNormTraits = {KernelKind::kRows,
                                       {PrecisionRule::kAsLarge},
                                       LayoutRule::kFollows,
                                       {ChunkRule::kChannels},
                                       Fusion::kNever};

constexpr OpDef kBatchNormOps[] = {
    {"BatchNorm", kPlain, kBatchNormTraits, infer_training, differentiate_training, cost},
    {"BatchNormGrad", kPlain, kBatchNormTraits, infer_gradient, nullptr, cost},
    {"BatchNormInference", kPlain, kBatchNormTraits, infer_inference, differentiate_inference,
     cost},
    {"BatchNormInferenceGrad", kPlain, kBatchNormTraits, infer_gradient, nullptr, cost},
};

constexpr ImportRule kBatchNormImports[] = {{"BatchNormalization", import_batch_normalization}};

}  // namespace

const OpFamily& batch_norm_family() {
  static const OpFamily family{"batch_norm",
                               kBatchNormOps,
                               kBatchNormImports,
                               batch_norm_reference_kernels(),
                               batch_norm_cpu_kernels(),
                               [](Backend backend, const KernelRequest& request) {
                                 return backend == Backend::kCpu &&
                                        batch_norm_takes_bfloat16(request);
                               }};
  return family;
}

}  // namespace pipetrain
