#include "passes/control_flow.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/error.h"

namespace pipetrain {
namespace {

// Limits the nodes that unrolling adds.
constexpr std::size_t kMostNodes = 200'000;

class Expansion {
 public:
  Expansion(const OnnxNode& node, const std::vector<TensorOrList>& inputs, GraphBuilder& builder,
            const AddSubgraph& add)
      : node_(node), inputs_(inputs), builder_(builder), add_(add) {}

  std::vector<TensorOrList> branch() {
    const std::optional<bool> condition = flag(input(0));
    PT_CHECK(condition.has_value(), kModel,
             "which branch of {} runs depends on data; it must be known before training (export "
             "with fixed sizes, or write the choice with Where)",
             node_.label());
    return run(read_subgraph(node_, *condition ? "then_branch" : "else_branch"), {});
  }

  // M, condition, states… -> body(round, condition, states…) -> condition, states…, scans…
  std::vector<TensorOrList> loop() {
    const OnnxSubgraph body = read_subgraph(node_, "body");
    const std::size_t states = inputs_.size() < 2 ? 0 : inputs_.size() - 2;
    PT_CHECK(body.inputs.size() == states + 2 && body.outputs.size() > states, kModel,
             "{}: its body has {} inputs and {} outputs for {} values that are carried",
             node_.label(), body.inputs.size(), body.outputs.size(), states);
    std::int64_t rounds = std::numeric_limits<std::int64_t>::max();
    if (input(0)) {
      const std::optional<std::int64_t> known = number(input(0));
      PT_CHECK(known.has_value(), kModel,
               "how often {} runs depends on data; it must be known before training, to unroll it "
               "(export with fixed sizes)",
               node_.label());
      rounds = *known;
    }
    // With M alone the standard ignores the body's condition. ONNX Runtime obeys it, and so do we.
    ValueId condition = input(1);
    std::vector<TensorOrList> carried(inputs_.end() - static_cast<std::ptrdiff_t>(states),
                                      inputs_.end());
    std::vector<std::vector<ValueId>> scans(body.outputs.size() - 1 - states);
    for (std::int64_t round = 0; round < rounds && goes_on(condition); ++round) {
      std::vector<TensorOrList> arguments = {
          builder_.constant(HostTensor::scalar<std::int64_t>(round)),
          builder_.constant(HostTensor::scalar<bool>(true))};
      arguments.insert(arguments.end(), carried.begin(), carried.end());
      const std::vector<TensorOrList> results = run(body, arguments);
      condition = tensor(results[0]);
      std::copy_n(results.begin() + 1, states, carried.begin());
      for (std::size_t i = 0; i < scans.size(); ++i)
        scans[i].push_back(tensor(results[1 + states + i]));
    }
    for (std::size_t i = 0; i < scans.size(); ++i) {
      const bool wanted = node_.has_output(states + i);
      carried.emplace_back(wanted ? stacked(std::move(scans[i]), 0) : ValueId{});
    }
    return carried;
  }

  // states…, sequences… -> body(states…, elements…) -> states…, elements…
  std::vector<TensorOrList> scan() {
    PT_CHECK(node_.opset >= 9, kModel, "{}: Scan is read from opset 9 on", node_.label());
    const OnnxSubgraph body = read_subgraph(node_, "body");
    const auto sequences = static_cast<std::size_t>(node_.int_attribute("num_scan_inputs"));
    PT_CHECK(sequences >= 1 && sequences <= inputs_.size() &&
                 body.inputs.size() == inputs_.size() &&
                 body.outputs.size() >= inputs_.size() - sequences,
             kModel, "{}: its body does not fit {} inputs of which {} are scanned", node_.label(),
             inputs_.size(), sequences);
    const std::size_t states = inputs_.size() - sequences;
    for (const TensorOrList& value : inputs_) {
      PT_CHECK(static_cast<bool>(value), kModel, "{}: one of its inputs is missing", node_.label());
    }
    const std::size_t results = body.outputs.size() - states;
    const auto list = [&](const char* name, std::size_t count) {
      std::vector<std::int64_t> out =
          node_.ints_attribute(name, std::vector<std::int64_t>(count, 0));
      PT_CHECK(out.size() == count, kModel, "{}: {} has {} entries, not {}", node_.label(), name,
               out.size(), count);
      return out;
    };
    const auto axes = list("scan_input_axes", sequences);
    const auto directions = list("scan_input_directions", sequences);
    const auto output_axes = list("scan_output_axes", results);
    const auto output_directions = list("scan_output_directions", results);
    std::vector<TensorOrList> carried(inputs_.begin(),
                                      inputs_.begin() + static_cast<std::ptrdiff_t>(states));
    std::vector<std::vector<ValueId>> elements(results);
    const std::int64_t length = extent(tensor(inputs_[states]), axes[0]);
    for (std::int64_t step = 0; step < length; ++step) {
      std::vector<TensorOrList> arguments = carried;
      for (std::size_t i = 0; i < sequences; ++i) {
        const ValueId sequence = tensor(inputs_[states + i]);
        PT_CHECK(extent(sequence, axes[i]) == length, kModel, "{}: its sequences differ in length",
                 node_.label());
        arguments.emplace_back(
            element(sequence, axes[i], directions[i] != 0 ? length - 1 - step : step));
      }
      const std::vector<TensorOrList> out = run(body, arguments);
      std::copy_n(out.begin(), states, carried.begin());
      for (std::size_t i = 0; i < results; ++i) elements[i].push_back(tensor(out[states + i]));
    }
    for (std::size_t i = 0; i < results; ++i) {
      if (output_directions[i] != 0) std::reverse(elements[i].begin(), elements[i].end());
      const bool wanted = node_.has_output(states + i);
      carried.emplace_back(wanted ? stacked(std::move(elements[i]), output_axes[i]) : ValueId{});
    }
    return carried;
  }

