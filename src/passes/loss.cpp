#include "passes/loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <ranges>
#include <set>

#include "base/error.h"
#include "base/filling.h"
#include "base/setting.h"
#include "onnx_io/model.h"
#include "ops/registry/registry.h"
#include "passes/causality.h"
#include "passes/squeezed_shapes.h"

namespace pipetrain {
namespace {

struct NamedLoss {
  std::string_view name;
  LossKind kind;
};
constexpr NamedLoss kLosses[] = {
    {"cross-entropy", LossKind::kCrossEntropy}, {"bce", LossKind::kBinaryCrossEntropy},
    {"mse", LossKind::kSquaredError},           {"l1", LossKind::kAbsoluteError},
    {"causal-lm", LossKind::kCausalLm},         {"output", LossKind::kOutput},
};

LossKind loss_named(const std::string& name) {
  std::string known;
  for (const NamedLoss& loss : kLosses) {
    if (loss.name == name) return loss.kind;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", loss.name);
  }
  PT_FAIL(kUsage, "unknown loss \"{}\"; one of: auto, {}", printable(name), known);
}

/// Whether an output is named "loss" and is one number.
bool is_loss(const TrainingGraph& training, std::size_t output) {
  return training.output_names[output] == "loss" &&
         training.graph[training.outputs[output]].type.shape.count() == 1;
}

/// Whether a scalar is computed as such or sums up something: what Squeeze, and maybe an activation
/// after it, have made of one value of a sample does neither.
bool sums_up(const Graph& graph, ValueId scalar) {
  const auto keeps_elements = [&](NodeId node) {
    return graph[node].inputs.size() == 1 && !graph[node].op->name.starts_with("Reduce");
  };
  NodeId node = graph[scalar].producer;
  for (; node && keeps_elements(node); node = graph[scalar].producer)
    scalar = graph[node].inputs[0];
  return !node || graph[scalar].type.shape.rank() == 0 ||
         graph[node].op->name.starts_with("Reduce");
}

/// Whether an output of a model of one sample is a prediction, which a loss compares with labels.
bool is_prediction(const TrainingGraph& training, std::size_t output, const LossOptions& options) {
  if (options.loss != "auto") return options.loss != "output";
  const ValueId value = training.outputs[output];
  if (is_loss(training, output)) return false;
  if (training.graph[value].type.shape.rank() > 0) return true;
  const bool labelled = options.labels == LabelHint::kBinary ||
                        options.labels == LabelHint::kInteger ||
                        options.labels == LabelHint::kFloat;
  return labelled && !options.labels_are_input && !sums_up(training.graph, value);
}

/// The integer input whose tokens the output (N, T, V) seems to predict: it is (N, T) and indexes a
/// table of V rows.
const GraphInput* token_input(const TrainingGraph& training, const Shape& output) {
  if (output.rank() != 3) return nullptr;
  const GraphInput* filled = nullptr;  // positions and the like, only if there is no other
  for (const GraphInput& input : training.inputs) {
    const TensorType& type = training.graph[input.value].type;
    if (is_float(type.dtype) || type.shape != Shape{output[0], output[1]} ||
        input.upper_bound != output[2])
      continue;
    if (!filling_of(input.name)) return &input;
    if (!filled) filled = &input;
  }
  return filled;
}

/// The first input whose tokens look up a table: the one whose next tokens labels are made of, as
/// no positions and types of tokens can be.
const GraphInput* first_lookup(const TrainingGraph& training) {
  const auto looks_up = [](const GraphInput& input) {
    return input.upper_bound > 0 && !filling_of(input.name);
  };
  const auto found = std::find_if(training.inputs.begin(), training.inputs.end(), looks_up);
  return found == training.inputs.end() ? nullptr : &*found;
}

/// The loss of labels with as many values as the output has, which are no class indices.
std::optional<LossKind> elementwise_kind(const Shape& output, const LossOptions& options) {
  const std::int64_t elements = output.count() / std::max<std::int64_t>(1, output[0]);
  if (options.labels == LabelHint::kUnknown || options.labels == LabelHint::kNone ||
      options.labels == LabelHint::kGenerated || options.label_elements != elements)
    return {};
  if (options.labels == LabelHint::kBinary) return LossKind::kBinaryCrossEntropy;
  if (output.rank() > 2) return {};
  return LossKind::kSquaredError;
}

/// Whether an output can be compared with the first input, as an autoencoder's.
bool is_like_input(const TrainingGraph& training, ValueId output) {
  return !training.inputs.empty() &&
         training.graph[training.inputs[0].value].type == training.graph[output].type;
}

bool ends_in(const Graph& graph, ValueId output, std::string_view op) {
  const std::optional<FinalActivation> found = final_activation(graph, output);
  return found && graph[found->node].op->name == op;
}

bool is_one(const HostTensor& value) {
  return value && std::ranges::all_of(value.to_doubles(), [](double x) { return x == 1; });
}

/// Whether a node makes numbers from 0 to 1 that are probabilities.
bool makes_probabilities(const Graph& graph, const Node& node) {
  const std::string_view op = node.op->name;
  if (op == "Clip") {
    return node.attributes.real("min", -1) >= 0 && node.attributes.real("max", 2) <= 1;
  }
  if (op == "Exp") {
    const NodeId before = graph[node.inputs[0]].producer;
    return before && graph[before].op->name == std::string_view("LogSoftmax");
  }
  return op == "Sigmoid" || op == "Softmax" || op == "HardSigmoid";
}

/// Inputs of a node that are probabilities if its outputs are; empty: its outputs are others.
std::vector<ValueId> probabilities_of(const Graph& graph, const Node& node) {
  constexpr std::string_view kPassing[] = {"Reshape", "Transpose", "Slice", "Split",
                                           "Expand",  "Clip",      "Gather"};
  const std::string_view op = node.op->name;
  if (op == "Concat") return node.inputs;
  if (op == "Sub" && is_one(graph[node.inputs[0]].data)) return {node.inputs[1]};
  if (std::ranges::find(kPassing, op) != std::end(kPassing)) return {node.inputs[0]};
  return {};
}

/// Whether an output is made of probabilities, as far as its last nodes tell.
bool holds_probabilities(const Graph& graph, ValueId output) {
  std::vector<ValueId> open = {output};
  std::set<ValueId> seen;
  while (!open.empty()) {
    const ValueId value = open.back();
    open.pop_back();
    if (!value || !seen.insert(value).second) continue;
    const NodeId producer = graph[value].producer;
    if (!producer) return false;
    const Node& node = graph[producer];
    if (makes_probabilities(graph, node)) continue;
    const std::vector<ValueId> before = probabilities_of(graph, node);
    if (before.empty()) return false;
    open.insert(open.end(), before.begin(), before.end());
  }
  return true;
}

LossKind infer_kind(const TrainingGraph& training, ValueId output, const LossOptions& options) {
  const Shape& shape = training.graph[output].type.shape;
  const std::string& name = training.graph[output].name;
  // Other 0/1 labels are classes.
  const LabelHint labels = options.labels == LabelHint::kBinary ? LabelHint::kInteger
                           : options.labels == LabelHint::kNone && is_like_input(training, output)
                               ? LabelHint::kFloat
                               : options.labels;
  if (shape.count() == 1 && shape.rank() == 0) return LossKind::kOutput;
  const bool sigmoid = ends_in(training.graph, output, "Sigmoid");
  if (labels == LabelHint::kFloat)
    return sigmoid ? LossKind::kBinaryCrossEntropy : LossKind::kSquaredError;
  if (sigmoid) return LossKind::kBinaryCrossEntropy;
  if (const auto kind = elementwise_kind(shape, options)) return *kind;
  if (shape.rank() == 1) return LossKind::kBinaryCrossEntropy;
  if (shape.rank() == 2)
    return shape[1] == 1 ? LossKind::kBinaryCrossEntropy : LossKind::kCrossEntropy;
  if (shape.rank() == 4 && shape[class_axis(training.graph, output)] >= 2)
    return LossKind::kCrossEntropy;
  if (const GraphInput* tokens = token_input(training, shape)) {
    const bool has_labels = labels == LabelHint::kInteger || labels == LabelHint::kGenerated;
    const GraphInput* const first = first_lookup(training);
    if (first && first < tokens) {  // a decoder after an encoder
      PT_CHECK(
          has_labels, kUsage,
          "output \"{}\" predicts a token at every position of \"{}\", but \"{}\" comes before "
          "it, so the labels cannot be its next tokens; give labels of shape (N, T)",
          printable(name), printable(tokens->name), printable(first->name));
      return LossKind::kCrossEntropy;
    }
    if (is_causal(training, output, *tokens)) return LossKind::kCausalLm;
    PT_CHECK(has_labels, kUsage,
             "output \"{}\" predicts a token at every position, but later tokens reach earlier "
             "ones, so the next token "
             "would leak; say what to train with {} (cross-entropy with labels of shape (N, "
             "T), or mse)",
             printable(name), setting("loss"));
    return LossKind::kCrossEntropy;
  }
  if (shape.rank() == 3 && labels == LabelHint::kInteger) return LossKind::kCrossEntropy;
  PT_FAIL(kUsage,
          "cannot tell which loss fits output \"{}\" of shape {}; give {} cross-entropy, bce, "
          "mse, l1, causal-lm or "
          "output",
          printable(name), shape.text(), setting("loss"));
}

class LossBuilder {
 public:
  LossBuilder(TrainingGraph& training, const LossOptions& options)
      : training_(training), options_(options), builder_(make_builder(training.graph)) {}

