#include "data/binding/bind.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/setting.h"
#include "data/binding/allowed_values.h"
#include "data/binding/bind_tokens.h"
#include "data/binding/input_scale.h"
#include "data/binding/lacking_classes.h"
#include "data/binding/match_columns.h"
#include "data/rows/class_labels.h"
#include "data/rows/column_source.h"
#include "data/rows/element.h"
#include "data/rows/good_rows.h"
#include "data/rows/image_column.h"
#include "data/rows/readers.h"
#include "data/rows/row_source.h"

namespace pipetrain {

namespace {

// More than one in so many samples: not a mistake in single ones.
constexpr std::size_t kManyBadSamples = 10;

std::string quoted(const RawColumn& column) {
  return fmt::format("\"{}\" {} {}", printable(column.name), name_of(column.dtype()),
                     column.sample_shape().text());
}

class Binder {
 public:
  Binder(const RawSplit& split, const DataSpec& spec, const BindOptions& options,
         const BoundData* like)
      : split_(split), spec_(spec), options_(options), like_(like) {}

  BoundData bind() {
    out_.divisors.assign(spec_.inputs.size(), 1.0);
    match_ = match_columns(split_.columns, spec_, options_.bindings);
    for (std::size_t i = 0; i < spec_.inputs.size(); ++i) bind_input(i);
    if (spec_.label) bind_label(*spec_.label);
    for (const std::size_t unused : match_.unused)
      warn(fmt::format("array {} is not used", quoted(split_.columns[unused])));
    PT_CHECK(samples_ > 0, kData, "the data set has no samples");
    PT_CHECK(has_images_ || options_.image.augmentation.empty(), kUsage,
             "{} needs an image input, which the model does not have", setting("augment"));
    if (spec_.label && spec_.label->sample_shape.rank() >= 2)
      label_pixels_ = spec_.label->sample_shape;
    PT_CHECK(
        !options_.image.augmentation.moves_pixels() || !label_pixels_, kUsage,
        "{}: flip, vflip, crop and resized-crop would move the pixels of images, but not their "
        "labels {}; leave them out",
        setting("augment"), label_pixels_->text());
    PT_CHECK(has_images_ || options_.normalization.mean.empty(), kUsage,
             "{} per channel needs an image input, which the model does not have",
             setting("normalize"));
    auto dataset =
        std::make_shared<const ColumnsDataset>(samples_, std::move(columns_), std::move(sources_));
    out_.rows = samples_;
    out_.dataset = without_bad_rows(std::move(dataset));
    return std::move(out_);
  }

 private:
  void bind_input(std::size_t index) {
    const ModelInput& input = spec_.inputs[index];
    const Match& match = match_.inputs[index];
    if (match.filling) {
      fill(input, *match.filling);
      return;
    }
    const RawColumn& raw = split_.columns[match.column];
    agree_on_rows(raw);
    out_.takes_fields |= match.fields > 0;
    if (raw.source) {
      bind_rows(index, raw);
      return;
    }
    auto source = std::make_unique<ArraySource>();
    std::string how = fit(raw, match, input.sample_shape, "input", input.name, *source);
    check(raw, *source, allowed_in(input), "input", input.name);
    const bool is_label = is_label_input(index, match_, split_.columns, spec_);
    if (is_label && input.sample_shape.rank() >= 2) label_pixels_ = input.sample_shape;
    PixelScale scale;
    std::optional<ImageShape> image;
    if (is_float(input.dtype) && !is_label) {
      scale.divisor = source->divisor = out_.divisors[index] =
          divisor_of(options_.normalization, raw, *source, divisor_of_training(index), bad_rows_);
      if (scale.divisor < 1) check(raw, *source, allowed_in(input), "input", input.name);
      look_at_scale(input, raw, scale.divisor, are_fractions(*source, bad_rows_));
      image = image_shape_of(input.sample_shape);
      if (!image) image = image_shape_of(raw.sample_shape());
    }
    if (image && match.fields == 0) {
      has_images_ = true;
      set_channels(options_.normalization, scale, *image, input.name);
    }
    if (is_float(input.dtype)) how += scale_text(scale);
    const Column column{input.name, input.dtype, input.sample_shape};
    note_column("input", column, "from " + quoted(raw) + how);
    const bool plain = scale.mean.empty() && options_.image.augmentation.empty();
    if (!image || match.fields > 0 || plain) {
      add(column, std::move(source));
      return;
    }
    const bool pixels = raw.dtype() == DType::kUint8;
    add(column, image_column(*source, *image, options_.image, scale,
                             pixels ? static_cast<float>(255 / scale.divisor) : 0));
  }

