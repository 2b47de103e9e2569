// Einsum: operands are folded from the left, two at a time. For each pair the labels fall into four
// groups, so that the pair is one batched matrix product:
//
//   batch (in both, needed later)   left (only a)   right (only b)   summed (in both, not needed)
//   a → (batch…, left, summed)      b → (batch…, summed, right)      y: (batch…, left, right)
#include "ops/matmul/einsum.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <string>

#include "base/error.h"
#include "graph/builder.h"

namespace pipetrain {
namespace {

using Labels = std::string;  // one character for each axis

struct Operand {
  ValueId value;
  Labels labels;
};

bool contains(const Labels& labels, char label) { return labels.find(label) != Labels::npos; }

template <class Condition>
Labels only(const Labels& labels, Condition condition) {
  Labels out;
  std::copy_if(labels.begin(), labels.end(), std::back_inserter(out), condition);
  return out;
}

class Einsum {
 public:
  explicit Einsum(ImportContext& context) : context_(context), builder_(context.builder()) {}

  ValueId run() {
    parse();
    Operand result = operands_[0];
    for (std::size_t i = 1; i < operands_.size(); ++i) {
      Labels needed = output_;
      for (std::size_t later = i + 1; later < operands_.size(); ++later) {
        needed += operands_[later].labels;
      }
      result = contract(result, operands_[i], needed);
    }
    return arranged(summed_to(result, output_), output_).value;
  }

 private:
  [[noreturn]] void refuse(std::string_view why) const {
    PT_FAIL(kModel, "Einsum \"{}\": {}", printable(equation_), why);
  }

  void parse() {
    equation_ = context_.attributes().text("equation", "");
    std::string text = equation_;
    text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
    const std::size_t arrow = text.find("->");
    std::string terms = text.substr(0, arrow);
    const auto commas = static_cast<std::size_t>(std::ranges::count(terms, ','));
    if (commas + 1 < context_.input_count())
      refuse("the equation has fewer operands than the node");
    if (commas + 1 > context_.input_count()) refuse("the equation has more operands than the node");
    for (std::size_t i = 0; i < context_.input_count(); ++i) {
      const std::size_t comma = std::min(terms.find(','), terms.size());
      operands_.push_back(operand(terms.substr(0, comma), context_.input(i)));
      terms.erase(0, comma + 1);
    }
    if (arrow == std::string::npos) {
      output_ = implicit_output();
      return;
    }
    output_ = expanded(text.substr(arrow + 2), ellipsis_rank_);
    for (const char label : output_) {
      if (std::count(output_.begin(), output_.end(), label) != 1 || !extents_.count(label)) {
        refuse("a label of the result is repeated or unknown");
      }
    }
  }

  /// Labels with "..." written out as `rank` labels of its own, the last ones of a fixed alphabet.
  Labels expanded(const std::string& term, std::size_t rank) const {
    const std::size_t dots = term.find("...");
    if (dots == std::string::npos) return term;
    constexpr std::string_view kEllipsis = "01234567";
    if (rank > kEllipsis.size()) refuse("the ellipsis covers too many axes");
    const auto axes = kEllipsis.substr(kEllipsis.size() - rank);
    return term.substr(0, dots) + std::string(axes) + term.substr(dots + 3);
  }

  /// Two axes with one label become one: the diagonal of their plane.
  void take_diagonals(ValueId& value, Labels& labels) {
    for (std::size_t first = 0; first < labels.size(); ++first) {
      std::size_t second;
      while ((second = labels.find(labels[first], first + 1)) != Labels::npos) {
        const Shape shape = builder_.shape(value);
        if (shape[first] != shape[second]) refuse("a label names axes of different sizes");
        std::vector<std::int64_t> perm{static_cast<std::int64_t>(first),
                                       static_cast<std::int64_t>(second)};
        std::vector<std::int64_t> dims{shape[first] * shape[first]};
        Labels rest(1, labels[first]);
        for (std::size_t axis = 0; axis < labels.size(); ++axis) {
          if (axis == first || axis == second) continue;
          perm.push_back(static_cast<std::int64_t>(axis));
          dims.push_back(shape[axis]);
          rest += labels[axis];
        }
        HostTensor rows(TensorType{DType::kInt64, Shape{shape[first]}});
        for (std::int64_t i = 0; i < shape[first]; ++i) {
          rows.span<std::int64_t>()[static_cast<std::size_t>(i)] = i * (shape[first] + 1);
        }
        const ValueId plane = builder_.reshape(builder_.add("Transpose", {value}, {{"perm", perm}}),
                                               Shape(std::move(dims)));
        value =
            builder_.add("Gather", {plane, builder_.constant(rows)}, {{"axis", std::int64_t{0}}});
        repeated_ += labels[first];
        labels = rest;
        first = 0;
      }
    }
  }

