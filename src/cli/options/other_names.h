// Options by the names that other tools have for them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pipetrain {

/// What an option of an earlier version ("--tensorboard") is written as now; none: it is as it was.
std::optional<std::pair<std::string, std::string>> current_spelling(const std::string& name,
                                                                    const std::string& value);

/// What a value that was given by this name of an option is by the option's own name: "--log-dir
/// DIR" of TensorFlow's programs is "--log-to tensorboard:DIR".
std::string value_under_own_name(const std::string& name, const std::string& value);

/// Takes "--work_dir DIR" out of the arguments of a training and changes to that folder, as UAI
/// Train has it. Error (kUsage) when that is not possible.
void take_work_folder(std::vector<std::string>& arguments);

/// What an option of another tool ("--amp") is here ("--precision bf16"); empty: unknown.
std::string_view option_meant_by(std::string_view name);

}  // namespace pipetrain
