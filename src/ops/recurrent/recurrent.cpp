// Lstm, Gru, Rnn and their gradients: types and gradient rules.
#include "ops/recurrent/recurrent.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"
#include "ops/registry/all_ops.h"

namespace pipetrain::recurrent {
namespace {

struct ActivationEntry {
  std::string_view name;
  ActivationKind kind;
  double alpha;
  double beta;
};
constexpr std::array<ActivationEntry, 11> kActivations = {{
    {"Affine", ActivationKind::kAffine, 1, 0},
    {"Elu", ActivationKind::kElu, 1, 0},
    {"HardSigmoid", ActivationKind::kHardSigmoid, 0.2, 0.5},
    {"LeakyRelu", ActivationKind::kLeakyRelu, 0.01, 0},
    {"Relu", ActivationKind::kRelu, 0, 0},
    {"ScaledTanh", ActivationKind::kScaledTanh, 1, 1},
    {"Sigmoid", ActivationKind::kSigmoid, 0, 0},
    {"Softplus", ActivationKind::kSoftplus, 0, 0},
    {"Softsign", ActivationKind::kSoftsign, 0, 0},
    {"Tanh", ActivationKind::kTanh, 0, 0},
    {"ThresholdedRelu", ActivationKind::kThresholdedRelu, 1, 0},
}};

bool equal_but_for_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

bool has_activations(const Attributes& attributes, std::initializer_list<ActivationKind> kinds) {
  return attributes.real("clip", 0) == 0 &&
         std::ranges::equal(activations_of(attributes), kinds, {}, &Activation::kind);
}

}  // namespace

Activation activation_named(std::string_view name) {
  const auto found = std::ranges::find_if(kActivations, [&](const ActivationEntry& entry) {
    return equal_but_for_case(entry.name, name);
  });
  PT_CHECK(found != kActivations.end(), kModel, "unknown activation \"{}\" of a recurrent layer",
           printable(std::string(name)));
  return {found->kind, found->alpha, found->beta};
}

bool has_alpha(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kAffine:
    case ActivationKind::kElu:
    case ActivationKind::kHardSigmoid:
    case ActivationKind::kLeakyRelu:
    case ActivationKind::kScaledTanh:
    case ActivationKind::kThresholdedRelu:
      return true;
    default:
      return false;
  }
}

bool has_beta(ActivationKind kind) {
  return kind == ActivationKind::kAffine || kind == ActivationKind::kHardSigmoid ||
         kind == ActivationKind::kScaledTanh;
}

std::vector<Activation> activations_of(const Attributes& attributes) {
  const std::string names = attributes.text("activations", "");
  const Reals alpha = attributes.reals("alpha", {});
  const Reals beta = attributes.reals("beta", {});
  std::vector<Activation> out;
  for (std::size_t begin = 0; begin < names.size();) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    Activation activation = activation_named(std::string_view(names).substr(begin, end - begin));
    if (out.size() < alpha.size()) activation.alpha = alpha[out.size()];
    if (out.size() < beta.size()) activation.beta = beta[out.size()];
    out.push_back(activation);
    begin = end + 1;
  }
  return out;
}

bool is_usual_lstm(const Attributes& attributes) {
  using enum ActivationKind;
  return !attributes.flag("input_forget") && has_activations(attributes, {kSigmoid, kTanh, kTanh});
}

bool is_usual_gru(const Attributes& attributes) {
  using enum ActivationKind;
  return attributes.flag("linear_before_reset") && has_activations(attributes, {kSigmoid, kTanh});
}

Geometry geometry_of(const Attributes& attributes, const Shape& gates, std::int64_t gate_count) {
  PT_CHECK(gates.rank() == 3 && gates[2] % gate_count == 0, kModel,
           "the gates of a recurrent layer must be (steps, samples, {} hidden), got {}", gate_count,
           gates.text());
  return {gates[0], gates[1], gates[2] / gate_count, attributes.flag("reverse")};
}

namespace {

/// What the inputs and outputs of a node are made of.
struct Types {
  Types(const InferContext& context, std::int64_t gate_count, std::size_t gates_input)
      : gates(context.inputs[gates_input]),
        geometry(geometry_of(context.attributes, gates.shape, gate_count)),
        sequence{gates.dtype, {geometry.steps, geometry.samples, geometry.hidden}},
        state{gates.dtype, {geometry.samples, geometry.hidden}},
        weights{gates.dtype, {gate_count * geometry.hidden, geometry.hidden}},
        lengths{DType::kInt32, {geometry.samples}} {
    PT_CHECK(is_float(gates.dtype), kModel, "a recurrent layer needs floating-point gates, got {}",
             gates.text());
  }

