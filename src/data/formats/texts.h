// The tokenizer of texts.
#pragma once

#include "data/rows/text_options.h"
#include "text/tokenizer.h"

namespace pipetrain {

/// Opens the tokenizer's file. Error (kData) if the model was trained with another one; (kUsage) if
/// none is given.
TokenizerFile open_tokenizer_of(const TextOptions& options);

}  // namespace pipetrain
