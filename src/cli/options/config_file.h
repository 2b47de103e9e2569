// Configuration files: options by their names without the leading dashes, a subset of TOML.
//
//   # how we train                   a comment
//   lr = 1e-3                        numbers, true, false and words, bare or quoted
//   optimizer = "sgd:momentum=0.9"   momentum = 0.9 on a line of its own means the same
//   freeze = ["conv*", "bn*"]        options that may be given several times
//   [eval]                           from here on: for this command only, over the lines above
//   batch_size = 256                 _ for - as on the command line
#pragma once

#include <string>
#include <vector>

#include "cli/options/options.h"

namespace pipetrain {

/// The settings of a file ("-": standard input) for a command; options of other commands are
/// skipped. Error (kUsage) naming file, line and the nearest key for what is unknown.
std::vector<Assignment> read_config(const std::string& path, const std::string& command,
                                    const std::vector<OptionSpec>& specs);
/// The same from a text; `name` is what errors call it.
std::vector<Assignment> parse_config(const std::string& text, const std::string& name,
                                     const std::string& command,
                                     const std::vector<OptionSpec>& specs);

/// A configuration file of these options. `all`: options that were not set are listed as comments
/// with their values.
std::string config_text(const Options& options, const std::string& command, bool all);

}  // namespace pipetrain
