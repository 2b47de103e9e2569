#include "passes/sequences.h"

#include <algorithm>

#include "base/error.h"
#include "base/read_budget.h"

namespace pipetrain {
namespace {

class SequenceStep {
 public:
  SequenceStep(const OnnxNode& node, const std::vector<ValueId>& inputs, ValueLists& lists,
               GraphBuilder& builder)
      : node_(node), inputs_(inputs), lists_(lists), builder_(builder) {}

  std::vector<ValueId> run() {
    const std::string& op = node_.op_type;
    if (op == "SequenceAt") return {sequence()[place(1, /*may_be_end=*/false)]};
    if (op == "SequenceLength") return {number(static_cast<std::int64_t>(sequence().size()))};
    if (op == "ConcatFromSequence") return {joined()};
    if (op == "OptionalHasElement")
      return {builder_.constant(HostTensor::scalar<bool>(has_element()))};
    if (op == "OptionalGetElement") return element();
    put(made(op));
    return {};
  }

 private:
  /// The list that the node makes.
  ValueList made(const std::string& op) {
    ValueList out;
    if (op == "Identity") return *list(0);
    if (op == "Optional") {
      if (!node_.has_input(0)) return {.is_sequence = false, .is_there = false, .values = {}};
      if (const ValueList* inner = list(0)) return *inner;
      return {.is_sequence = false, .is_there = true, .values = {tensor(0)}};
    }
    if (op == "SequenceConstruct") {
      for (std::size_t i = 0; i < node_.inputs.size(); ++i) out.values.push_back(tensor(i));
    } else if (op == "SequenceInsert") {
      out.values = sequence();
      const std::size_t at = node_.has_input(2) ? place(2, /*may_be_end=*/true) : out.values.size();
      out.values.insert(out.values.begin() + static_cast<std::ptrdiff_t>(at), tensor(1));
    } else if (op == "SequenceErase") {
      const std::size_t last = sequence().size() - 1;
      const std::size_t at = node_.has_input(1) ? place(1, /*may_be_end=*/false) : last;
      out.values = sequence();
      PT_CHECK(at < out.values.size(), kModel, "{}: its sequence is empty", node_.label());
      out.values.erase(out.values.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (op == "SplitToSequence") {
      out.values = split();
    }
    return out;  // SequenceEmpty
  }

  void put(ValueList out) {
    PT_CHECK(!node_.outputs.empty(), kModel, "{} has no output", node_.label());
    keep_list(lists_, node_.outputs[0], std::move(out));
  }

  const ValueList* list(std::size_t index) const {
    if (!node_.has_input(index)) return nullptr;
    const auto found = lists_.find(node_.inputs[index]);
    return found == lists_.end() ? nullptr : &found->second;
  }
  const std::vector<ValueId>& sequence() const {
    const ValueList* found = list(0);
    PT_CHECK(found && found->is_sequence, kModel, "{}: its first input is no sequence",
             node_.label());
    return found->values;
  }
  ValueId tensor(std::size_t index) const {
    PT_CHECK(index < inputs_.size() && inputs_[index], kModel, "{}: input {} is no tensor",
             node_.label(), index);
    return inputs_[index];
  }

  std::vector<std::int64_t> known(std::size_t index) const {
    const Value& found = builder_.graph()[tensor(index)];
    PT_CHECK(
        found.role == Role::kConstant && found.data, kModel,
        "{}: input {} depends on data; indices into sequences and lengths of their parts must be "
        "known before training (export with fixed sizes)",
        node_.label(), index);
    return found.data.to_int64s();
  }

  /// A place in the sequence; negative ones count from its end.
  std::size_t place(std::size_t index, bool may_be_end) const {
    const std::vector<std::int64_t> at = known(index);
    const auto count = static_cast<std::int64_t>(sequence().size());
    PT_CHECK(at.size() == 1 && at[0] >= -count && at[0] < count + (may_be_end ? 1 : 0), kModel,
             "{}: index {} is out of range for a sequence of length {}", node_.label(),
             at.empty() ? 0 : at[0], count);
    return static_cast<std::size_t>(at[0] < 0 ? at[0] + count : at[0]);
  }

  std::int64_t the_number(std::size_t index) const {
    const std::vector<std::int64_t> found = known(index);
    PT_CHECK(found.size() == 1, kModel, "{}: input {} must be one number, got {}", node_.label(),
             index, found.size());
    return found[0];
  }

  ValueId number(std::int64_t value) {
    return builder_.constant(HostTensor::scalar<std::int64_t>(value));
  }

  std::size_t axis_of(std::int64_t axis, std::size_t rank) const {
    const auto count = static_cast<std::int64_t>(rank);
    PT_CHECK(axis >= -count && axis < count, kModel, "{}: there is no axis {} of {}", node_.label(),
             axis, rank);
    return static_cast<std::size_t>(axis < 0 ? axis + count : axis);
  }

  bool has_element() const {
    if (const ValueList* found = list(0)) return found->is_there;
    return node_.has_input(0);
  }

  std::vector<ValueId> element() {
    const ValueList* found = list(0);
    if (!found) return {tensor(0)};
    PT_CHECK(found->is_there, kModel, "{}: the optional has no element", node_.label());
    if (!found->is_sequence) return found->values;
    put(*found);
    return {};
  }

  ValueId joined() {
    ReadBudget::charge(sizeof(ValueId) * sequence().size());
    std::vector<ValueId> values = sequence();
    PT_CHECK(!values.empty(), kModel, "{}: its sequence is empty", node_.label());
    const bool is_new = node_.int_attribute("new_axis", 0) != 0;
    const Shape shape = builder_.shape(values[0]);
    const std::size_t axis = axis_of(node_.int_attribute("axis"), shape.rank() + (is_new ? 1 : 0));
    if (is_new) {
      for (ValueId& value : values) {
        std::vector<std::int64_t> dims = builder_.shape(value).dims();
        PT_CHECK(dims.size() >= axis, kModel, "{}: its tensors differ in rank", node_.label());
        dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(axis), 1);
        value = builder_.reshape(value, Shape(std::move(dims)));
      }
    }
    if (values.size() == 1) return values[0];
    return builder_.add("Concat", std::move(values), {{"axis", static_cast<std::int64_t>(axis)}});
  }

  std::vector<ValueId> split() {
    const Shape shape = builder_.shape(tensor(0));
    const std::size_t axis = axis_of(node_.int_attribute("axis", 0), shape.rank());
    const std::int64_t extent = shape[axis];
    const bool is_given = node_.has_input(1);
    std::vector<std::int64_t> sizes;
    if (is_given && builder_.shape(tensor(1)).rank() > 0) {
      sizes = known(1);
    } else {
      const std::int64_t most = is_given ? the_number(1) : 1;
      PT_CHECK(most > 0, kModel, "{}: parts of {} elements", node_.label(), most);
      const std::int64_t parts = extent / most;
      PT_CHECK(parts < (std::int64_t{1} << 31), kModel, "{}: {} parts", node_.label(), parts);
      ReadBudget::charge(64 * static_cast<std::uint64_t>(parts));
      for (std::int64_t begin = 0; begin < extent; begin += most)
        sizes.push_back(std::min(most, extent - begin));
    }
    std::vector<ValueId> out;
    std::int64_t begin = 0;
    for (const std::int64_t size : sizes) {
      PT_CHECK(size >= 0 && size <= extent - begin, kModel, "{}: its parts are not {} together",
               node_.label(), extent);
      ValueId part = builder_.add("Slice", {tensor(0)},
                                  {{"starts", Ints{begin}},
                                   {"ends", Ints{begin + size}},
                                   {"axes", Ints{static_cast<std::int64_t>(axis)}},
                                   {"steps", Ints{1}}});
      begin += size;
      if (!is_given && node_.int_attribute("keepdims", 1) == 0) {
        std::vector<std::int64_t> dims = shape.dims();
        dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(axis));
        part = builder_.reshape(part, Shape(std::move(dims)));
      }
      out.push_back(part);
    }
    PT_CHECK(begin == extent, kModel, "{}: its parts are {} of {} elements", node_.label(), begin,
             extent);
    return out;
  }