  void run() {
    const std::size_t index = output_of_loss(training_, options_);
    output_ = training_.outputs[index];
    Loss& loss = training_.loss;
    loss.output = training_.output_names[index];
    builder_.set_origin("loss", Part::kForward);
    if (options_.of_one_sample && is_prediction(training_, index, options_)) {
      output_ = builder_.reshape(output_, with_sample_axis(training_.graph, output_));
      training_.outputs[index] = output_;
    }
    const bool computed = options_.loss == "auto" && is_loss(training_, index);
    loss.kind = computed                  ? LossKind::kOutput
                : options_.loss == "auto" ? infer_kind(training_, output_, options_)
                                          : loss_named(options_.loss);
    loss.ignore_index = options_.ignore_index;
    Value scale;
    scale.name = "loss_scale";
    scale.type = {DType::kFloat32, Shape{}};
    scale.role = Role::kLossScale;
    loss.loss_scale = builder_.add_value(std::move(scale));
    const bool classifies =
        loss.kind == LossKind::kCrossEntropy || loss.kind == LossKind::kCausalLm;
    PT_CHECK(classifies || (options_.label_smoothing == 0 && options_.class_weights.empty()),
             kUsage, "{} and {} belong to cross-entropy, not to {}", setting("label-smoothing"),
             setting("class-weights"), name_of(loss.kind));
    PT_CHECK(classifies || loss.kind == LossKind::kOutput ||
                 options_.ignore_index == LossOptions().ignore_index,
             kUsage, "{} belongs to cross-entropy, not to {}", setting("ignore-index"),
             name_of(loss.kind));
    switch (loss.kind) {
      case LossKind::kCrossEntropy:
      case LossKind::kCausalLm:
        cross_entropy();
        break;
      case LossKind::kBinaryCrossEntropy:
        if (!strip_head("Sigmoid")) look_for_probabilities("Sigmoid");
        elementwise("BinaryCrossEntropy", "binary classifier");
        break;
      case LossKind::kSquaredError:
        elementwise("SquaredError", "regression");
        break;
      case LossKind::kAbsoluteError:
        elementwise("AbsoluteError", "regression");
        break;
      case LossKind::kOutput:
        output_is_loss();
        break;
    }
  }

