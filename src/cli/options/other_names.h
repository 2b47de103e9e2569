// Options by the names that other tools have for them.
#pragma once

#include <string_view>

namespace pipetrain {

/// What an option of another tool ("--amp") is here ("--precision bf16"); empty: unknown.
std::string_view option_meant_by(std::string_view name);

}  // namespace pipetrain