  TensorType gates;
  Geometry geometry;
  TensorType sequence;
  TensorType state;
  TensorType weights;
  TensorType lengths;
};

/// Input `index` is absent, if that may be, or has the type.
void check_input(const InferContext& context, std::size_t index, const TensorType& expected,
                 std::string_view what, bool optional = true) {
  const bool absent =
      index >= context.inputs.size() || context.inputs[index].dtype == DType::kUndefined;
  if (absent && optional) return;
  PT_CHECK(!absent && context.inputs[index] == expected, kModel,
           "the {} of a recurrent layer must be {}, got {}", what, expected.text(),
           absent ? "none" : context.inputs[index].text());
}

void check_activations(const InferContext& context, std::size_t count) {
  const std::size_t found = activations_of(context.attributes).size();
  PT_CHECK(found == count, kModel, "a recurrent layer of this kind needs {} activations, got {}",
           count, found);
}

// --- Lstm: gates, r, h0, c0, peepholes, lengths -> y, last_h, last_c, activated, cells

void infer_lstm(InferContext& context) {
  const Types types(context, 4, 0);
  check_activations(context, 3);
  check_input(context, 1, types.weights, "recurrent weights", /*optional=*/false);
  check_input(context, 2, types.state, "initial hidden state");
  check_input(context, 3, types.state, "initial cell state");
  check_input(context, 4, {types.gates.dtype, {3 * types.geometry.hidden}}, "peepholes");
  check_input(context, 5, types.lengths, "sequence lengths");
  context.outputs = {types.sequence, types.state, types.state, types.gates, types.sequence};
}

// dy, dlast_h, dlast_c, r, activated, cells, c0, peepholes, lengths -> dgates, dh0, dc0
void infer_lstm_gradient(InferContext& context) {
  const Types types(context, 4, 4);
  check_input(context, 0, types.sequence, "gradient of y");
  check_input(context, 3, types.weights, "recurrent weights", /*optional=*/false);
  check_input(context, 5, types.sequence, "cells", /*optional=*/false);
  context.outputs = {types.gates, types.state, types.state};
}

// dgates, cells, c0, lengths -> dpeepholes
void infer_peephole_gradient(InferContext& context) {
  const Types types(context, 4, 0);
  check_input(context, 1, types.sequence, "cells", /*optional=*/false);
  context.outputs = {{types.gates.dtype, {3 * types.geometry.hidden}}};
}

// --- Gru: gates, r, hidden_bias, h0, lengths -> y, last_h, activated, hidden

void infer_gru(InferContext& context) {
  const Types types(context, 3, 0);
  check_activations(context, 2);
  check_input(context, 1, types.weights, "recurrent weights", /*optional=*/false);
  check_input(context, 2, {types.gates.dtype, {types.geometry.hidden}}, "hidden bias");
  check_input(context, 3, types.state, "initial hidden state");
  check_input(context, 4, types.lengths, "sequence lengths");
  context.outputs = {types.sequence, types.state, types.gates, types.sequence};
}

// dy, dlast_h, r, activated, hidden, y, h0, lengths -> dgates, drecurrent, dh0
void infer_gru_gradient(InferContext& context) {
  const Types types(context, 3, 3);
  check_input(context, 0, types.sequence, "gradient of y");
  check_input(context, 2, types.weights, "recurrent weights", /*optional=*/false);
  check_input(context, 4, types.sequence, "hidden part", /*optional=*/false);
  check_input(context, 5, types.sequence, "output", /*optional=*/false);
  context.outputs = {types.gates, types.gates, types.state};
}

// --- Rnn: gates, r, h0, lengths -> y, last_h

void infer_rnn(InferContext& context) {
  const Types types(context, 1, 0);
  check_activations(context, 1);
  check_input(context, 1, types.weights, "recurrent weights", /*optional=*/false);
  check_input(context, 2, types.state, "initial hidden state");
  check_input(context, 3, types.lengths, "sequence lengths");
  context.outputs = {types.sequence, types.state};
}

// dy, dlast_h, r, y, lengths -> dgates, dh0
void infer_rnn_gradient(InferContext& context) {
  const Types types(context, 1, 3);
  check_input(context, 0, types.sequence, "gradient of y");
  check_input(context, 2, types.weights, "recurrent weights", /*optional=*/false);
  context.outputs = {types.gates, types.state};
}

// --- dgates, y, h0, hidden, lengths -> dr; with hidden, the last H rows are of hidden, not of h

void infer_weight_gradient(InferContext& context) {
  const std::int64_t gate_count = context.inputs[0].shape[2] / context.inputs[1].shape[2];
  const Types types(context, gate_count, 0);
  check_input(context, 1, types.sequence, "output", /*optional=*/false);
  check_input(context, 3, types.sequence, "hidden part");
  context.outputs = {types.weights};
}

/// Input `index`; absent where the node has none.
ValueId optional_input(const GradientContext& context, std::size_t index) {
  return index < context.input_count() ? context.input(index) : ValueId{};
}

void set_if_wanted(GradientContext& context, std::size_t index, ValueId gradient) {
  if (optional_input(context, index) && context.wants(index)) {
    context.set_input_gradient(index, gradient);
  }
}

bool wants(const GradientContext& context, std::size_t index) {
  return optional_input(context, index) && context.wants(index);
}

/// Derivatives are taken from the activated value, which must show the sign of its input.
void check_slopes(const Attributes& attributes) {
  for (const Activation& one : activations_of(attributes)) {
    const bool leaky = one.kind == ActivationKind::kLeakyRelu;
    PT_CHECK(
        !(leaky || one.kind == ActivationKind::kElu) || one.alpha >= 0, kModel,
        "a recurrent layer with {} cannot be trained with the negative alpha {:g}: use one of 0 "
        "or more",
        leaky ? "LeakyRelu" : "Elu", one.alpha);
  }
}

void differentiate_lstm(GradientContext& context) {
  GraphBuilder& builder = context.builder();
  const Attributes attributes = context.attributes();
  check_slopes(attributes);
  PT_CHECK(!context.output_gradient(3) && !context.output_gradient(4), kInternal,
           "the gates of an LSTM have no gradient");
  const ValueId c0 = optional_input(context, 3);
  const ValueId lengths = optional_input(context, 5);
  const std::vector<ValueId> gradients =
      builder.add_all("LstmGrad",
                      {context.output_gradient(0), context.output_gradient(1),
                       context.output_gradient(2), context.input(1), context.output(3),
                       context.output(4), c0, optional_input(context, 4), lengths},
                      attributes);
  set_if_wanted(context, 0, gradients[0]);
  set_if_wanted(context, 2, gradients[1]);
  set_if_wanted(context, 3, gradients[2]);
  if (wants(context, 1)) {
    context.set_input_gradient(
        1, builder.add("RecurrentWeightGrad",
                       {gradients[0], context.output(0), optional_input(context, 2), {}, lengths},
                       attributes));
  }
  if (wants(context, 4)) {
    context.set_input_gradient(
        4, builder.add("LstmPeepholeGrad", {gradients[0], context.output(4), c0, lengths},
                       attributes));
  }
}

void differentiate_gru(GradientContext& context) {
  GraphBuilder& builder = context.builder();
  const Attributes attributes = context.attributes();
  check_slopes(attributes);
  PT_CHECK(!context.output_gradient(2) && !context.output_gradient(3), kInternal,
           "the gates of a GRU have no gradient");
  const bool after = attributes.flag("linear_before_reset");
  const ValueId h0 = optional_input(context, 3);
  const ValueId lengths = optional_input(context, 4);
  const std::vector<ValueId> gradients =
      builder.add_all("GruGrad",
                      {context.output_gradient(0), context.output_gradient(1), context.input(1),
                       context.output(2), context.output(3), context.output(0), h0, lengths},
                      attributes);
  set_if_wanted(context, 0, gradients[0]);
  set_if_wanted(context, 3, gradients[2]);
  if (wants(context, 1)) {
    context.set_input_gradient(1, builder.add("RecurrentWeightGrad",
                                              {gradients[1], context.output(0), h0,
                                               after ? ValueId{} : context.output(3), lengths},
                                              attributes));
  }
  if (wants(context, 2)) {
    const std::int64_t hidden = context.output_type(0).shape[2];
    const ValueId rows = builder.add("Slice", {gradients[1]},
                                     {{"starts", Ints{2 * hidden}},
                                      {"ends", Ints{3 * hidden}},
                                      {"axes", Ints{2}},
                                      {"steps", Ints{1}}});
    context.set_input_gradient(
        2, builder.add("ReduceSum", {rows}, {{"axes", Ints{0, 1}}, {"keepdims", std::int64_t{0}}}));
  }
}

void differentiate_rnn(GradientContext& context) {
  GraphBuilder& builder = context.builder();
  const Attributes attributes = context.attributes();
  check_slopes(attributes);
  const ValueId lengths = optional_input(context, 3);
  const std::vector<ValueId> gradients =
      builder.add_all("RnnGrad",
                      {context.output_gradient(0), context.output_gradient(1), context.input(1),
                       context.output(0), lengths},
                      attributes);
  set_if_wanted(context, 0, gradients[0]);
  set_if_wanted(context, 2, gradients[1]);
  if (wants(context, 1)) {
    context.set_input_gradient(
        1, builder.add("RecurrentWeightGrad",
                       {gradients[0], context.output(0), optional_input(context, 2), {}, lengths},
                       attributes));
  }
}

/// One product of the state with the weights at every step.
Cost product_cost(const TensorType& gates, std::int64_t hidden) {
  return {2.0 * static_cast<double>(gates.count()) * static_cast<double>(hidden)};
}

Cost forward_cost(const Attributes&, std::span<const TensorType> inputs,
                  std::span<const TensorType>) {
  return product_cost(inputs[0], inputs[1].shape[1]);
}

Cost gradient_cost(const Attributes&, std::span<const TensorType>,
                   std::span<const TensorType> outputs) {
  return product_cost(outputs[0], outputs[1].shape[outputs[1].shape.rank() - 1]);
}

Cost gru_gradient_cost(const Attributes&, std::span<const TensorType>,
                       std::span<const TensorType> outputs) {
  return product_cost(outputs[0], outputs[2].shape[1]);
}

Cost weight_gradient_cost(const Attributes&, std::span<const TensorType> inputs,
                          std::span<const TensorType>) {
  return product_cost(inputs[0], inputs[1].shape[2]);
}

/// Products whose `operands` are rounded and whose `results` may be stored narrow.
constexpr OpTraits recurrence_traits(Slots operands, Slots results) {
  return {KernelKind::kProduct,
          {PrecisionRule::kProduct, operands, results},
          LayoutRule::kRowMajor,
          {ChunkRule::kWhole},
          Fusion::kNever};
}
constexpr OpTraits kPeepholeGradTraits = {KernelKind::kProduct,
                                          {PrecisionRule::kFloat},
                                          LayoutRule::kRowMajor,
                                          {ChunkRule::kWhole},
                                          Fusion::kNever};

constexpr OpDef kRecurrentOps[] = {
    {"Gru", kPlain, recurrence_traits({0, 1}, {0, 2, 3}), infer_gru, differentiate_gru,
     forward_cost},
    {"GruGrad", kPlain, recurrence_traits({0, 2, 3, 4, 5}, {0, 1}), infer_gru_gradient, nullptr,
     gru_gradient_cost},
    {"Lstm", kPlain, recurrence_traits({0, 1}, {0, 3}), infer_lstm, differentiate_lstm,
     forward_cost},
    {"LstmGrad", kPlain, recurrence_traits({0, 3, 4}, {0}), infer_lstm_gradient, nullptr,
     gradient_cost},
    {"LstmPeepholeGrad", kPlain, kPeepholeGradTraits, infer_peephole_gradient, nullptr, nullptr},
    {"RecurrentWeightGrad", kPlain, recurrence_traits({0, 1, 3}, {}), infer_weight_gradient,
     nullptr, weight_gradient_cost},
    {"Rnn", kPlain, recurrence_traits({0, 1}, {0}), infer_rnn, differentiate_rnn, forward_cost},
    {"RnnGrad", kPlain, recurrence_traits({0, 2, 3}, {0}), infer_rnn_gradient, nullptr,
     gradient_cost},
};

}  // namespace
}  // namespace pipetrain::recurrent

namespace pipetrain {

const OpFamily& recurrent_family() {
  static const OpFamily family = {"recurrent",
                                  recurrent::kRecurrentOps,
                                  recurrent::imports(),
                                  recurrent::reference_kernels(),
                                  recurrent::cpu_kernels(),
                                  [](Backend backend, const KernelRequest& request) {
                                    return backend == Backend::kCpu &&
                                           recurrent::takes_bfloat16(request);
                                  }};
  return family;
}

}  // namespace pipetrain
