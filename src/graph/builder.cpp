#include "graph/builder.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/read_budget.h"
#include "base/setting.h"

namespace pipetrain {

namespace {

// About what a value and its node take, names and shapes included.
constexpr std::size_t kBytesOfValue = 512;

/// Whether a type of integers has this number.
bool has_number(DType dtype, double value) {
  if (value != std::trunc(value)) return false;
  if (dtype == DType::kBool) return value == 0 || value == 1;
  const bool is_signed = dtype == DType::kInt8 || dtype == DType::kInt16 ||
                         dtype == DType::kInt32 || dtype == DType::kInt64;
  const int bits = 8 * static_cast<int>(size_of(dtype)) - (is_signed ? 1 : 0);
  const double end = std::ldexp(1.0, bits);
  return value >= (is_signed ? -end : 0.0) && value < end;
}

}  // namespace

GraphBuilder::GraphBuilder(Graph& graph, FindOp find_op, Evaluate evaluate)
    : graph_(graph), find_op_(std::move(find_op)), evaluate_(std::move(evaluate)) {}

void GraphBuilder::set_origin(std::string name, Part part, NodeId gradient_of) {
  origin_name_ = std::move(name);
  origin_part_ = part;
  origin_gradient_of_ = gradient_of;
}

ValueId GraphBuilder::add_value(Value value) {
  ReadBudget::charge(kBytesOfValue);
  graph_.values.push_back(std::move(value));
  return {static_cast<int>(graph_.values.size()) - 1};
}

ValueId GraphBuilder::constant(HostTensor tensor, std::string name) {
  Value value;
  value.name = name.empty() ? fmt::format("constant_{}", graph_.values.size()) : std::move(name);
  value.type = tensor.type();
  value.role = Role::kConstant;
  value.data = std::move(tensor);
  return add_value(std::move(value));
}

ValueId GraphBuilder::scalar(double value, DType dtype) {
  if (dtype == DType::kFloat64) return constant(HostTensor::scalar<double>(value));
  PT_CHECK(is_float(dtype) || has_number(dtype, value), kModel,
           "values of {} cannot be combined with the constant {}", name_of(dtype), value);
  const ValueId number = constant(HostTensor::scalar<float>(static_cast<float>(value)));
  if (is_float(dtype)) return number;
  return add("Cast", {number}, {{"to", static_cast<std::int64_t>(dtype)}});
}

namespace {

/// Rejects absurd sizes: model files are untrusted.
void check_size(const TensorType& type) {
  PT_CHECK(type.shape.rank() <= kMostAxesOfValue, kModel, "a result has rank {}; {} is the most",
           type.shape.rank(), kMostAxesOfValue);
  for (const std::int64_t dim : type.shape)
    PT_CHECK(dim >= 0, kModel, "invalid result shape {}", type.shape.text());
  PT_CHECK(type.rounded_bytes() <= kMostBytesOfValue, kModel,
           "a result of shape {} takes more than 1 TiB", type.shape.text());
}

}  // namespace

std::vector<ValueId> GraphBuilder::add_all(std::string_view op_name, std::vector<ValueId> inputs,
                                           Attributes attributes) {
  const OpDef* op = find_op_(op_name);
  PT_CHECK(op != nullptr, kInternal, "no canonical operator {}", op_name);
  Node node;
  node.op = op;
  node.attributes = std::move(attributes);
  node.inputs = std::move(inputs);
  node.name = origin_name_;
  node.part = origin_part_;
  node.gradient_of = origin_gradient_of_;

  const std::vector<TensorType> input_types = graph_.input_types(node);
  InferContext infer{node.attributes, input_types, {}};
  with_context(
      [&] { return fmt::format("adding {} for node {}", op_name, printable(origin_name_)); },
      [&] {
        op->infer(infer);
        for (const TensorType& type : infer.outputs) check_size(type);
      });

  const bool foldable = !(op->flags & kRandom) && !node.inputs.empty() &&
                        std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
                          return !id || graph_[id].role == Role::kConstant;
                        });
  if (foldable && evaluate_) {
    std::vector<HostTensor> constants;
    for (const ValueId id : node.inputs) constants.push_back(id ? graph_[id].data : HostTensor());
    std::vector<HostTensor> results = evaluate_(node, constants, infer.outputs);
    if (!results.empty()) {
      std::vector<ValueId> out;
      for (HostTensor& result : results) out.push_back(constant(std::move(result)));
      return out;
    }
  }

  const NodeId id{static_cast<int>(graph_.nodes.size())};
  for (TensorType& type : infer.outputs) {
    Value value;
    value.name = fmt::format("{}_{}", op_name, graph_.values.size());
    value.type = std::move(type);
    value.role = origin_part_ == Part::kForward || origin_part_ == Part::kPrepare
                     ? Role::kActivation
                     : Role::kGradient;
    value.producer = id;
    node.outputs.push_back(add_value(std::move(value)));
  }
  graph_.nodes.push_back(std::move(node));
  return graph_.nodes.back().outputs;
}