  // Rows decoded on the fly.
  void bind_rows(std::size_t index, const RawColumn& raw) {
    const ModelInput& input = spec_.inputs[index];
    PixelScale scale;
    if (is_float(input.dtype)) {
      scale.divisor = out_.divisors[index] =
          divisor_of_rows(options_.normalization, raw, divisor_of_training(index));
      look_at_scale(input, raw, scale.divisor, are_fractions(*raw.source));
    }
    const bool images = raw.dtype() == DType::kUint8;
    if (images) {
      has_images_ = true;
      PT_CHECK(is_float(input.dtype) || options_.normalization.mean.empty(), kUsage,
               "{} per channel needs an input of real numbers, but \"{}\" is {}",
               setting("normalize"), printable(input.name), name_of(input.dtype));
      const auto image = image_shape_of(input.sample_shape, raw.sample_shape());
      if (image) set_channels(options_.normalization, scale, *image, input.name);
    }
    std::string how;
    auto source = match_.inputs[index].fields == 0
                      ? raw.source->bind(input.sample_shape, options_.image, scale, how)
                      : nullptr;
    PT_CHECK(source, kData, "{} \"{}\" of {} do not fit the input \"{}\" {}",
             images ? "images" : "rows", printable(raw.name), printable(raw.file),
             printable(input.name), input.sample_shape.text());
    const Allowed allowed = before_division(allowed_in(input), scale.divisor);
    skip_or_refuse(raw.source->find_bad_elements(allowed, raw.rows()), raw, "input", input.name);
    const Column column{input.name, input.dtype, input.sample_shape};
    note_column("input", column, "from " + quoted(raw) + how + scale_text(scale));
    add(column, std::move(source));
    if (options_.on_bad_sample == BadSample::kSkip) {
      look_for_bad_rows(raw);
    } else {
      raw.source->check(0);
    }
  }

  // All bad samples must be known before step 1 only if they are skipped.
  void look_for_bad_rows(const RawColumn& raw) {
    for (std::size_t row = 0; row < raw.rows(); ++row) {
      try {
        raw.source->check(row);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kData) throw;
        bad_rows_.emplace(row, error.message());
      }
    }
  }

  void look_at_scale(const ModelInput& input, const RawColumn& raw, double divisor,
                     bool fractions) {
    out_.has_large_values |= divisor == 1 && !fractions;
    std::string warning = warning_about_scale(input.name, raw, divisor, fractions);
    if (!warning.empty()) warn(std::move(warning));
  }

  std::optional<double> divisor_of_training(std::size_t index) const {
    if (!like_) return divisor_in(options_.normalization, spec_.inputs[index].name);
    const double divisor = like_->divisors[index];
    // Bytes become numbers from 0 to 1 as well.
    const bool has_fractions = options_.normalization.kind == Normalization::Kind::kAuto &&
                               divisor == 1 && !like_->has_large_values;
    return has_fractions ? std::nullopt : std::optional(divisor);
  }

  void fill(const ModelInput& input, Filling filling) {
    const Column column{input.name, input.dtype, input.sample_shape};
    check_filling(input, filling);
    note_column("input", column,
                fmt::format("filled with {}, as the data have none", name_of(filling)));
    out_.warnings.push_back(out_.notes.back());
    add(column, std::make_unique<FillingSource>(filling));
  }

