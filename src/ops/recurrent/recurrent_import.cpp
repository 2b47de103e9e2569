// The imports of LSTM, GRU and RNN: every direction becomes a product of the input with its
// weights over all steps, and a recurrence.
#include <algorithm>

#include "base/error.h"
#include "ops/recurrent/recurrent.h"

namespace pipetrain::recurrent {
namespace {

struct Form {
  std::string_view op;
  std::int64_t gates;
  std::vector<std::string_view> activations;  // of one direction, by default
};

/// Rows [first, last) of axis 0.
ValueId rows(GraphBuilder& builder, ValueId x, std::int64_t first, std::int64_t last) {
  if (first == 0 && last == builder.shape(x)[0]) return x;
  return builder.add(
      "Slice", {x},
      {{"starts", Ints{first}}, {"ends", Ints{last}}, {"axes", Ints{0}}, {"steps", Ints{1}}});
}

bool is_zero(const HostTensor& tensor) {
  if (!tensor) return false;
  const std::vector<double> values = tensor.to_doubles();
  return std::ranges::all_of(values, [](double value) { return value == 0; });
}

std::vector<std::string> names_in(const std::string& list) {
  std::vector<std::string> out;
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    out.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

class Import {
 public:
  Import(ImportContext& context, Form form)
      : context_(context), builder_(context.builder()), form_(std::move(form)) {
    const Attributes& attributes = context.attributes();
    batch_first_ = attributes.flag("layout");
    const std::string direction = attributes.text("direction", "forward");
    PT_CHECK(direction == "forward" || direction == "reverse" || direction == "bidirectional",
             kModel, "{} has direction \"{}\"", context.op_type(), printable(direction));
    PT_CHECK(context.type(0).shape.rank() == 3, kModel, "{} input must have 3 axes, got {}",
             context.op_type(), context.type(0).text());
    directions_ = direction == "bidirectional" ? 2 : 1;
    reverse_ = direction == "reverse";
    check_weights();
    read_activations();
  }

  void run() {
    x_ = to_steps(context_.input(0), {1, 0, 2});
    steps_ = builder_.shape(x_)[0];
    samples_ = builder_.shape(x_)[1];
    read_lengths();
    std::vector<std::vector<ValueId>> results;
    for (std::int64_t d = 0; d < directions_; ++d) results.push_back(direction(d));
    // Y: (T, directions, N, H), last states: (directions, N, H); with layout 1 the batch is first.
    const bool lstm = form_.op == "Lstm";
    for (std::size_t i = 0; i < context_.output_count() && i < (lstm ? 3U : 2U); ++i) {
      std::vector<ValueId> parts;
      for (const std::vector<ValueId>& result : results) {
        parts.push_back(i == 0 ? builder_.reshape(result[0], {steps_, 1, samples_, hidden_})
                               : builder_.reshape(result[i], {1, samples_, hidden_}));
      }
      ValueId y = parts[0];
      if (parts.size() > 1) {
        y = builder_.add("Concat", parts, {{"axis", std::int64_t{i == 0 ? 1 : 0}}});
      }
      context_.set_output(i, from_steps(y, i == 0 ? Ints{2, 0, 1, 3} : Ints{1, 0, 2}));
    }
  }

 private:
  void check_weights() {
    const Shape w = context_.type(1).shape;
    const Shape r = context_.type(2).shape;
    PT_CHECK(w.rank() == 3 && r.rank() == 3 && r[2] > 0, kModel,
             "the weights of {} must have 3 axes, got {} and {}", context_.op_type(), w.text(),
             r.text());
    hidden_ = r[2];
    const std::int64_t rows = form_.gates * hidden_;
    const std::int64_t asked = context_.attributes().integer("hidden_size", hidden_);
    PT_CHECK(asked == hidden_ && r == (Shape{directions_, rows, hidden_}) &&
                 w == (Shape{directions_, rows, context_.type(0).shape[2]}),
             kModel,
             "the weights {} and {} of {} do not fit hidden_size {}, {} direction(s) and input {}",
             w.text(), r.text(), context_.op_type(), asked, directions_, context_.type(0).text());
    if (context_.has_input(3)) {
      PT_CHECK(context_.type(3).shape == (Shape{directions_, 2 * rows}), kModel,
               "the bias of {} must be ({}, {}), got {}", context_.op_type(), directions_, 2 * rows,
               context_.type(3).text());
    }
  }

  /// alpha and beta are consumed in order by the activations that have one.
  void read_activations() {
    const Attributes& attributes = context_.attributes();
    std::vector<std::string> names = names_in(attributes.text("activations", ""));
    const std::size_t count = form_.activations.size();
    if (names.empty()) {
      for (std::int64_t d = 0; d < directions_; ++d) {
        names.insert(names.end(), form_.activations.begin(), form_.activations.end());
      }
    }
    PT_CHECK(names.size() == count * static_cast<std::size_t>(directions_), kModel,
             "{} needs {} activations, got {}", context_.op_type(),
             count * static_cast<std::size_t>(directions_), names.size());
    const Reals alpha = attributes.reals("activation_alpha", {});
    const Reals beta = attributes.reals("activation_beta", {});
    std::size_t next_alpha = 0, next_beta = 0;
    for (std::size_t i = 0; i < names.size(); ++i) {
      Activation activation = activation_named(names[i]);
      if (has_alpha(activation.kind) && next_alpha < alpha.size()) {
        activation.alpha = alpha[next_alpha++];
      }
      if (has_beta(activation.kind) && next_beta < beta.size()) {
        activation.beta = beta[next_beta++];
      }
      activation_names_.push_back(names[i]);
      alpha_.push_back(activation.alpha);
      beta_.push_back(activation.beta);
    }
  }

  void read_lengths() {
    if (!context_.has_input(4)) return;
    const HostTensor known = context_.constant_or_empty(4);
    if (known) {
      const std::vector<std::int64_t> values = known.to_int64s();
      if (std::ranges::all_of(values, [&](std::int64_t length) { return length >= steps_; })) {
        return;
      }
    }
    lengths_ = builder_.add("Cast", {context_.input(4)},
                            {{"to", static_cast<std::int64_t>(DType::kInt32)}});
  }

  ValueId to_steps(ValueId x, const Ints& perm) {
    return batch_first_ ? builder_.add("Transpose", {x}, {{"perm", perm}}) : x;
  }
  ValueId from_steps(ValueId x, const Ints& perm) { return to_steps(x, perm); }

  /// The part of an input of shape (directions, …) that belongs to direction d.
  ValueId part(std::size_t input, std::int64_t d) {
    const Shape shape = context_.type(input).shape;
    const ValueId one = rows(builder_, context_.input(input), d, d + 1);
    std::vector<std::int64_t> dims(shape.begin() + 1, shape.end());
    return builder_.reshape(one, Shape(std::move(dims)));
  }

  /// The initial state (N, H) of direction d; absent when it is zero.
  ValueId initial(std::size_t input, std::int64_t d) {
    if (!context_.has_input(input) || is_zero(context_.constant_or_empty(input))) return {};
    const Shape expected = batch_first_ ? Shape{samples_, directions_, hidden_}
                                        : Shape{directions_, samples_, hidden_};
    PT_CHECK(context_.type(input).shape == expected, kModel,
             "the initial state of {} must be {}, got {}", context_.op_type(), expected.text(),
             context_.type(input).text());
    const ValueId all = to_steps(context_.input(input), {1, 0, 2});
    return builder_.reshape(rows(builder_, all, d, d + 1), {samples_, hidden_});
  }

  /// The biases of the input and of the state. Only a Gru with linear_before_reset needs a part of
  /// the second alone; all else is summed into the first.
  std::pair<ValueId, ValueId> biases(std::int64_t d) {
    if (!context_.has_input(3)) return {};
    const std::int64_t count = form_.gates * hidden_;
    const ValueId both = part(3, d);
    const ValueId input = rows(builder_, both, 0, count);
    const ValueId state = rows(builder_, both, count, 2 * count);
    if (!context_.attributes().flag("linear_before_reset") || form_.op != "Gru") {
      return {builder_.add("Add", {input, state}), {}};
    }
    const ValueId gates = builder_.add(
        "Add", {rows(builder_, input, 0, 2 * hidden_), rows(builder_, state, 0, 2 * hidden_)});
    return {builder_.add("Concat", {gates, rows(builder_, input, 2 * hidden_, count)},
                         {{"axis", std::int64_t{0}}}),
            rows(builder_, state, 2 * hidden_, count)};
  }

  Attributes attributes_of(std::int64_t d) const {
    const std::size_t count = form_.activations.size();
    const std::size_t first = static_cast<std::size_t>(d) * count;
    std::string names;
    for (std::size_t i = first; i < first + count; ++i) {
      names += (names.empty() ? "" : ",") + activation_names_[i];
    }
    const auto some = [&](const Reals& all) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
      return Reals(begin, begin + static_cast<std::ptrdiff_t>(count));
    };
    Attributes out = {{"reverse", std::int64_t{reverse_ || d == 1}},
                      {"activations", names},
                      {"alpha", some(alpha_)},
                      {"beta", some(beta_)}};
    const Attributes& given = context_.attributes();
    if (given.has("clip")) out.set("clip", given.real("clip", 0));
    if (form_.op == "Gru") {
      out.set("linear_before_reset", std::int64_t{given.flag("linear_before_reset")});
    }
    if (form_.op == "Lstm") out.set("input_forget", std::int64_t{given.flag("input_forget")});
    return out;
  }

  std::vector<ValueId> direction(std::int64_t d) {
    const auto [bias, hidden_bias] = biases(d);
    std::vector<ValueId> product = {x_, part(1, d)};
    if (bias) product.push_back(bias);
    const ValueId gates = builder_.add(
        "MatMul", std::move(product), {{"trans_a", std::int64_t{0}}, {"trans_b", std::int64_t{1}}});
    std::vector<ValueId> inputs = {gates, part(2, d)};
    if (form_.op == "Gru") inputs.push_back(hidden_bias);
    inputs.push_back(initial(5, d));
    if (form_.op == "Lstm") {
      inputs.push_back(initial(6, d));
      inputs.push_back(context_.has_input(7) ? part(7, d) : ValueId{});
    }
    inputs.push_back(lengths_);
    return builder_.add_all(form_.op, std::move(inputs), attributes_of(d));
  }

  ImportContext& context_;
  GraphBuilder& builder_;
  Form form_;
  bool batch_first_ = false;
  bool reverse_ = false;
  std::int64_t directions_ = 1;
  std::int64_t hidden_ = 0;
  std::int64_t steps_ = 0;
  std::int64_t samples_ = 0;
  ValueId x_;  // (T, N, I)
  ValueId lengths_;
  std::vector<std::string> activation_names_;
  Reals alpha_, beta_;
};

constexpr ImportRule kRecurrentImports[] = {
    {"GRU",
     [](ImportContext& context) {
       Import(context, {"Gru", 3, {"Sigmoid", "Tanh"}}).run();
     }},
    {"LSTM",
     [](ImportContext& context) {
       Import(context, {"Lstm", 4, {"Sigmoid", "Tanh", "Tanh"}}).run();
     }},
    {"RNN",
     [](ImportContext& context) {
       Import(context, {"Rnn", 1, {"Tanh"}}).run();
     }},
};

}  // namespace

std::span<const ImportRule> imports() { return kRecurrentImports; }

}  // namespace pipetrain::recurrent
