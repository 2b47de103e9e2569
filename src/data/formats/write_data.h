// Data sets written to files that the readers here, and others, read.
#pragma once

#include <string>

#include "data/images/image_options.h"
#include "data/rows/raw_data.h"

namespace pipetrain {

struct WriteDataOptions {
  /// Height and width of images; 0: those of the first one.
  std::size_t image = 0;
  std::size_t channels = 0;  // 0: those of the first one
  ImageOptions how;
};

/// By the name's ending: .npz (arrays; the validation part as x_test, …), .csv (one number or one
/// row of numbers per sample; only the training part), .bin (llm.c's token format). Images become
/// uint8 (samples, channels, height, width). Errors: kUsage for another ending or for data that the
/// format does not hold, kData, kResource. Returns what was written, for people.
std::string write_data(const RawData& data, const std::string& path,
                       const WriteDataOptions& options);

}  // namespace pipetrain
