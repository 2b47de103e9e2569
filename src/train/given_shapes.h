// Sizes of a model's free dimensions: what the command line gives must fit the file, and samples
// of texts must not be longer than the model takes.
#pragma once

#include <functional>

#include "base/error.h"
#include "onnx_io/model.h"
#include "passes/lower.h"
#include "train/config.h"

namespace pipetrain {

/// Error (kUsage) for a size of an unknown dimension or input, or one that the file contradicts.
void check_given_shapes(const ModelConfig& config, const OnnxModel& model);

/// After `error`, from building the model with these options: Error (kModel) that says so if it
/// `builds` for samples of fewer tokens.
void refuse_too_many_tokens(const OnnxModel& model, const LowerOptions& options, const Error& error,
                            const std::function<bool(const LowerOptions&)>& builds);

}  // namespace pipetrain