  void bind_label(const LabelSpec& label) {
    if (label.shifted_input) {
      bind_shifted(label);
      return;
    }
    const Column column{label.name, label.dtype, label.sample_shape};
    auto source = std::make_unique<ArraySource>();
    if (!match_.label) {
      PT_CHECK(!has_undecoded_images() || is_float(label.dtype), kData,
               "{} has images, but no labels: put the images of each class into a folder with its "
               "name",
               place());
      PT_CHECK(!spec_.inputs.empty() && !match_.inputs[0].filling && is_float(label.dtype) &&
                   label.sample_shape == spec_.inputs[0].sample_shape,
               kData,
               "{} has no labels: its arrays are {} (call one \"y\" or \"labels\", or use {} "
               "{}=ARRAY)",
               place(), list_columns(split_.columns), setting("bind"), label.name);
      const auto* inputs = dynamic_cast<const ArraySource*>(sources_[0].get());
      PT_CHECK(inputs, kData,
               "{} has no labels, and images decoded on the fly cannot be their own labels; store "
               "them as an array: pipetrain data convert",
               place());
      *source = *inputs;
      check(split_.columns[match_.inputs[0].column], *source, allowed_in(label), "label", "");
      note_column("labels", column, "the input itself, as the data have none");
      add(column, std::move(source));
      return;
    }
    RawColumn raw = with_padding_ignored(split_.columns[*match_.label], label);
    agree_on_rows(raw);
    PT_CHECK(!raw.source, kData, "{} of {} cannot be labels", quoted(raw), printable(raw.file));
    std::string how;
    if (const HostTensor classes = classes_from_one_hot(raw, label)) {
      raw.values = classes;
      how = ", one-hot";
    }
    if (like_) follow_class_names(raw, like_->class_names);
    out_.class_names = raw.class_names;
    how += fit(raw, {*match_.label, 0, 0, {}}, label.sample_shape, "labels", label.name, *source);
    how += scale_like_input(*match_.label, label, *source);
    check(raw, *source, allowed_in(label), "label", "");
    if (label.classes >= 0) how += fmt::format(", classes 0..{}", label.classes - 1);
    if (!raw.class_names.empty())
      how += fmt::format(" ({})", printable(fmt::format("{}", fmt::join(raw.class_names, ", "))));
    note_column("labels", column, "from " + quoted(raw) + how);
    add(column, std::move(source));
  }

  bool has_undecoded_images() const {
    return std::ranges::any_of(split_.columns,
                               [](const RawColumn& column) { return column.source != nullptr; });
  }

  // A target that is also an input has its scale. Returns what was done, for the note.
  std::string scale_like_input(std::size_t column, const LabelSpec& label, ArraySource& source) {
    for (std::size_t i = 0; is_float(label.dtype) && i < match_.inputs.size(); ++i) {
      const Match& match = match_.inputs[i];
      if (match.filling || match.column != column || match.fields > 0) continue;
      const auto* input = dynamic_cast<const ArraySource*>(sources_[i].get());
      PT_CHECK(input, kData,
               "images that are normalized by channel or augmented cannot be their own labels; put "
               "the labels into an array: pipetrain data convert");
      source.divisor = input->divisor;
      PixelScale scale;
      scale.divisor = input->divisor;
      return ", as the input" + scale_text(scale);
    }
    return {};
  }

  // ---- causal language models on arrays ----

  void bind_shifted(const LabelSpec& label) {
    PT_CHECK(!spec_.inputs.empty() && !match_.inputs[tokens_].filling, kModel,
             "next-token labels need an input of tokens");
    const auto* array = dynamic_cast<const ArraySource*>(sources_[tokens_].get());
    PT_CHECK(array, kData, "\"{}\" of {} are not tokens",
             printable(split_.columns[match_.inputs[tokens_].column].name), place());
    const ArraySource& tokens = *array;
    const RawColumn& raw = split_.columns[match_.inputs[tokens_].column];
    const Column column{label.name, label.dtype, label.sample_shape};
    PT_CHECK(label.sample_shape.count() == static_cast<std::int64_t>(tokens.count), kData,
             "next-token labels have shape {}, but the loss expects {}",
             spec_.inputs[tokens_].sample_shape.text(), label.sample_shape.text());
    if (bind_given_next_tokens(label, tokens)) return;
    check(raw, tokens, allowed_in(label), "label", "");
    add_shifted(label, tokens, fmt::format("the next tokens of \"{}\"", printable(raw.name)),
                /*spare_token=*/raw.sample_shape().count() == label.sample_shape.count() + 1);
  }

  // The data may have labels: already shifted (x, y pairs), or equal to the inputs with some
  // ignored. Those of another length are not used.
  bool bind_given_next_tokens(const LabelSpec& label, const ArraySource& tokens) {
    if (!match_.label) return false;
    const RawColumn& raw = split_.columns[*match_.label];
    const std::int64_t wide = split_.columns[match_.inputs[tokens_].column].sample_shape().count();
    const bool spare_token = wide == label.sample_shape.count() + 1;
    const std::int64_t width = raw.sample_shape().count();
    if (width != label.sample_shape.count() && !(spare_token && width == wide)) {
      match_.unused.push_back(*match_.label);
      return false;
    }
    agree_on_rows(raw);
    ArraySource given;
    fit(raw, {*match_.label, 0, 0, {}}, label.sample_shape, "labels", label.name, given);
    const bool same = are_tokens(raw, tokens, label.ignore_index);
    const bool last_is_given = same && width == wide && spare_token;
    if (last_is_given) given.first = 1;
    check(raw, given, allowed_in(label), "label", "");
    if (same) {
      add_shifted(label, given, fmt::format("{}, shifted by one token", quoted(raw)),
                  last_is_given);
      return true;
    }
    const Column column{label.name, label.dtype, label.sample_shape};
    note_column("labels", column, fmt::format("from {}, used as the next tokens", quoted(raw)));
    add(column, std::make_unique<ArraySource>(given));
    return true;
  }

