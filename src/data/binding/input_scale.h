// The scale of a float input: what its values are divided by, and an image's channels shifted and
// scaled by.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "data/binding/bind.h"
#include "data/images/image_options.h"
#include "data/rows/column_source.h"
#include "data/rows/image_column.h"
#include "data/rows/row_source.h"

namespace pipetrain {

/// The divisor of an input that `how` has from a training; none: not known. An input that it does
/// not name is not divided.
std::optional<double> divisor_in(const Normalization& how, const std::string& input);
/// Of an array. `of_training`: the training data's, for a validation split or other data;
/// `bad_rows` do not count.
double divisor_of(const Normalization& how, const RawColumn& raw, const ArraySource& source,
                  std::optional<double> of_training,
                  const std::map<std::size_t, std::string>& bad_rows);
/// Of rows that are decoded on the fly. Error (kUsage) where their largest value would be needed.
double divisor_of_rows(const Normalization& how, const RawColumn& raw,
                       std::optional<double> of_training);

/// Means and deviations for the channels of an image input called `name`. Error (kUsage) if there
/// are more or fewer of them than channels.
void set_channels(const Normalization& how, PixelScale& scale, const ImageShape& image,
                  const std::string& name);

/// ", divided by 255", for the note on an input.
std::string scale_text(const PixelScale& scale);

/// Whether all values of an input, as the data have them, lie in 0 … 1.
bool are_fractions(const ArraySource& source, const std::map<std::size_t, std::string>& bad_rows);
bool are_fractions(const RowSource& rows);
/// A sentence where fractions, of the real numbers of a column, are divided by 255 or more: they
/// may have been before. Else empty.
std::string warning_about_scale(const std::string& input, const RawColumn& raw, double divisor,
                                bool fractions);

}  // namespace pipetrain
