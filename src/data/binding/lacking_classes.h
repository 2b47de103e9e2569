// Labels of classes that the model does not have: a mistake in the model or the data, never one in
// single samples, however few there are.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/rows/data_spec.h"
#include "data/rows/element.h"
#include "data/rows/raw_data.h"

namespace pipetrain {

/// Error (kData) if some of the labels that are out of range are classes: all that are words or
/// folders; of numbers those that continue the model's classes, and frequent ones. `bad`: the
/// labels out of range; `place`: the data in messages.
void refuse_lacking_classes(const std::optional<LabelSpec>& label, const RawColumn& raw,
                            const std::vector<BadElement>& bad, const std::string& place);

}  // namespace pipetrain