ValueId GraphBuilder::add(std::string_view op, std::vector<ValueId> inputs, Attributes attributes) {
  return add_all(op, std::move(inputs), std::move(attributes)).front();
}

ValueId GraphBuilder::reshape(ValueId x, const Shape& shape) {
  if (this->shape(x) == shape) return x;
  return add("Reshape", {x}, {{"shape", shape.dims()}});
}

ValueId GraphBuilder::sum_to(ValueId x, const Shape& shape) {
  if (this->shape(x) == shape) return x;
  return add("SumTo", {x}, {{"shape", shape.dims()}});
}

// --- contexts of the operators' functions ---

GradientContext::GradientContext(GraphBuilder& builder, NodeId node,
                                 std::span<const ValueId> output_gradients,
                                 std::span<const bool> wanted)
    : builder_(builder),
      node_(node),
      output_gradients_(output_gradients.begin(), output_gradients.end()),
      wanted_(wanted.begin(), wanted.end()),
      input_gradients_(wanted.size()) {}

const Attributes& GradientContext::attributes() const { return builder_.graph()[node_].attributes; }
std::size_t GradientContext::input_count() const { return wanted_.size(); }
ValueId GradientContext::input(std::size_t index) const {
  const Node& node = builder_.graph()[node_];
  return index < node.inputs.size() ? node.inputs[index] : ValueId{};
}
ValueId GradientContext::output(std::size_t index) const {
  return builder_.graph()[node_].outputs[index];
}
const TensorType& GradientContext::input_type(std::size_t index) const {
  return builder_.type(input(index));
}
const TensorType& GradientContext::output_type(std::size_t index) const {
  return builder_.type(output(index));
}

ImportContext::ImportContext(GraphBuilder& builder, std::string_view op_type, std::int64_t opset,
                             const Attributes& attributes, std::vector<ValueId> inputs,
                             std::size_t output_count, const ImportMode& mode)
    : builder_(builder),
      op_type_(op_type),
      opset_(opset),
      attributes_(attributes),
      inputs_(std::move(inputs)),
      outputs_(output_count),
      mode_(mode) {}

bool ImportContext::has_input(std::size_t index) const {
  return index < inputs_.size() && static_cast<bool>(inputs_[index]);
}

ValueId ImportContext::input(std::size_t index) const {
  PT_CHECK(has_input(index), kModel, "{} needs input {}, which is absent", op_type_, index);
  return inputs_[index];
}

const TensorType& ImportContext::type(std::size_t index) const {
  return builder_.type(input(index));
}

HostTensor ImportContext::constant_or_empty(std::size_t index) const {
  if (!has_input(index)) return {};
  const Value& value = builder_.graph()[inputs_[index]];
  return value.role == Role::kConstant ? value.data : HostTensor();
}

HostTensor ImportContext::constant(std::size_t index, std::string_view what) const {
  HostTensor out = constant_or_empty(index);
  if (has_input(index)) {
    const Value& value = builder_.graph()[inputs_[index]];
    PT_CHECK(value.role != Role::kParameter, kModel,
             "the {} of {} must be known before training: freeze it with {} {}", what, op_type_,
             setting("freeze"), printable(value.name));
  }
  PT_CHECK(
      static_cast<bool>(out), kModel,
      "the {} of {} depends on data; it must be known before training (export with fixed sizes)",
      what, op_type_);
  return out;
}

std::int64_t ImportContext::scalar(std::size_t index, std::string_view what) const {
  const std::vector<std::int64_t> values = constant(index, what).to_int64s();
  PT_CHECK(values.size() == 1, kModel, "the {} of {} must be one number, got {}", what, op_type_,
           values.size());
  return values[0];
}

double ImportContext::real_scalar(std::size_t index, std::string_view what) const {
  const std::vector<double> values = constant(index, what).to_doubles();
  PT_CHECK(values.size() == 1, kModel, "the {} of {} must be one number, got {}", what, op_type_,
           values.size());
  return values[0];
}

void ImportContext::expect_outputs(std::size_t most) const {
  PT_CHECK(outputs_.size() <= most, kModel, "{} has at most {} outputs, not {}", op_type_, most,
           outputs_.size());
}

void ImportContext::set_output(std::size_t index, ValueId value) {
  if (index < outputs_.size()) outputs_[index] = value;
}

}  // namespace pipetrain