 private:
  bool strip_head(std::string_view op) {
    if (!ends_in(training_.graph, output_, op)) return false;
    const FinalActivation head = *final_activation(training_.graph, output_);
    output_ = training_.graph[head.node].inputs[0];
    for (const NodeId move : std::views::reverse(head.moves)) {
      const Node& node = training_.graph[move];
      output_ = builder_.add(node.op->name, {output_}, node.attributes);
    }
    training_.notes.push_back(
        fmt::format("final {} fused into the loss (and kept in the file)", op));
    return true;
  }

  /// The loss computes `op` itself: of an output of probabilities it would be one too many. Without
  /// data nothing tells whether that is the loss: images are numbers from 0 to 1, too.
  void look_for_probabilities(std::string_view op) {
    if (!holds_probabilities(training_.graph, output_)) return;
    const std::string name = printable(training_.loss.output);
    const std::string_view loss = name_of(training_.loss.kind);
    PT_CHECK(options_.loss != "auto" || !options_.has_data, kUsage,
             "output \"{}\" is made of probabilities, of which {} would compute another {}; name "
             "the values before them with {} NAME, or give {} {} to train it so",
             name, loss, op, setting("output-node"), setting("loss"), loss);
    training_.notes.push_back(fmt::format(
        "output \"{}\" is made of probabilities, of which {} computes another {}", name, loss, op));
  }