 private:
  ValueId input(std::size_t index) const {
    return index < inputs_.size() && inputs_[index] ? tensor(inputs_[index]) : ValueId{};
  }

  ValueId tensor(const TensorOrList& value) const {
    PT_CHECK(!value.list, kModel, "{}: a sequence or optional where a tensor is required",
             node_.label());
    return value.tensor;
  }

  std::vector<TensorOrList> run(const OnnxSubgraph& body,
                                const std::vector<TensorOrList>& arguments) {
    PT_CHECK(builder_.graph().nodes.size() < kMostNodes, kModel,
             "unrolling {} gives more than {} nodes; use an operator such as LSTM, or a shorter "
             "sequence",
             node_.label(), kMostNodes);
    for (const TensorOrList& argument : arguments) {
      PT_CHECK(static_cast<bool>(argument), kModel, "{}: one of its inputs is missing",
               node_.label());
    }
    std::vector<TensorOrList> results = add_(body, arguments);
    for (const TensorOrList& result : results) {
      PT_CHECK(static_cast<bool>(result), kModel, "{}: a result of its sub-graph has no name",
               node_.label());
    }
    return results;
  }

  HostTensor known(ValueId value) const {
    const Value& found = builder_.graph()[value];
    return found.role == Role::kConstant && found.type.count() == 1 ? found.data : HostTensor();
  }
  std::optional<bool> flag(ValueId value) const {
    const HostTensor data = value ? known(value) : HostTensor();
    if (!data) return {};
    return data.to_doubles()[0] != 0;
  }
  std::optional<std::int64_t> number(ValueId value) const {
    const HostTensor data = known(value);
    if (!data) return {};
    return data.to_int64s()[0];
  }

  bool goes_on(ValueId condition) const {
    if (!condition) return true;
    const std::optional<bool> known = flag(condition);
    PT_CHECK(
        known.has_value(), kModel,
        "when {} ends depends on data; it must be known before training, to unroll it (give it "
        "a fixed trip count)",
        node_.label());
    return *known;
  }

  std::size_t resolved(std::int64_t axis, std::size_t rank) const {
    const auto count = static_cast<std::int64_t>(rank);
    PT_CHECK(axis >= -count && axis < count, kModel, "{}: there is no axis {} of {}", node_.label(),
             axis, rank);
    return static_cast<std::size_t>(axis < 0 ? axis + count : axis);
  }

  std::int64_t extent(ValueId value, std::int64_t axis) const {
    const Shape& shape = builder_.shape(value);
    return shape[resolved(axis, shape.rank())];
  }

  /// The slice of `value` at `index` of an axis, without the axis.
  ValueId element(ValueId value, std::int64_t axis, std::int64_t index) {
    const Shape shape = builder_.shape(value);
    const std::size_t at = resolved(axis, shape.rank());
    const ValueId one = builder_.add("Slice", {value},
                                     {{"starts", Ints{index}},
                                      {"ends", Ints{index + 1}},
                                      {"axes", Ints{static_cast<std::int64_t>(at)}},
                                      {"steps", Ints{1}}});
    std::vector<std::int64_t> dims = shape.dims();
    dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(at));
    return builder_.reshape(one, Shape(std::move(dims)));
  }

  /// Values of one shape along a new axis.
  ValueId stacked(std::vector<ValueId> values, std::int64_t axis) {
    PT_CHECK(!values.empty(), kModel, "{} never runs, so the shape of its result is unknown",
             node_.label());
    const Shape shape = builder_.shape(values[0]);
    const std::size_t at = resolved(axis, shape.rank() + 1);
    std::vector<std::int64_t> dims = shape.dims();
    dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(at), 1);
    for (ValueId& value : values) value = builder_.reshape(value, Shape(dims));
    if (values.size() == 1) return values[0];
    return builder_.add("Concat", std::move(values), {{"axis", static_cast<std::int64_t>(at)}});
  }

  const OnnxNode& node_;
  const std::vector<TensorOrList>& inputs_;
  GraphBuilder& builder_;
  const AddSubgraph& add_;
};

}  // namespace

std::vector<TensorOrList> expand_control_flow(const OnnxNode& node,
                                              const std::vector<TensorOrList>& inputs,
                                              GraphBuilder& builder, const AddSubgraph& add) {
  Expansion expansion(node, inputs, builder, add);
  if (node.op_type == "If") return expansion.branch();
  return node.op_type == "Loop" ? expansion.loop() : expansion.scan();
}

}  // namespace pipetrain