  // With a spare token, rows are one longer than the input, and the last label is known too.
  void add_shifted(const LabelSpec& label, const ArraySource& tokens, std::string from,
                   bool spare_token) {
    auto shifted = std::make_unique<ShiftedSource>();
    const auto cut = [&](const ArraySource& source) {
      ArraySource out = source;
      if (spare_token) out.first = 1;
      return out;
    };
    shifted->tokens = cut(tokens);
    shifted->shift = spare_token ? 0 : 1;
    shifted->ignore_index = label.ignore_index;
    for (std::size_t i = 0; i < spec_.inputs.size(); ++i) {
      if (i == tokens_) continue;
      const bool masks = known_filling(spec_.inputs[i]) == Filling::kOnes;
      const auto* mask = dynamic_cast<const ArraySource*>(sources_[i].get());
      if (!masks || !mask || mask->values.type().count() != tokens.values.type().count()) continue;
      shifted->mask = cut(*mask);
      from += fmt::format(", ignored where \"{}\" is 0", printable(spec_.inputs[i].name));
      break;
    }
    // A model without a mask computes padding, too, but does not learn to predict it.
    const auto given = shifted->mask ? std::nullopt : mask_beside(split_, tokens);
    if (given) {
      shifted->mask = tokens;
      shifted->mask->values = split_.columns[*given].values;
      shifted->mask = cut(*shifted->mask);
      std::erase(match_.unused, *given);
      from += fmt::format(", ignored where \"{}\" is 0", split_.columns[*given].name);
    }
    const Column column{label.name, label.dtype, label.sample_shape};
    note_column("labels", column, std::move(from));
    add(column, std::move(shifted));
  }

  // ---- what they share ----

  // Fits the part of a row to the shape that is wanted; returns what was done, for the note.
  std::string fit(const RawColumn& raw, const Match& match, const Shape& want, const char* kind,
                  const std::string& name, ArraySource& source) const {
    const Shape have = raw.sample_shape();
    source.values = raw.values;
    source.first = match.first_field;
    source.count = static_cast<std::size_t>(want.count());
    if (match.fields > 0) {
      return match.fields == 1 ? fmt::format(", column {}", match.first_field + 1)
                               : fmt::format(", columns {} to {}", match.first_field + 1,
                                             match.first_field + match.fields);
    }
    const bool spare_token = spec_.label && spec_.label->shifted_input && have.rank() == 1 &&
                             have.count() == want.count() + 1;
    if (have == want || spare_token) return "";
    const bool of_labels = kind == std::string_view("labels");
    const std::string hint = of_labels ? hint_at_labels(raw, *spec_.label, want, has_images_) : "";
    PT_CHECK(
        have.count() == want.count(), kData,
        "array {} of {} has {} value{} per sample; {} \"{}\" expects {} = {}{}", quoted(raw),
        printable(raw.file), have.count(), have.count() == 1 ? "" : "s", kind, printable(name),
        want.text(), want.count(),
        have.count() + 1 == want.count() && !raw.lines.empty() && !split_.is_encoded
            ? fmt::format("; the last column was used as labels: {} none if there are no labels",
                          setting("label-column"))
            : hint_at_width(raw) + hint_at_tokenizer(split_) +
                  hint_at_longer_rows(split_, have, want) + hint);
    // (H, W, C) for (C, H, W), or the other way round.
    if (have.rank() == 3 && want.rank() == 3) {
      const bool last_to_first = have[2] == want[0] && have[0] == want[1] && have[1] == want[2];
      const bool first_to_last = have[0] == want[2] && have[1] == want[0] && have[2] == want[1];
      if (last_to_first || first_to_last) {
        const std::int64_t columns = last_to_first ? have[2] : have[1] * have[2];
        source.transposed_columns = static_cast<std::size_t>(columns);
        return last_to_first ? ", channels moved to the front" : ", channels moved to the back";
      }
    }
    PT_CHECK(can_be_reshaped(have, want), kData,
             "array {} of {} has samples of shape {}, but {} \"{}\" expects {}{}", quoted(raw),
             printable(raw.file), have.text(), kind, printable(name), want.text(),
             hint.empty() ? hint_at_axes(have, want) : hint);
    return ", reshaped";
  }

