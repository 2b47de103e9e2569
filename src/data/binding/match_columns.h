// Which array feeds which input: by --bind, by name, then by position.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/rows/data_spec.h"
#include "data/rows/raw_data.h"
#include "data/rows/synthetic.h"

namespace pipetrain {

struct Match {
  std::size_t column = 0;
  /// If fields > 0: only the columns [first_field, first_field + fields) of a table.
  std::size_t first_field = 0;
  std::size_t fields = 0;
  /// No array: filled in.
  std::optional<Filling> filling;
};

struct Matches {
  std::vector<Match> inputs;         // one per input of the model
  std::optional<std::size_t> label;  // empty if no array can be the labels
  std::vector<std::size_t> unused;
};

/// `bindings` are pairs (input or label, array). Errors: kData if an input stays empty, kUsage for
/// a binding that names nothing.
Matches match_columns(std::span<const RawColumn> columns, const DataSpec& spec,
                      std::span<const std::pair<std::string, std::string>> bindings);

/// Whether an input, to which a column is matched, is the labels of a loss that the model computes
/// itself. The array of another input is none.
bool is_label_input(std::size_t input, const Matches& matches, std::span<const RawColumn> columns,
                    const DataSpec& spec);

/// "x" float32 (28, 28), "y" uint8 ()
std::string list_columns(std::span<const RawColumn> columns);

/// Whether samples of as many values keep their meaning: axes may be merged or split, but not be
/// as many with other extents, those of 1 aside.
bool can_be_reshaped(const Shape& have, const Shape& want);
/// What to do where they cannot, for errors.
std::string hint_at_axes(const Shape& have, const Shape& want);

/// What a model of this table would take, for errors; empty: it is no table.
std::string hint_at_width(const RawColumn& raw);

/// How labels could fit that have another size than the model's outputs, `want`; empty: no idea.
std::string hint_at_labels(const RawColumn& raw, const LabelSpec& label, const Shape& want,
                           bool of_images);

}  // namespace pipetrain