  Operand operand(const std::string& term, ValueId value) {
    Shape shape = builder_.shape(value);
    std::size_t rank = 0;
    if (term.find("...") != std::string::npos) {
      if (term.size() - 3 > shape.rank()) refuse("an operand has fewer axes than labels");
      rank = shape.rank() - (term.size() - 3);
      ellipsis_rank_ = std::max(ellipsis_rank_, rank);
    }
    Labels labels = expanded(term, rank);
    if (labels.size() != shape.rank()) refuse("an operand's rank is not its number of labels");
    take_diagonals(value, labels);
    shape = builder_.shape(value);
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const char label = labels[i];
      if (!std::isalnum(static_cast<unsigned char>(label))) refuse("a label is not a letter");
      std::int64_t& extent = extents_.emplace(label, 1).first->second;
      if (extent != 1 && shape[i] != 1 && extent != shape[i]) {
        refuse("a label names axes of different sizes");
      }
      extent = std::max(extent, shape[i]);
    }
    return {value, labels};
  }

  /// Without "->": the ellipsis, then every label that occurs once, in alphabetical order.
  Labels implicit_output() const {
    Labels all = repeated_;
    for (const Operand& operand : operands_) all += operand.labels;
    Labels out;
    for (const auto& [label, extent] : extents_) {
      const bool ellipsis = std::isdigit(static_cast<unsigned char>(label)) != 0;
      if (ellipsis || std::count(all.begin(), all.end(), label) == 1) out += label;
    }
    return out;
  }

  std::int64_t extent_of(const Operand& operand, char label) const {
    return builder_.type(operand.value).shape[operand.labels.find(label)];
  }

  Shape shape_of(const Operand& operand, const Labels& labels) const {
    std::vector<std::int64_t> dims;
    for (const char label : labels) dims.push_back(extent_of(operand, label));
    return Shape(std::move(dims));
  }

  /// The operand without the labels that are not in `needed`.
  Operand summed_to(const Operand& operand, const Labels& needed) {
    Ints axes;
    for (std::size_t i = 0; i < operand.labels.size(); ++i) {
      if (!contains(needed, operand.labels[i])) axes.push_back(static_cast<std::int64_t>(i));
    }
    if (axes.empty()) return operand;
    const ValueId sum =
        builder_.add("ReduceSum", {operand.value}, {{"axes", axes}, {"keepdims", std::int64_t{0}}});
    return {sum, only(operand.labels, [&](char label) { return contains(needed, label); })};
  }

  /// The operand with its axes in the order of `labels`.
  Operand arranged(const Operand& operand, const Labels& labels) {
    if (operand.labels == labels) return operand;
    Ints perm;
    for (const char label : labels) {
      perm.push_back(static_cast<std::int64_t>(operand.labels.find(label)));
    }
    return {builder_.add("Transpose", {operand.value}, {{"perm", perm}}), labels};
  }

  /// (batch…, rows, columns) of an operand, the groups of labels flattened.
  ValueId matrices(const Operand& operand, const Labels& batch, const Labels& rows,
                   const Labels& columns) {
    const Operand ordered = arranged(operand, batch + rows + columns);
    std::vector<std::int64_t> dims = shape_of(ordered, batch).dims();
    dims.push_back(shape_of(ordered, rows).count());
    dims.push_back(shape_of(ordered, columns).count());
    return builder_.reshape(ordered.value, Shape(std::move(dims)));
  }

  Operand contract(const Operand& left, const Operand& right, const Labels& needed) {
    const Operand a = summed_to(left, right.labels + needed);
    const Operand b = summed_to(right, left.labels + needed);
    const auto in_b = [&](char label) { return contains(b.labels, label); };
    const auto in_a = [&](char label) { return contains(a.labels, label); };
    // A label of extent 1 in one operand is broadcast, which only a batch axis can be.
    const auto differs = [&](char label) { return extent_of(a, label) != extent_of(b, label); };
    const Labels shared = only(a.labels, in_b);
    const Labels batch = only(shared, [&](char l) { return contains(needed, l) || differs(l); });
    const Labels sum = only(shared, [&](char l) { return !contains(batch, l); });
    const Labels rows = only(a.labels, [&](char l) { return !in_b(l); });
    const Labels columns = only(b.labels, [&](char l) { return !in_a(l); });
    const ValueId product =
        builder_.add("MatMul", {matrices(a, batch, rows, sum), matrices(b, batch, columns, sum)},
                     {{"trans_a", std::int64_t{0}}, {"trans_b", std::int64_t{1}}});
    std::vector<std::int64_t> dims = builder_.shape(product).dims();
    dims.resize(batch.size());
    for (const char label : rows) dims.push_back(extent_of(a, label));
    for (const char label : columns) dims.push_back(extent_of(b, label));
    const Operand out{builder_.reshape(product, Shape(std::move(dims))), batch + rows + columns};
    return summed_to(out, needed);
  }

  ImportContext& context_;
  GraphBuilder& builder_;
  std::string equation_;
  std::vector<Operand> operands_;
  Labels output_;
  Labels repeated_;  // labels that an operand had more than once
  std::map<char, std::int64_t> extents_;
  std::size_t ellipsis_rank_ = 0;
};

}  // namespace

void import_einsum(ImportContext& context) { context.set_output(0, Einsum(context).run()); }

}  // namespace pipetrain
