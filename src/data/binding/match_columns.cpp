#include "data/binding/match_columns.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/setting.h"
#include "data/rows/element.h"
#include "data/rows/readers.h"

namespace pipetrain {

namespace {

/// Whether a column is an input of its name only: it is made for that, or says which tokens are
/// special, which is neither a mask of padding nor a label.
bool needs_its_name(const RawColumn& column) {
  return column.is_optional || column.name == "special_tokens_mask";
}

class Matcher {
 public:
  Matcher(std::span<const RawColumn> columns, const DataSpec& spec)
      : columns_(columns),
        spec_(spec),
        taken_(columns.size()),
        bound_(columns.size()),
        found_(spec.inputs.size()) {
    out_.inputs.resize(spec.inputs.size());
    // By name only, or as the filling of an input that is called otherwise.
    for (std::size_t i = 0; i < columns.size(); ++i) taken_[i] = needs_its_name(columns[i]);
  }

  void by_word(std::span<const std::pair<std::string, std::string>> bindings) {
    for (const auto& [target, array] : bindings) {
      const std::optional<std::size_t> column = find(array);
      PT_CHECK(column, kUsage, "{} {}={}: the data have no array \"{}\", they have {}",
               setting("bind"), printable(target), printable(array), printable(array),
               list_columns(columns_));
      if (is_label(target)) {
        out_.label = column;
        taken_[*column] = bound_[*column] = true;
        continue;
      }
      const auto input = std::ranges::find(spec_.inputs, target, &ModelInput::name);
      PT_CHECK(input != spec_.inputs.end(), kUsage,
               "{} {}={}: the model has no input \"{}\"; its inputs are {}", setting("bind"),
               printable(target), printable(array), printable(target), input_names());
      take(static_cast<std::size_t>(input - spec_.inputs.begin()), *column);
      bound_[*column] = true;
    }
  }

  void by_name() {
    for (std::size_t i = 0; i < found_.size(); ++i) {
      const std::optional<std::size_t> column = find(spec_.inputs[i].name);
      // Labels that --bind makes of an input leave it the input.
      if (!found_[i] && column &&
          (!taken_[*column] || bound_[*column] || needs_its_name(columns_[*column])))
        take(i, *column);
    }
    if (spec_.label && !out_.label) {
      if (const auto column = find(spec_.label->name)) take_label(*column);
    }
    for (std::size_t column = 0; column < columns_.size(); ++column) {
      if (columns_[column].role != ColumnRole::kLabel) continue;
      if (spec_.label && !out_.label) take_label(column);
      // A graph that computes its loss itself has an input for the labels.
      for (std::size_t i = 0; i < found_.size() && !spec_.label; ++i) {
        const bool wants = role_of_name(spec_.inputs[i].name) == ColumnRole::kLabel;
        if (wants && !found_[i] && !taken_[column]) take(i, column);
      }
    }
    if (spec_.label && !out_.label && !spec_.label->output.empty()) {
      if (const auto column = find(spec_.label->output)) take_label(*column);
    }
  }

  // A table's columns, by the names in its header or dealt out in order.
  void by_field() {
    const std::vector<std::size_t> open = open_inputs();
    std::vector<std::size_t> free = free_columns();
    // Labels that nobody asks for are none of the inputs.
    if (!spec_.label) std::erase_if(free, [&](std::size_t column) { return has_labels(column); });
    if (open.size() < 2 || free.size() != 1) return;
    const RawColumn& table = columns_[free[0]];
    const std::int64_t width = table.sample_shape().count();
    const std::vector<std::string>& header = table.field_names;
    std::vector<std::size_t> fields;
    for (const std::size_t i : open) {
      const auto at = std::ranges::find(header, spec_.inputs[i].name);
      if (at != header.end() && spec_.inputs[i].sample_shape.count() == 1) {
        fields.push_back(static_cast<std::size_t>(at - header.begin()));
      }
    }
    std::int64_t wanted = 0;
    for (const std::size_t i : open) wanted += spec_.inputs[i].sample_shape.count();
    if (fields.size() != open.size() && wanted != width) return;
    std::size_t next = 0;
    for (std::size_t k = 0; k < open.size(); ++k) {
      const auto count = static_cast<std::size_t>(spec_.inputs[open[k]].sample_shape.count());
      const bool named = fields.size() == open.size();
      out_.inputs[open[k]] = {free[0], named ? fields[k] : next, count, {}};
      found_[open[k]] = true;
      next += count;
    }
    taken_[free[0]] = true;
  }

