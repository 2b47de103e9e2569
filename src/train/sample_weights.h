// Weights for drawing some samples more often than others.
#pragma once

#include <string>
#include <vector>

#include "data/rows/dataset.h"

namespace pipetrain {

/// A weight for each sample of the training data. `source`: "balanced", by which every class comes
/// equally often (`classes`: how many there are, 0: the task has none), or a file with a number a
/// line, one for each of the `rows` that the training data is part of. `ignored`: a number that is
/// no class, be it one of these. Error (kUsage) where the task has no classes, kData for a file
/// that does not fit.
std::vector<double> sample_weights(const std::string& source, const Dataset& data, std::size_t rows,
                                   std::int64_t classes, std::int64_t ignored);

/// Weights of classes that are inverse to how often they occur, with mean 1 over the samples; 0 for
/// those that do not. Error (kUsage) where the task has no classes.
std::vector<double> balanced_class_weights(const Dataset& data, std::int64_t classes,
                                           std::int64_t ignored);

}  // namespace pipetrain