  void add_label(DType dtype, Shape shape) {
    const std::int64_t samples = training_.micro_batch;
    PT_CHECK(shape.rank() >= 1 && shape[0] == samples, kUsage,
             "output \"{}\" does not have one row for each sample: its shape is {} for {} "
             "sample{}; name another one with {}, or use {} output if it is the loss",
             printable(training_.loss.output), builder_.shape(output_).text(), samples,
             samples == 1 ? "" : "s", setting("logits"), setting("loss"));
    Value label;
    label.name = "label";
    label.type = {dtype, std::move(shape)};
    label.role = Role::kLabel;
    training_.loss.label = builder_.add_value(std::move(label));
  }

  void set_results(ValueId loss_sum, ValueId correct) {
    training_.loss.loss_sum = loss_sum;
    training_.loss.correct = correct;
    builder_.rename(loss_sum, "loss");
  }

  void cross_entropy() {
    const std::size_t axis = class_axis(training_.graph, output_);
    const bool is_probability = strip_head("Softmax");
    const bool is_logarithm = strip_head("LogSoftmax");
    if (!is_probability && !is_logarithm) look_for_probabilities("Softmax");
    Loss& loss = training_.loss;
    const Shape shape = builder_.shape(output_);
    PT_CHECK(shape.rank() >= 2, kUsage,
             "{} {} needs an output of shape (N, C), (N, T, V) or (N, C, …), not {}",
             setting("loss"), name_of(loss.kind), shape.text());
    const bool classes_last = axis + 1 == shape.rank();
    loss.classes = shape[axis];
    PT_CHECK(loss.classes > 0, kModel, "output \"{}\" has no classes: its shape is {}",
             printable(training_.loss.output), shape.text());
    std::vector<std::int64_t> label_dims = shape.dims();
    label_dims.erase(label_dims.begin() + static_cast<std::ptrdiff_t>(axis));
    ValueId logits = output_;
    if (!classes_last) {
      Ints perm = {0};
      for (std::size_t axis = 2; axis < shape.rank(); ++axis)
        perm.push_back(static_cast<std::int64_t>(axis));
      perm.push_back(1);
      logits = builder_.add("Transpose", {logits}, {{"perm", perm}});
    }
    PT_CHECK(options_.label_smoothing >= 0 && options_.label_smoothing < 1, kUsage,
             "{} must be at least 0 and below 1, not {}", setting("label-smoothing"),
             options_.label_smoothing);
    if (options_.mixed_labels) return mixed_cross_entropy(logits);
    const std::int64_t rows = shape.count() / std::max<std::int64_t>(1, loss.classes);
    loss.elements_per_sample = rows / std::max<std::int64_t>(1, shape[0]);
    add_label(DType::kInt64, Shape(label_dims));
    logits = builder_.reshape(logits, Shape{rows, loss.classes});
    const ValueId labels = builder_.reshape(loss.label, Shape{rows});
    Attributes attributes = {{"ignore_index", loss.ignore_index}};
    if (options_.label_smoothing > 0) attributes.set("label_smoothing", options_.label_smoothing);
    if (!options_.class_weights.empty()) {
      PT_CHECK(static_cast<std::int64_t>(options_.class_weights.size()) == loss.classes, kUsage,
               "{} has {} numbers, the model {} classes", setting("class-weights"),
               options_.class_weights.size(), loss.classes);
      attributes.set("class_weights", options_.class_weights);
    }
    const auto results = builder_.add_all("SoftmaxCrossEntropy", {logits, labels}, attributes);
    set_results(results[0], results[1]);
    const std::string_view task = loss.kind == LossKind::kCausalLm ? "language model"
                                  : shape.rank() == 2              ? "classifier"
                                  : shape.rank() == 3              ? "token classifier"
                                                                   : "pixel classifier";
    loss.task = fmt::format("{} ({}, {} classes)", task, name_of(loss.kind), loss.classes);
  }

