// Options by the names that other tools have for them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace pipetrain {

/// What an option of an earlier version ("--tensorboard") is written as now; none: it is as it was.
std::optional<std::pair<std::string, std::string>> current_spelling(const std::string& name,
                                                                    const std::string& value);

/// What an option of another tool ("--amp") is here ("--precision bf16"); empty: unknown.
std::string_view option_meant_by(std::string_view name);

}  // namespace pipetrain
