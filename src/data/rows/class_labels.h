// Labels that come in another form than class numbers.
#pragma once

#include <string>
#include <vector>

#include "data/rows/data_spec.h"
#include "data/rows/raw_data.h"

namespace pipetrain {

/// Class numbers in place of rows like (0, 0, 1, 0); an empty tensor if these are no such rows, or
/// if the label wants more than one class a sample.
HostTensor classes_from_one_hot(const RawColumn& raw, const LabelSpec& label);

/// Renumbers labels that were words by the training data's words, of which a validation file may
/// know fewer. Error kData for a word that the training data lack.
void follow_class_names(RawColumn& raw, const std::vector<std::string>& known);

}  // namespace pipetrain