  void by_position() {
    std::vector<std::size_t> free = free_columns();
    // Labels last: a graph that computes its loss itself may take them.
    std::stable_partition(free.begin(), free.end(),
                          [&](std::size_t column) { return !has_labels(column); });
    std::size_t next = 0;
    for (const std::size_t i : open_inputs()) {
      if (next < free.size()) take(i, free[next++]);
    }
    // The only array of an autoencoder is both.
    const std::vector<std::size_t> open = open_inputs();
    if (open.size() == 1 && out_.label && bound_[*out_.label]) take(open[0], *out_.label);
    // Masks and the like are filled, unless there is an array for each of them too.
    free = free_columns();
    if (spec_.is_prediction)
      std::erase_if(free, [&](std::size_t column) { return has_labels(column); });
    const bool wants_label = spec_.label && !out_.label && !spec_.label->shifted_input;
    if (wants_label && !free.empty()) free.pop_back();
    take_for_fillings(free);
    free = free_columns();
    if (wants_label && !free.empty()) take_label(free.back());
  }

  void by_filling() {
    for (std::size_t i = 0; i < found_.size(); ++i) {
      const ModelInput& input = spec_.inputs[i];
      if (found_[i]) continue;
      out_.inputs[i].filling = known_filling(input);
      if (const auto made = made_for(input, out_.inputs[i].filling)) {
        out_.inputs[i].filling.reset();
        take(i, *made);
        continue;
      }
      PT_CHECK(out_.inputs[i].filling, kData,
               "the data have no array for the input \"{}\" {} {}: the arrays are {} (choose one "
               "with {} {}=ARRAY)",
               printable(input.name), name_of(input.dtype), input.sample_shape.text(),
               list_columns(columns_), setting("bind"), printable(input.name));
    }
  }

  Matches result() {
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (!columns_[i].is_optional && !is_used(i)) out_.unused.push_back(i);
    }
    return std::move(out_);
  }

 private:
  std::optional<std::size_t> find(const std::string& name) const {
    const auto at = std::ranges::find(columns_, name, &RawColumn::name);
    if (at == columns_.end()) return std::nullopt;
    return static_cast<std::size_t>(at - columns_.begin());
  }
  // A column that the reader has made in place of a filling. An encoder's is not its decoder's.
  std::optional<std::size_t> made_for(const ModelInput& input,
                                      std::optional<Filling> filling) const {
    const std::string name = filling == Filling::kOnes    ? "attention_mask"
                             : filling == Filling::kZeros ? "token_type_ids"
                                                          : "";
    const auto of_decoder = [](const ModelInput& each) {
      return each.name.find("decoder") != std::string::npos;
    };
    const bool has_encoder = std::ranges::any_of(spec_.inputs, [&](const ModelInput& each) {
      return !known_filling(each) && !of_decoder(each);
    });
    const bool is_other = has_encoder && of_decoder(input);
    const std::optional<std::size_t> column = find(is_other ? "decoder_" + name : name);
    return column && columns_[*column].is_optional ? column : std::nullopt;
  }
  void take_for_fillings(const std::vector<std::size_t>& columns) {
    std::vector<std::size_t> missing;
    for (std::size_t i = 0; i < found_.size(); ++i) {
      if (!found_[i]) missing.push_back(i);
    }
    bool fit = columns.size() == missing.size();
    for (std::size_t k = 0; k < missing.size() && fit; ++k)
      fit = may_replace_filling(columns[k], spec_.inputs[missing[k]]);
    for (std::size_t k = 0; k < missing.size() && fit; ++k) take(missing[k], columns[k]);
  }
  // Whether an array that is called otherwise may be a mask or the like, and is not just left over.
  bool may_replace_filling(std::size_t column, const ModelInput& input) const {
    const std::optional<Filling> filling = known_filling(input);
    if (!filling) return true;
    const RawColumn& raw = columns_[column];
    const std::int64_t have = raw.sample_shape().count(), want = input.sample_shape.count();
    const bool spare_token = spec_.label && spec_.label->shifted_input && have == want + 1;
    if (have != want && !spare_token) return false;
    ModelInput namesake;
    namesake.name = raw.name;
    const std::optional<Filling> own = known_filling(namesake);
    if (own && own != filling) return false;
    // The mask of a graph that computes its loss itself may be its labels.
    const bool may_be_labels = has_labels(column) || (!spec_.label && !spec_.is_prediction);
    if (filling != Filling::kOnes || is_float(input.dtype) || may_be_labels || raw.source ||
        raw.rows() == 0)
      return true;
    return find_bad_elements(raw.values, 0, static_cast<std::size_t>(have), Allowed::whole(0, 1), 1)
        .empty();
  }
  bool is_label(const std::string& target) const {
    if (!spec_.label || std::ranges::count(spec_.inputs, target, &ModelInput::name)) return false;
    return target == spec_.label->name || role_of_name(target) == ColumnRole::kLabel;
  }
  bool has_labels(std::size_t column) const { return columns_[column].role == ColumnRole::kLabel; }
  void take(std::size_t input, std::size_t column) {
    out_.inputs[input].column = column;
    found_[input] = true;
    taken_[column] = true;
  }
  void take_label(std::size_t column) {
    if (taken_[column]) return;
    out_.label = column;
    taken_[column] = true;
  }
  std::vector<std::size_t> free_columns() const {
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (!taken_[i]) out.push_back(i);
    }
    return out;
  }
  bool is_used(std::size_t column) const {
    return out_.label == column || std::ranges::any_of(out_.inputs, [&](const Match& match) {
             return !match.filling && match.column == column;
           });
  }
  // Inputs that need an array and have none.
  std::vector<std::size_t> open_inputs() const {
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < found_.size(); ++i) {
      if (!found_[i] && !known_filling(spec_.inputs[i])) out.push_back(i);
    }
    return out;
  }
  std::string input_names() const {
    std::vector<std::string> names;
    for (const ModelInput& input : spec_.inputs) names.push_back(printable(input.name));
    return fmt::format("{}", fmt::join(names, ", "));
  }

  std::span<const RawColumn> columns_;
  const DataSpec& spec_;
  std::vector<bool> taken_;  // per array
  std::vector<bool> bound_;  // per array, by --bind
  std::vector<bool> found_;  // per input
  Matches out_;
};

}  // namespace

