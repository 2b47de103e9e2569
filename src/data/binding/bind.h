// Binding: which array of the file feeds which input of the model, in which type, shape and scale,
// and the checks that make a bad label an error before step 1 and not a crash in step 900.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/images/image_options.h"
#include "data/rows/data_spec.h"
#include "data/rows/dataset.h"
#include "data/rows/raw_data.h"

namespace pipetrain {

/// How values are scaled for a float input.
struct Normalization {
  enum class Kind {
    kAuto,  // uint8 is divided by 255, other types are unchanged
    kNone,
    kMax,     // divided by the largest magnitude in the training data
    kDivide,  // divided by `divisor`
  };
  Kind kind = Kind::kAuto;
  double divisor = 1;
  /// With kMax: what a training has divided each input by, where inputs differ; empty: not known.
  std::map<std::string, double> of_training = {};
  /// Then (value - mean) / deviation, for each channel of an image; one value is for all of them.
  std::vector<double> mean = {}, deviation = {};

  /// "auto", "none", "max", a number, "imagenet", or "M,…/S,…": means and deviations of the values
  /// that auto gives. Of a training also "max:" and of_training as JSON, and "M,…/S,…:" and what
  /// values are divided by before. Error kUsage.
  static Normalization parse(std::string_view text);
  /// What parse() takes for it.
  std::string text() const;
};

enum class BadSample { kError, kSkip };

struct BindOptions {
  Normalization normalization;
  BadSample on_bad_sample = BadSample::kError;
  ImageOptions image;
  /// Pairs (model input or label, array in the file).
  std::vector<std::pair<std::string, std::string>> bindings;
};

struct BoundData {
  std::shared_ptr<const Dataset> dataset;
  std::size_t rows = 0;  // of the source, bad ones among them
  /// One sentence per column: where it comes from, how it is converted.
  std::vector<std::string> notes;
  std::vector<std::string> warnings;  // those notes that are logged as warnings
  /// One per model input: what its values are divided by.
  std::vector<double> divisors;
  bool has_large_values = false;  // inputs that are not divided have values outside of 0 … 1
  bool takes_fields = false;      // of a table, some columns by their names
  std::vector<std::string> class_names;
};

/// Binds one split. `like`, the bound training data, gives a validation split the same scale and
/// the same class numbers. Errors: kData, naming file and item; kUsage for a wrong binding.
BoundData bind_data(const RawSplit& split, const DataSpec& spec, const BindOptions& options,
                    const BoundData* like = nullptr);

}  // namespace pipetrain