  const OnnxNode& node_;
  const std::vector<ValueId>& inputs_;
  ValueLists& lists_;
  GraphBuilder& builder_;
};

}  // namespace

const std::set<std::string>& sequence_operators() {
  static const std::set<std::string> kOperators = {
      "ConcatFromSequence", "Optional",          "OptionalGetElement", "OptionalHasElement",
      "SequenceAt",         "SequenceConstruct", "SequenceEmpty",      "SequenceErase",
      "SequenceInsert",     "SequenceLength",    "SplitToSequence"};
  return kOperators;
}

bool is_sequence_operator(const OnnxNode& node) {
  // All of their names have one of these words; few others do, which is faster to see.
  const bool named =
      node.op_type.find("Sequence") != std::string::npos || node.op_type.starts_with("Optional");
  return named && node.domain.empty() && sequence_operators().contains(node.op_type);
}

void keep_list(ValueLists& lists, const std::string& name, ValueList list) {
  ReadBudget::charge(sizeof(ValueId) * list.values.size());
  lists[name] = std::move(list);
}

std::vector<ValueId> expand_sequence(const OnnxNode& node, const std::vector<ValueId>& inputs,
                                     ValueLists& lists, GraphBuilder& builder) {
  return SequenceStep(node, inputs, lists, builder).run();
}

}  // namespace pipetrain
