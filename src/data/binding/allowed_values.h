// The values that a model's inputs and its loss take.
#pragma once

#include "data/rows/data_spec.h"
#include "data/rows/element.h"
#include "data/rows/synthetic.h"

namespace pipetrain {

/// What the type holds; of an embedding's input, the numbers of its rows.
Allowed allowed_in(const ModelInput& input);
/// Class numbers and what the loss ignores, probabilities, or what the type holds.
Allowed allowed_in(const LabelSpec& label);
/// What becomes `allowed` values once numbers are floats and divided.
Allowed before_division(Allowed allowed, double divisor);
/// Error (kModel) if an input is filled with more positions than the model has.
void check_filling(const ModelInput& input, Filling filling);

}  // namespace pipetrain