  void check(const RawColumn& raw, const ArraySource& source, const Allowed& allowed,
             const char* kind, const std::string& name) {
    const std::vector<BadElement> bad = find_bad_elements(source.values, source.first, source.count,
                                                          before_division(allowed, source.divisor),
                                                          std::numeric_limits<std::size_t>::max());
    if (kind == std::string_view("label")) refuse_lacking_classes(spec_.label, raw, bad, place());
    skip_or_refuse(bad, raw, kind, name);
  }

  void skip_or_refuse(const std::vector<BadElement>& bad, const RawColumn& raw, const char* kind,
                      const std::string& name) {
    const bool skip = options_.on_bad_sample == BadSample::kSkip;
    // What many samples share is no mistake in single ones.
    const bool many = bad.size() > 1 && bad.size() * kManyBadSamples > raw.rows();
    for (const BadElement& element : bad) {
      const std::string what =
          name.empty()
              ? fmt::format("{} {} {}", kind, element.value, element.reason)
              : fmt::format("value {} of {} \"{}\" {}{}", element.value, kind, printable(name),
                            element.reason.starts_with("out") ? "" : "is ", element.reason);
      const std::string message = fmt::format("{}, {}", what, raw.locate(element.row));
      PT_CHECK(skip || !many, kData, "{}; {} of {} samples are like that", message, bad.size(),
               raw.rows());
      PT_CHECK(skip, kData, "{} ({} bad-sample=skip skips such samples)", message,
               setting("on-error"));
      bad_rows_.emplace(element.row, message);
    }
  }

  void agree_on_rows(const RawColumn& raw) {
    const std::string name = fmt::format("\"{}\" of {}", printable(raw.name), printable(raw.file));
    if (first_.empty()) {
      first_ = name;
      samples_ = raw.rows();
      PT_CHECK(samples_ > 0, kData, "{} has no samples", name);
    }
    PT_CHECK(raw.rows() == samples_, kData,
             "arrays disagree on the number of samples: {} has {}, {} has {}", first_, samples_,
             name, raw.rows());
  }

  void add(Column column, std::unique_ptr<ColumnSource> source) {
    columns_.push_back(std::move(column));
    sources_.push_back(std::move(source));
  }

  void note_column(const char* kind, const Column& column, const std::string& from) {
    out_.notes.push_back(fmt::format("{} {}: {}", kind, column.text(), from));
  }

  void warn(std::string note) {
    out_.warnings.push_back(note);
    out_.notes.push_back(std::move(note));
  }

  std::string place() const {
    return split_.columns.empty() ? "the data" : printable(split_.columns[0].file);
  }

  std::shared_ptr<const Dataset> without_bad_rows(std::shared_ptr<const Dataset> whole) {
    if (bad_rows_.empty()) return whole;
    PT_CHECK(bad_rows_.size() < samples_, kData, "every sample is bad: {}",
             bad_rows_.begin()->second);
    std::vector<std::size_t> good;
    for (std::size_t row = 0; row < samples_; ++row) {
      if (!bad_rows_.contains(row)) good.push_back(row);
    }
    warn(text_of_skipped(bad_rows_));
    return std::make_shared<GoodRows>(std::move(whole), std::move(good));
  }

  const RawSplit& split_;
  const DataSpec& spec_;
  const BindOptions& options_;
  const BoundData* like_;
  const std::size_t tokens_ = token_input_in(spec_).value_or(0);  // that next tokens are those of
  Matches match_;
  BoundData out_;
  std::size_t samples_ = 0;
  std::string first_;  // the array that said how many samples there are
  std::vector<Column> columns_;
  std::vector<std::unique_ptr<ColumnSource>> sources_;
  std::map<std::size_t, std::string> bad_rows_;
  bool has_images_ = false;
  std::optional<Shape> label_pixels_;  // the shape of labels that pixels may have
};

}  // namespace

BoundData bind_data(const RawSplit& split, const DataSpec& spec, const BindOptions& options,
                    const BoundData* like) {
  const auto bind = [&] {
    const auto shards = split.shards ? split.shards : token_stream_in(split, spec);
    if (!shards) return Binder(split, spec, options, like).bind();
    BoundData out;
    out.divisors.assign(spec.inputs.size(), 1.0);
    out.dataset = bind_token_stream(shards, spec, out.notes);
    out.rows = out.dataset->size();
    if (std::string warning = warning_about_bytes(shards, spec); !warning.empty()) {
      out.notes.push_back(warning);
      out.warnings.push_back(std::move(warning));
    }
    return out;
  };
  return read_and_check(bind, check_mapped_files);
}

}  // namespace pipetrain