  /// Labels are probabilities: minus the sum of probability times log-probability.
  void mixed_cross_entropy(ValueId logits) {
    Loss& loss = training_.loss;
    const Shape shape = builder_.shape(logits);
    PT_CHECK(shape.rank() == 2 && loss.kind == LossKind::kCrossEntropy, kUsage,
             "{}: mixup and cutmix need one label per sample, output \"{}\" has shape {}",
             setting("augment"), printable(loss.output), shape.text());
    PT_CHECK(options_.class_weights.empty() && !options_.balanced_classes, kUsage,
             "{}: mixup and cutmix do not support {}", setting("augment"),
             setting("class-weights"));
    loss.mixed = true;
    add_label(DType::kFloat32, shape);
    const ValueId logs = builder_.add("LogSoftmax", {logits}, {{"axis", std::int64_t{1}}});
    const ValueId sum = builder_.add("ReduceSum", {builder_.add("Mul", {logs, loss.label})},
                                     {{"axes", Ints{0, 1}}, {"keepdims", std::int64_t{0}}});
    set_results(builder_.add("Neg", {sum}), {});
    loss.task =
        fmt::format("classifier ({}, {} classes, mixed labels)", name_of(loss.kind), loss.classes);
  }

  void elementwise(std::string_view op, std::string_view task) {
    const Shape shape = builder_.shape(output_);
    add_label(DType::kFloat32, shape);
    training_.loss.elements_per_sample = shape.count() / std::max<std::int64_t>(1, shape[0]);
    const auto results = builder_.add_all(op, {output_, training_.loss.label});
    set_results(results[0], results.size() > 1 ? results[1] : ValueId{});
    training_.loss.task = fmt::format("{} ({})", task, name_of(training_.loss.kind));
  }

  void output_is_loss() {
    PT_CHECK(!options_.mixed_labels, kUsage,
             "{}: mixup and cutmix need labels that the loss compares with an output, and this "
             "model computes its loss itself",
             setting("augment"));
    const Shape shape = builder_.shape(output_);
    PT_CHECK(shape.count() == 1, kUsage, "{} output needs a scalar output, \"{}\" has shape {}",
             setting("loss"), printable(training_.loss.output), shape.text());
    PT_CHECK(!training_.inputs.empty(), kModel,
             "output \"{}\" depends on no input of the model, so no data can train it",
             printable(training_.loss.output));
    const ValueId scalar = builder_.reshape(output_, Shape{});
    set_results(
        builder_.add("Mul", {scalar, builder_.scalar(static_cast<double>(training_.micro_batch))}),
        {});
    training_.loss.task = "the model computes its own loss";
    training_.notes.push_back(
        fmt::format("output \"{}\" treated as the mean loss over the samples of a micro-batch",
                    printable(training_.loss.output)));
  }

  TrainingGraph& training_;
  const LossOptions& options_;
  GraphBuilder builder_;
  ValueId output_;
};

}  // namespace

std::size_t output_of_loss(const TrainingGraph& training, const LossOptions& options) {
  const std::string& wanted = options.output;
  const auto& names = training.output_names;
  if (!wanted.empty()) {
    const auto found = std::find(names.begin(), names.end(), wanted);
    PT_CHECK(found != names.end(), kUsage, "the model has no output named \"{}\"; it has: {}",
             printable(wanted), fmt::join(names, ", "));
    return static_cast<std::size_t>(found - names.begin());
  }
  std::vector<std::size_t> floats;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (is_float(training.graph[training.outputs[i]].type.dtype)) floats.push_back(i);
  }
  PT_CHECK(!floats.empty(), kModel, "the model has no floating-point output to train");
  if (floats.size() == 1) return floats[0];
  if (options.loss == "auto" || options.loss == "output") {
    for (const std::size_t i : floats) {
      if (is_loss(training, i)) return i;
    }
  }
  for (const std::string_view known : kUsualOutputs) {
    for (const std::size_t i : floats) {
      if (names[i] == known) return i;
    }
  }
  return floats[0];
}

std::string_view name_of(LossKind kind) {
  for (const NamedLoss& loss : kLosses) {
    if (loss.kind == kind) return loss.name;
  }
  return "?";
}

void attach_loss(TrainingGraph& training, const LossOptions& options) {
  LossBuilder(training, options).run();
}

}  // namespace pipetrain