Matches match_columns(std::span<const RawColumn> columns, const DataSpec& spec,
                      std::span<const std::pair<std::string, std::string>> bindings) {
  Matcher matcher(columns, spec);
  matcher.by_word(bindings);
  matcher.by_name();
  matcher.by_field();
  matcher.by_position();
  matcher.by_filling();
  return matcher.result();
}

bool is_label_input(std::size_t input, const Matches& matches, std::span<const RawColumn> columns,
                    const DataSpec& spec) {
  if (spec.label || spec.is_prediction) return false;
  const Match& match = matches.inputs[input];
  const bool is_shared = std::ranges::any_of(matches.inputs, [&](const Match& other) {
    return &other != &match && !other.filling && other.fields == 0 && other.column == match.column;
  });
  return !is_shared && (columns[match.column].role == ColumnRole::kLabel ||
                        role_of_name(spec.inputs[input].name) == ColumnRole::kLabel);
}

std::string list_columns(std::span<const RawColumn> columns) {
  std::vector<std::string> parts;
  for (const RawColumn& column : columns) {
    parts.push_back(fmt::format("\"{}\" {} {}", printable(column.name), name_of(column.dtype()),
                                column.sample_shape().text()));
  }
  return parts.empty() ? "none" : fmt::format("{}", fmt::join(parts, ", "));
}

bool can_be_reshaped(const Shape& have, const Shape& want) {
  std::vector<std::int64_t> a = have.dims(), b = want.dims();
  for (auto* dims : {&a, &b}) std::erase(*dims, 1);
  return a == b || a.size() != b.size();
}

std::string hint_at_axes(const Shape& have, const Shape& want) {
  std::vector<std::int64_t> a = have.dims(), b = want.dims();
  for (auto* dims : {&a, &b}) {
    std::erase(*dims, 1);
    std::ranges::sort(*dims);
  }
  return a == b ? ": the axes are in another order; transpose the array, or the model's input"
                : ": the axes have other lengths; bring the samples to that shape";
}

std::string hint_at_labels(const RawColumn& raw, const LabelSpec& label, const Shape& want,
                           bool of_images) {
  const Shape have = raw.sample_shape();
  if (have.rank() == 2 && want.rank() == 2 && of_images)
    return fmt::format("; bring images and masks to {} x {}", want[1], want[0]);
  if (is_float(label.dtype) && !label.probability && have.count() == 1)
    return fmt::format(
        "; the model has several outputs for one number; if the labels are classes, write whole "
        "numbers and give {} cross-entropy",
        setting("loss"));
  if (label.classes > 0 && !label.shifted_input && want.rank() == 1 && have == Shape{label.classes})
    return "; without a LogSoftmax over another axis, the classes of an output of three axes are "
           "the last one: if yours is (N, C, L), add a Transpose to (N, L, C)";
  return {};
}

std::string hint_at_width(const RawColumn& raw) {
  const auto width = static_cast<std::size_t>(raw.sample_shape().count());
  if (raw.field_names.size() != width) return {};
  return fmt::format(
      "; a model of this table takes {} numbers: pipetrain data inspect, with the same options, "
      "lists them",
      width);
}

}  // namespace pipetrain
